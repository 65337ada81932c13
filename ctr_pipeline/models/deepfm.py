"""DeepFM.

Guo et al. 2017, "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction"
(arXiv:1703.04247).
"""

from typing import Any

import keras

from ctr_pipeline.models.inputs import ModelInputs
from ctr_pipeline.models.layers.factorization_machine import FactorizationMachine
from ctr_pipeline.models.layers.linear import Linear
from ctr_pipeline.models.layers.logit_head import LogitHead
from ctr_pipeline.models.layers.mlp import MLP
from ctr_pipeline.models.seeds import derive_seeds
from ctr_pipeline.specs.model_kinds import DeepFMConfig


def build(inputs: ModelInputs, config: DeepFMConfig, seed: int) -> Any:
    """Eq. (1), ŷ = sigmoid(y_FM + y_DNN), before the sigmoid.

    y_FM is Eq. (2): the linear term and the pairs; y_DNN is Eq. (4); both read the same embeddings.
    Dense numbers go into the deep part and the linear part; they have no embedding.

    Returns:
        Logits, (batch,).
    """
    linear_B = Linear(inputs.signature.base_logit, name="linear_logit")(
        inputs.linear_BF, inputs.numbers_BN
    )
    mlp_seed, head_seed = derive_seeds(seed, 2)
    deep_BK = MLP(config.hidden_units, config.dropout, mlp_seed, name="mlp")(inputs.flat_BK)
    parts = [linear_B, LogitHead(head_seed, name="deep_logit")(deep_BK)]
    if inputs.signature.num_fields:
        parts.append(FactorizationMachine(name="pairs")(inputs.embeddings_BFD))
    return keras.layers.Add(dtype="float32", name="logit")(parts)
