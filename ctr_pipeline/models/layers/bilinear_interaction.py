"""The bilinear interaction of FiBiNET.

Axes: B batch, F fields, D embedding dimension, P pairs of fields, M matrices.
"""

from typing import Any, Literal

import keras
import numpy as np
from keras import ops

BilinearForm = Literal["all", "each", "interaction"]


@keras.saving.register_keras_serializable(package="ctr_pipeline")
class BilinearInteraction(keras.layers.Layer):
    """`p_ij = (e_i W) ∘ e_j` of all pairs i < j of fields.

    Huang et al. 2019, "FiBiNET" (arXiv:1905.09433), Section 3.4, Eq. (5) to (7): one `W` for `all`
    pairs, one for `each` field i, or one for each `interaction`.

    Args:
        form: Which pairs share a matrix.
        seed: Seed of the Glorot uniform initial weights.
    """

    def __init__(self, form: BilinearForm = "interaction", seed: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if form not in {"all", "each", "interaction"}:
            raise ValueError(f"form must be 'all', 'each' or 'interaction', received {form!r}")
        self.form = form
        self.seed = seed

    def build(self, input_shape: tuple[Any, ...]) -> None:
        """Makes the matrices side by side: (D, D · number of them)."""
        num_fields, dim = input_shape[1:]
        if num_fields < 2:
            raise ValueError(f"there is no pair of {num_fields} fields")
        matrices = {
            "all": 1,
            "each": num_fields - 1,
            "interaction": num_fields * (num_fields - 1) // 2,
        }[self.form]
        # Of each matrix, not of all side by side.
        limit = (6.0 / (2 * dim)) ** 0.5
        self.kernel = self.add_weight(
            shape=(dim, dim * matrices),
            initializer=keras.initializers.RandomUniform(-limit, limit, seed=self.seed),
            name="kernel",
        )

    def call(self, embeddings_BFD: Any) -> Any:
        """Multiplies all pairs.

        Args:
            embeddings_BFD: Embeddings, (batch, fields, dim).

        Returns:
            (batch, pairs, dim), pairs (0, 1), (0, 2), …, (1, 2), ….
        """
        num_fields, dim = embeddings_BFD.shape[1:]
        # Gathers compile in a second, slices of each field in fifteen.
        first_P, second_P = np.triu_indices(num_fields, 1)
        if self.form == "all":
            turned_BFD = ops.matmul(embeddings_BFD, self.kernel)
            left_BPD = ops.take(turned_BFD, first_P, axis=1)
        else:
            kernels_MDD = ops.transpose(ops.reshape(self.kernel, (dim, -1, dim)), (1, 0, 2))
            if self.form == "each":
                fields_MBD = ops.transpose(embeddings_BFD[:, :-1], (1, 0, 2))
                turned_BMD = ops.transpose(ops.matmul(fields_MBD, kernels_MDD), (1, 0, 2))
                left_BPD = ops.take(turned_BMD, first_P, axis=1)
            else:
                fields_PBD = ops.transpose(ops.take(embeddings_BFD, first_P, axis=1), (1, 0, 2))
                left_BPD = ops.transpose(ops.matmul(fields_PBD, kernels_MDD), (1, 0, 2))
        return left_BPD * ops.take(embeddings_BFD, second_P, axis=1)

    def compute_output_shape(self, input_shape: tuple[Any, ...]) -> tuple[Any, ...]:
        """(batch, pairs, dim)."""
        num_fields = input_shape[1]
        return (input_shape[0], num_fields * (num_fields - 1) // 2, input_shape[2])

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "form": self.form, "seed": self.seed}
