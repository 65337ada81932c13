"""The bilinear interaction of FiBiNET.

Axes: B batch, F fields, D embedding dimension, P pairs of fields.
"""

from typing import Any, Literal

import keras
from keras import ops

BilinearForm = Literal["all", "each", "interaction"]


@keras.saving.register_keras_serializable(package="ctr_pipeline")
class BilinearInteraction(keras.layers.Layer):
    """`p_ij = (e_i W) ∘ e_j` of all pairs i < j of fields.

    Huang et al. 2019, "FiBiNET" (arXiv:1905.09433), Section 3.4, Eq. (5) to (7): one `W` for `all`
    pairs, one for `each` field i, or one for each `interaction`.

    Args:
        form: Which pairs share a matrix.
        seed: Of the Glorot uniform initial weights.
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
        if self.form == "all":
            turned_BFD = ops.matmul(embeddings_BFD, self.kernel)
        products = []
        first = 0
        for i in range(num_fields - 1):
            others = embeddings_BFD[:, i + 1 :]
            if self.form == "all":
                left = turned_BFD[:, i : i + 1]
            else:
                # The matrices of this field, next to each other: one product for all of them.
                count = 1 if self.form == "each" else num_fields - 1 - i
                block = self.kernel[:, first * dim : (first + count) * dim]
                left = ops.reshape(ops.matmul(embeddings_BFD[:, i], block), (-1, count, dim))
                first += count
            products.append(left * others)
        return ops.concatenate(products, axis=1)

    def compute_output_shape(self, input_shape: tuple[Any, ...]) -> tuple[Any, ...]:
        """(batch, pairs, dim)."""
        num_fields = input_shape[1]
        return (input_shape[0], num_fields * (num_fields - 1) // 2, input_shape[2])

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "form": self.form, "seed": self.seed}
