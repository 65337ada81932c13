"""The fusion of FinalMLP's two streams.

Axes: B batch, K and L units of the streams, H heads.
"""

from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="ctr_pipeline")
class BilinearFusion(keras.layers.Layer):
    """`w_1 · x + w_2 · y + Σ_h x_h W_h y_h`, both streams cut into heads.

    Mao et al. 2023, "FinalMLP" (arXiv:2304.00902), Eq. (6) and (7); the bias is the model's one
    bias, in `Linear`.

    Args:
        heads: Pieces that each stream is cut into; more heads, fewer weights.
        seed: Seed of the Glorot uniform initial weights.
    """

    def __init__(self, heads: int = 1, seed: int = 0, **kwargs: Any) -> None:
        # Its result is a part of the logit, of which bfloat16 would keep three digits.
        super().__init__(**{"dtype": "float32", **kwargs})
        self.heads = heads
        self.seed = seed

    def build(self, x_BK_shape: tuple[Any, ...], y_BL_shape: tuple[Any, ...]) -> None:
        """Makes `w_1`, (K, 1), `w_2`, (L, 1), and the `W_h`, (H, K / H, L / H)."""
        width, other = x_BK_shape[-1], y_BL_shape[-1]
        if width % self.heads or other % self.heads:
            raise ValueError(f"{self.heads} heads do not divide {width} and {other} units")
        shape = (self.heads, width // self.heads, other // self.heads)
        # Of each head, not of all side by side.
        limit = (6.0 / (shape[1] + shape[2])) ** 0.5
        self.first_kernel, self.second_kernel = (
            self.add_weight(
                shape=(size, 1),
                initializer=keras.initializers.GlorotUniform(seed=self.seed + index),
                name=f"kernel_{index}",
            )
            for index, size in enumerate((width, other))
        )
        self.pair_kernel = self.add_weight(
            shape=shape,
            initializer=keras.initializers.RandomUniform(-limit, limit, seed=self.seed + 2),
            name="pair_kernel",
        )

    def call(self, x_BK: Any, y_BL: Any) -> Any:
        """Fuses the streams.

        Args:
            x_BK: Last units of the first stream, (batch, units).
            y_BL: The output of the second one.

        Returns:
            Part of the logit, (batch,).
        """
        _, piece, other = self.pair_kernel.shape
        x_HBK = ops.transpose(ops.reshape(x_BK, (-1, self.heads, piece)), (1, 0, 2))
        y_HBL = ops.transpose(ops.reshape(y_BL, (-1, self.heads, other)), (1, 0, 2))
        pairs_B = ops.sum(ops.matmul(x_HBK, self.pair_kernel) * y_HBL, axis=(0, 2))
        alone = ops.matmul(x_BK, self.first_kernel) + ops.matmul(y_BL, self.second_kernel)
        return ops.squeeze(alone, axis=-1) + pairs_B

    def compute_output_shape(
        self, x_BK_shape: tuple[Any, ...], y_BL_shape: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        """(batch,)."""
        del y_BL_shape
        return x_BK_shape[:1]

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "heads": self.heads, "seed": self.seed}
