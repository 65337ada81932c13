"""The interacting layer of AutoInt.

Axes: B batch, F fields, D units of a field that come in, H heads, U units of a head.
"""

from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="ctr_pipeline")
class InteractingAttention(keras.layers.Layer):
    """Each field becomes a mixture of all fields, weighed by how they match, head by head.

    Song et al. 2019, "AutoInt" (arXiv:1810.11921): attention by inner products, not scaled, over
    the fields, Eq. (5); the mixture, Eq. (6); all heads side by side, Eq. (7); a residual that is
    projected, and ReLU, Eq. (8).

    Args:
        heads: Attention heads.
        units: Units of a head.
        seed: Seed of the Glorot uniform initial weights.
    """

    def __init__(self, heads: int, units: int, seed: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if heads < 1 or units < 1:
            raise ValueError(f"heads and units must be at least 1, received {heads} and {units}")
        self.heads = heads
        self.units = units
        self.seed = seed

    def build(self, input_shape: tuple[Any, ...]) -> None:
        """Makes the kernels of queries, keys, values and of the residual, (D, H · U) each."""
        shape = (input_shape[-1], self.heads * self.units)
        self.query_kernel, self.key_kernel, self.value_kernel, self.residual_kernel = (
            self.add_weight(
                shape=shape,
                initializer=keras.initializers.GlorotUniform(seed=self.seed + index),
                name=f"{name}_kernel",
            )
            for index, name in enumerate(("query", "key", "value", "residual"))
        )

    def call(self, fields_BFD: Any) -> Any:
        """Mixes the fields.

        Args:
            fields_BFD: (batch, fields, units of a field).

        Returns:
            (batch, fields, heads · units), not negative.
        """
        num_fields = fields_BFD.shape[1]

        def by_head(kernel: Any) -> Any:
            projected = ops.matmul(fields_BFD, kernel)
            split = ops.reshape(projected, (-1, num_fields, self.heads, self.units))
            return ops.transpose(split, (0, 2, 1, 3))

        mixed_BHFU = by_head(self.value_kernel)
        # One field alone gets all the weight; Keras warns of a softmax over it.
        if num_fields > 1:
            queries_BHFU, keys_BHFU = by_head(self.query_kernel), by_head(self.key_kernel)
            matches_BHFF = ops.matmul(queries_BHFU, ops.transpose(keys_BHFU, (0, 1, 3, 2)))
            mixed_BHFU = ops.matmul(ops.softmax(matches_BHFF, axis=-1), mixed_BHFU)
        mixed_BFK = ops.reshape(
            ops.transpose(mixed_BHFU, (0, 2, 1, 3)), (-1, num_fields, self.heads * self.units)
        )
        return ops.relu(mixed_BFK + ops.matmul(fields_BFD, self.residual_kernel))

    def compute_output_shape(self, input_shape: tuple[Any, ...]) -> tuple[Any, ...]:
        """(batch, fields, heads · units)."""
        return (*input_shape[:2], self.heads * self.units)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "heads": self.heads,
            "units": self.units,
            "seed": self.seed,
        }
