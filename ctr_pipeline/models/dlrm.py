"""DLRM.

Naumov et al. 2019, "Deep Learning Recommendation Model for Personalization and Recommendation
Systems" (arXiv:1906.00091).
"""

from typing import Any

import keras

from ctr_pipeline.models.inputs import ModelInputs
from ctr_pipeline.models.layers.dot_interaction import DotInteraction
from ctr_pipeline.models.layers.linear import Linear
from ctr_pipeline.models.layers.logit_head import LogitHead
from ctr_pipeline.models.layers.mlp import MLP
from ctr_pipeline.models.seeds import derive_seeds
from ctr_pipeline.specs.model_kinds import DLRMConfig


def build(inputs: ModelInputs, config: DLRMConfig, seed: int) -> Any:
    """Section 2.1: a bottom network makes a vector of the numbers, which meets the embeddings.

    Inner products of all pairs, and the bottom's vector beside them, go through the top network,
    `hidden_units`. The linear term comes on top of the paper's model.

    Returns:
        Logits, (batch,).
    """
    signature = inputs.signature
    linear_B = Linear(signature.base_logit, name="linear_logit")(
        inputs.linear_BF, inputs.numbers_BN
    )
    mlp_seed, head_seed, bottom_seed = derive_seeds(seed, 3)
    vectors, parts = [], []
    if signature.num_fields:
        vectors.append(inputs.embeddings_BFD)
    if signature.num_numbers:
        bottom_BD = MLP(
            (*config.bottom_units, signature.embedding_dim),
            config.dropout,
            bottom_seed,
            name="bottom",
        )(inputs.numbers_BN)
        parts.append(bottom_BD)
        vectors.append(keras.layers.Reshape((1, signature.embedding_dim), name="number")(bottom_BD))
    together = (
        vectors[0] if len(vectors) == 1 else keras.layers.Concatenate(1, name="vectors")(vectors)
    )
    if together.shape[1] > 1:
        parts.append(DotInteraction(name="pairs")(together))
    if not parts:
        # One field and nothing else: there is no pair.
        parts.append(inputs.flat_BK)
    x_BK = parts[0] if len(parts) == 1 else keras.layers.Concatenate(name="top_input")(parts)
    deep_BK = MLP(config.hidden_units, config.dropout, mlp_seed, name="mlp")(x_BK)
    return keras.layers.Add(dtype="float32", name="logit")(
        [linear_B, LogitHead(head_seed, name="deep_logit")(deep_BK)]
    )
