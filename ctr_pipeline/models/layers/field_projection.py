"""Embeddings of several lengths as fields of one length.

Axes: B batch, F fields, D length of all, d length of some, N fields of one length d.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import keras
import numpy as np
from keras import ops


@keras.saving.register_keras_serializable(package="ctr_pipeline")
class FieldProjection(keras.layers.Layer):
    """`e_f P_f` of every field f whose embedding is shorter than D; the others as they are.

    Ginart et al. 2019, "Mixed Dimension Embeddings with Application to Memory-Efficient
    Recommendation Systems" (arXiv:1909.11810), Section 3: a matrix (d, D) a field, trained with the
    model. Without a bias, so that an id that was never trained stays zero.

    Args:
        dims: Length of each field's embedding, d <= D; the first d numbers are read.
        seed: Seed of the Glorot uniform initial weights.
    """

    def __init__(self, dims: Sequence[int], seed: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not dims or min(dims) < 1:
            raise ValueError(f"dims must be lengths of at least 1, received {list(dims)}")
        self.dims = tuple(int(dim) for dim in dims)
        self.seed = seed

    def build(self, input_shape: tuple[Any, ...]) -> None:
        """Makes a kernel for the fields of each length: (N, d, D)."""
        num_fields, full_dim = input_shape[1:]
        if len(self.dims) != num_fields or max(self.dims) > full_dim:
            raise ValueError(
                f"lengths {list(self.dims)} do not fit {num_fields} fields of {full_dim} numbers"
            )
        by_dim = groupby(
            sorted(range(num_fields), key=self.dims.__getitem__), self.dims.__getitem__
        )
        self._groups = [(dim, list(fields)) for dim, fields in by_dim]
        self._kernels = {}
        for dim, fields in self._groups:
            if dim < full_dim:
                limit = (6.0 / (dim + full_dim)) ** 0.5
                # No two lengths begin with the same numbers.
                seed = (self.seed + dim) % 2**32
                self._kernels[dim] = self.add_weight(
                    shape=(len(fields), dim, full_dim),
                    initializer=keras.initializers.RandomUniform(-limit, limit, seed=seed),
                    name=f"kernel_{dim}",
                )

    def call(self, embeddings_BFD: Any) -> Any:
        """Projects the short ones.

        Args:
            embeddings_BFD: Embeddings, (batch, fields, dim).

        Returns:
            (batch, fields, dim).
        """
        parts = []
        for dim, fields in self._groups:
            some_BND = ops.take(embeddings_BFD, np.array(fields), axis=1)
            if dim in self._kernels:
                some_NBd = ops.transpose(some_BND[:, :, :dim], (1, 0, 2))
                some_BND = ops.transpose(ops.matmul(some_NBd, self._kernels[dim]), (1, 0, 2))
            parts.append(some_BND)
        order = np.argsort([field for _, fields in self._groups for field in fields])
        return ops.take(ops.concatenate(parts, axis=1), order, axis=1)

    def compute_output_shape(self, input_shape: tuple[Any, ...]) -> tuple[Any, ...]:
        """The shape of the input."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "dims": list(self.dims), "seed": self.seed}
