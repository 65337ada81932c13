"""Deep & Cross Network.

Wang et al. 2017, "Deep & Cross Network for Ad Click Predictions" (arXiv:1708.05123).
"""

from typing import Any, Literal

import keras

from ctr_pipeline.models.inputs import ModelInputs
from ctr_pipeline.models.layers.cross import Cross
from ctr_pipeline.models.layers.linear import Linear
from ctr_pipeline.models.layers.logit_head import LogitHead
from ctr_pipeline.models.layers.mlp import MLP
from ctr_pipeline.models.seeds import derive_seeds
from ctr_pipeline.specs.model_kinds import CrossModelConfig, DCNConfig


def build(inputs: ModelInputs, config: DCNConfig, seed: int) -> Any:
    """Builds the cross network, Eq. (3), beside the deep network, Eq. (4).

    Each network has a head of its own, and the two logits are added, which is Eq. (5) and (6). The
    linear term is added to the paper's two networks.

    Returns:
        Logits, (batch,).
    """
    return build_parallel(inputs, config, seed, "vector")


def build_parallel(
    inputs: ModelInputs,
    config: CrossModelConfig,
    seed: int,
    form: Literal["vector", "matrix"],
    rank: int | None = None,
) -> Any:
    """Builds a cross network beside the deep network and the linear term.

    Args:
        form: Form of the cross layers.
        rank: Rank of their matrices; None for full matrices.

    Returns:
        Logits, (batch,).
    """
    linear_B = Linear(inputs.signature.base_logit, name="linear_logit")(
        inputs.linear_BF, inputs.numbers_BN
    )
    mlp_seed, deep_seed, crossed_seed, *cross_seeds = derive_seeds(seed, 3 + config.cross_layers)
    deep_BK = MLP(config.hidden_units, config.dropout, mlp_seed, name="mlp")(inputs.flat_BK)
    crossed_BK = inputs.flat_BK
    for index, cross_seed in enumerate(cross_seeds):
        cross = Cross(form, cross_seed, rank, name=f"cross_{index}")
        crossed_BK = cross(inputs.flat_BK, crossed_BK)
    deep_B = LogitHead(deep_seed, name="deep_logit")(deep_BK)
    crossed_B = LogitHead(crossed_seed, name="cross_logit")(crossed_BK)
    return keras.layers.Add(dtype="float32", name="logit")([linear_B, deep_B, crossed_B])
