"""Inner products of all pairs of vectors.

Axes: B batch, V vectors, D their length, P pairs.
"""

from typing import Any

import keras
import numpy as np
from keras import ops


@keras.saving.register_keras_serializable(package="ctr_pipeline")
class DotInteraction(keras.layers.Layer):
    """`<x_i, x_j>` of all pairs i < j: the interaction of DLRM.

    Naumov et al. 2019, "Deep Learning Recommendation Model for Personalization and Recommendation
    Systems" (arXiv:1906.00091), Section 2.1. The layer has no weights.
    """

    def call(self, vectors_BVD: Any) -> Any:
        """Multiplies all pairs.

        Args:
            vectors_BVD: (batch, vectors, dim).

        Returns:
            (batch, pairs), pairs (0, 1), (0, 2), …, (1, 2), ….
        """
        products_BVV = ops.matmul(vectors_BVD, ops.transpose(vectors_BVD, (0, 2, 1)))
        num_vectors = vectors_BVD.shape[1]
        first_P, second_P = np.triu_indices(num_vectors, 1)
        flat = ops.reshape(products_BVV, (-1, num_vectors * num_vectors))
        # One gather: slices row by row take twice as long, with their gradients.
        return ops.take(flat, first_P * num_vectors + second_P, axis=1)

    def compute_output_shape(self, input_shape: tuple[Any, ...]) -> tuple[Any, ...]:
        """(batch, pairs)."""
        return (input_shape[0], input_shape[1] * (input_shape[1] - 1) // 2)
