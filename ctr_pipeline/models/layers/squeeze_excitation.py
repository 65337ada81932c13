"""The squeeze and excitation of FiBiNET.

Axes: B batch, F fields, D embedding dimension.
"""

from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="ctr_pipeline")
class SqueezeExcitation(keras.layers.Layer):
    """Weighs the fields of a row by how much they tell in it.

    Huang et al. 2019, "FiBiNET" (arXiv:1905.09433): the mean of each embedding, Eq. (2); weights
    `a = ReLU(W_2 ReLU(W_1 z))` through a narrow layer, Eq. (3); `v_f = a_f e_f`, Eq. (4).

    Args:
        reduction: The narrow layer has fields / reduction units, at least one.
        seed: Seed of the Glorot uniform initial weights.
    """

    def __init__(self, reduction: int = 3, seed: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if reduction < 1:
            raise ValueError(f"reduction must be at least 1, received {reduction}")
        self.reduction = reduction
        self.seed = seed

    def build(self, input_shape: tuple[Any, ...]) -> None:
        """Makes `W_1`, (F, F / reduction), and `W_2`, its mirror."""
        num_fields = input_shape[1]
        num_narrow = max(1, num_fields // self.reduction)
        shapes = {
            "narrow_kernel": (num_fields, num_narrow),
            "wide_kernel": (num_narrow, num_fields),
        }
        self.narrow_kernel, self.wide_kernel = (
            self.add_weight(
                shape=shape,
                initializer=keras.initializers.GlorotUniform(seed=self.seed + index),
                name=name,
            )
            for index, (name, shape) in enumerate(shapes.items())
        )

    def call(self, embeddings_BFD: Any) -> Any:
        """Weighs the fields.

        Args:
            embeddings_BFD: Embeddings, (batch, fields, dim).

        Returns:
            (batch, fields, dim).
        """
        squeezed_BF = ops.mean(embeddings_BFD, axis=-1)
        narrow = ops.relu(ops.matmul(squeezed_BF, self.narrow_kernel))
        weights_BF = ops.relu(ops.matmul(narrow, self.wide_kernel))
        return embeddings_BFD * weights_BF[..., None]

    def compute_output_shape(self, input_shape: tuple[Any, ...]) -> tuple[Any, ...]:
        """(batch, fields, dim)."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "reduction": self.reduction, "seed": self.seed}
