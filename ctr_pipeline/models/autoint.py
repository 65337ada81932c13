"""AutoInt, with the deep part beside it (AutoInt+).

Song et al. 2019, "AutoInt: Automatic Feature Interaction Learning via Self-Attentive Neural
Networks" (arXiv:1810.11921).
"""

from typing import Any

import keras

from ctr_pipeline.models.inputs import ModelInputs
from ctr_pipeline.models.layers.interacting_attention import InteractingAttention
from ctr_pipeline.models.layers.linear import Linear
from ctr_pipeline.models.layers.logit_head import LogitHead
from ctr_pipeline.models.layers.mlp import MLP
from ctr_pipeline.models.seeds import derive_seeds
from ctr_pipeline.specs.model_kinds import AutoIntConfig


def build(inputs: ModelInputs, config: AutoIntConfig, seed: int) -> Any:
    """Interacting layers over the fields, Eq. (9), and the deep part of Section 5.5.

    Dense numbers go into the deep and the linear part; the paper gives them embeddings.

    Returns:
        Logits, (batch,).
    """
    linear_B = Linear(inputs.signature.base_logit, name="linear_logit")(
        inputs.linear_BF, inputs.numbers_BN
    )
    mlp_seed, deep_seed, fields_seed, *attention_seeds = derive_seeds(
        seed, 3 + config.attention_layers
    )
    deep_BK = MLP(config.hidden_units, config.dropout, mlp_seed, name="mlp")(inputs.flat_BK)
    parts = [linear_B, LogitHead(deep_seed, name="deep_logit")(deep_BK)]
    if inputs.signature.num_fields:
        fields_BFK = inputs.embeddings_BFD
        for index, attention_seed in enumerate(attention_seeds):
            fields_BFK = InteractingAttention(
                config.attention_heads,
                config.attention_units,
                attention_seed,
                name=f"attention_{index}",
            )(fields_BFK)
        flat = keras.layers.Flatten(name="flat_attention")(fields_BFK)
        parts.append(LogitHead(fields_seed, name="attention_logit")(flat))
    return keras.layers.Add(dtype="float32", name="logit")(parts)
