"""DIN: a deep network over fields, in which sequences are pooled by how they match a target.

Zhou et al. 2018, "Deep Interest Network for Click-Through Rate Prediction" (arXiv:1706.06978).
"""

from typing import Any

import keras

from ctr_pipeline.models.inputs import ModelInputs
from ctr_pipeline.models.layers.linear import Linear
from ctr_pipeline.models.layers.local_activation import LocalActivation
from ctr_pipeline.models.layers.logit_head import LogitHead
from ctr_pipeline.models.layers.mlp import MLP
from ctr_pipeline.models.seeds import derive_seeds
from ctr_pipeline.specs.model_kinds import DINConfig


def build(inputs: ModelInputs, config: DINConfig, seed: int) -> Any:
    """The network of Figure 2, beside the linear term that all models here have.

    Its hidden layers are ReLU, as of all models here; the paper's are PReLU or Dice. Without
    sequences it is the paper's base model, Section 4.2.

    Returns:
        Logits, (batch,).
    """
    signature = inputs.signature
    linear_B = Linear(signature.base_logit, name="linear_logit")(
        inputs.linear_BF, inputs.numbers_BN
    )
    mlp_seed, deep_seed, attention_seed = derive_seeds(seed, 3)
    flat_BK = inputs.flat_BK
    if signature.sequences and signature.target is not None:
        fields_BFD = LocalActivation(
            signature.target,
            signature.sequences,
            config.activation_units,
            attention_seed,
            name="local_activation",
        )(inputs.embeddings_BFD, inputs.elements_BSD, inputs.coefficients_BS)
        flat_BK = inputs.flatten(fields_BFD)
    deep_BK = MLP(config.hidden_units, config.dropout, mlp_seed, name="mlp")(flat_BK)
    return keras.layers.Add(dtype="float32", name="logit")(
        [linear_B, LogitHead(deep_seed, name="deep_logit")(deep_BK)]
    )
