"""xDeepFM.

Lian et al. 2018, "xDeepFM: Combining Explicit and Implicit Feature Interactions for Recommender
Systems" (arXiv:1803.05170).
"""

from typing import Any

import keras

from ctr_pipeline.models.inputs import ModelInputs
from ctr_pipeline.models.layers.compressed_interaction import CompressedInteraction
from ctr_pipeline.models.layers.linear import Linear
from ctr_pipeline.models.layers.logit_head import LogitHead
from ctr_pipeline.models.layers.mlp import MLP
from ctr_pipeline.models.seeds import derive_seeds
from ctr_pipeline.specs.model_kinds import XDeepFMConfig


def build(inputs: ModelInputs, config: XDeepFMConfig, seed: int) -> Any:
    """The output unit, Eq. (10), before the sigmoid: linear, deep and interaction terms.

    Returns:
        Logits, (batch,).
    """
    linear_B = Linear(inputs.signature.base_logit, name="linear_logit")(
        inputs.linear_BF, inputs.numbers_BN
    )
    mlp_seed, deep_seed, cin_seed, maps_seed = derive_seeds(seed, 4)
    deep_BK = MLP(config.hidden_units, config.dropout, mlp_seed, name="mlp")(inputs.flat_BK)
    parts = [linear_B, LogitHead(deep_seed, name="deep_logit")(deep_BK)]
    if inputs.signature.num_fields:
        pooled_BP = CompressedInteraction(config.cin_layers, cin_seed, name="interaction")(
            inputs.embeddings_BFD
        )
        parts.append(LogitHead(maps_seed, name="interaction_logit")(pooled_BP))
    return keras.layers.Add(dtype="float32", name="logit")(parts)
