"""Wide & Deep.

Cheng et al. 2016, "Wide & Deep Learning for Recommender Systems" (arXiv:1606.07792).
"""

from typing import Any

import keras

from ctr_pipeline.models.inputs import ModelInputs
from ctr_pipeline.models.layers.linear import Linear
from ctr_pipeline.models.layers.logit_head import LogitHead
from ctr_pipeline.models.layers.mlp import MLP
from ctr_pipeline.models.seeds import derive_seeds
from ctr_pipeline.specs.model_kinds import WideAndDeepConfig


def build(inputs: ModelInputs, config: WideAndDeepConfig, seed: int) -> Any:
    """Eq. (3): the wide term, linear in ids and numbers, plus the deep term.

    The wide part sees every id and number; the paper's hand-made cross products are ids too, made
    by the features and not by the model.

    Returns:
        Logits, (batch,).
    """
    linear_B = Linear(inputs.signature.base_logit, name="linear_logit")(
        inputs.linear_BF, inputs.numbers_BN
    )
    mlp_seed, head_seed = derive_seeds(seed, 2)
    deep_BK = MLP(config.hidden_units, config.dropout, mlp_seed, name="mlp")(inputs.flat_BK)
    deep_B = LogitHead(head_seed, name="deep_logit")(deep_BK)
    return keras.layers.Add(dtype="float32", name="logit")([linear_B, deep_B])
