"""The second-order term of a factorization machine.

Axes: B batch, F fields, D embedding dimension.
"""

from typing import Any

import keras
from keras import ops

from ctr_pipeline.training.fusion import fused


@keras.saving.register_keras_serializable(package="ctr_pipeline")
class FactorizationMachine(keras.layers.Layer):
    """`Σ_{i<j} <e_i, e_j>`, all pairs of fields in time linear in their number.

    By Lemma 3.1 of Rendle, "Factorization Machines" (ICDM 2010), the sum over pairs is
    `½ Σ_d ((Σ_f e_fd)² - Σ_f e_fd²)`. It is the second term of Eq. (2) in DeepFM
    (arXiv:1703.04247). The layer has no weights.
    """

    def __init__(self, **kwargs: Any) -> None:
        # Its result is a part of the logit, of which bfloat16 would keep three digits.
        super().__init__(**{"dtype": "float32", **kwargs})

    def call(self, embeddings_BFD: Any) -> Any:
        """Sums the inner products of all pairs of fields.

        Args:
            embeddings_BFD: Embeddings, (batch, fields, dim).

        Returns:
            Part of the logit, (batch,).
        """
        return fused(_sum_pairs, embeddings_BFD)

    def compute_output_shape(self, input_shape: tuple[Any, ...]) -> tuple[Any, ...]:
        """(batch,)."""
        return input_shape[:1]


def _sum_pairs(embeddings_BFD: Any) -> Any:
    sum_BD = ops.sum(embeddings_BFD, axis=1)
    # Over fields first: a sum over the last axes as well is not vectorized by XLA.
    squares_BD = ops.sum(ops.square(embeddings_BFD), axis=1)
    return 0.5 * ops.sum(ops.square(sum_BD) - squares_BD, axis=-1)
