"""FiBiNET.

Huang et al. 2019, "FiBiNET: Combining Feature Importance and Bilinear feature Interaction for
Click-Through Rate Prediction" (arXiv:1905.09433).
"""

from typing import Any

import keras

from ctr_pipeline.models.inputs import ModelInputs
from ctr_pipeline.models.layers.bilinear_interaction import BilinearInteraction
from ctr_pipeline.models.layers.linear import Linear
from ctr_pipeline.models.layers.logit_head import LogitHead
from ctr_pipeline.models.layers.mlp import MLP
from ctr_pipeline.models.layers.squeeze_excitation import SqueezeExcitation
from ctr_pipeline.models.seeds import derive_seeds
from ctr_pipeline.specs.model_kinds import FiBiNETConfig


def build(inputs: ModelInputs, config: FiBiNETConfig, seed: int) -> Any:
    """Eq. (11) before the sigmoid: the linear term and a deep part over bilinear interactions.

    The pairs of the embeddings and those of the weighed embeddings, Eq. (8), are the deep part's
    input, and the dense numbers beside them. One field alone has no pair and goes in as it is.

    Returns:
        Logits, (batch,).
    """
    linear_B = Linear(inputs.signature.base_logit, name="linear_logit")(
        inputs.linear_BF, inputs.numbers_BN
    )
    mlp_seed, head_seed, weights_seed, pairs_seed, weighed_seed = derive_seeds(seed, 5)
    deep_input = inputs.flat_BK
    if inputs.signature.num_fields > 1:
        weighed_BFD = SqueezeExcitation(
            config.senet_reduction, weights_seed, name="squeeze_excitation"
        )(inputs.embeddings_BFD)
        pairs = [
            BilinearInteraction(config.bilinear, pairs_seed, name="pairs")(inputs.embeddings_BFD),
            BilinearInteraction(config.bilinear, weighed_seed, name="weighed_pairs")(weighed_BFD),
        ]
        parts = [
            keras.layers.Flatten(name=f"flat_{name}")(part)
            for name, part in zip(("pairs", "weighed_pairs"), pairs, strict=True)
        ]
        if inputs.signature.num_numbers:
            parts.append(inputs.numbers_BN)
        deep_input = keras.layers.Concatenate(name="interactions")(parts)
    deep_BK = MLP(config.hidden_units, config.dropout, mlp_seed, name="mlp")(deep_input)
    return keras.layers.Add(dtype="float32", name="logit")(
        [linear_B, LogitHead(head_seed, name="deep_logit")(deep_BK)]
    )
