"""MaskNet, with its blocks one after another or side by side.

Wang et al. 2021, "MaskNet: Introducing Feature-Wise Multiplication to CTR Ranking Models by
Instance-Guided Mask" (arXiv:2102.07619).
"""

from typing import Any

import keras

from ctr_pipeline.models.inputs import ModelInputs
from ctr_pipeline.models.layers.linear import Linear
from ctr_pipeline.models.layers.logit_head import LogitHead
from ctr_pipeline.models.layers.mask_block import MaskBlock
from ctr_pipeline.models.layers.mlp import MLP
from ctr_pipeline.models.seeds import derive_seeds
from ctr_pipeline.specs.model_kinds import MaskNetConfig


def build(inputs: ModelInputs, config: MaskNetConfig, seed: int) -> Any:
    """Section 3.4: blocks over the normalised embeddings, guided by the embeddings themselves.

    Side by side their outputs go through the deep part; one after another the last one's does.
    Each embedding is normalised by itself, Eq. (3), with a gain and a bias for each dimension that
    the fields share. Dense numbers are guides and inputs as they are.

    Returns:
        Logits, (batch,).
    """
    linear_B = Linear(inputs.signature.base_logit, name="linear_logit")(
        inputs.linear_BF, inputs.numbers_BN
    )
    mlp_seed, head_seed, *block_seeds = derive_seeds(seed, 2 + config.mask_blocks)
    guide_BK = inputs.flat_BK
    parts = []
    if inputs.signature.num_fields:
        normed_BFD = keras.layers.LayerNormalization(epsilon=1e-5, name="embedding_norm")(
            inputs.embeddings_BFD
        )
        parts.append(keras.layers.Flatten(name="flat_normed")(normed_BFD))
    if inputs.signature.num_numbers:
        parts.append(inputs.numbers_BN)
    x_BX = parts[0] if len(parts) == 1 else keras.layers.Concatenate(name="normed")(parts)
    blocks = [
        MaskBlock(
            config.mask_block_units, config.mask_units, block_seed, name=f"mask_block_{index}"
        )
        for index, block_seed in enumerate(block_seeds)
    ]
    if config.mask_structure == "serial":
        for block in blocks:
            x_BX = block(x_BX, guide_BK)
    else:
        outputs = [block(x_BX, guide_BK) for block in blocks]
        x_BX = outputs[0] if len(outputs) == 1 else keras.layers.Concatenate(name="blocks")(outputs)
    deep_BK = MLP(config.hidden_units, config.dropout, mlp_seed, name="mlp")(x_BX)
    return keras.layers.Add(dtype="float32", name="logit")(
        [linear_B, LogitHead(head_seed, name="deep_logit")(deep_BK)]
    )
