"""The part of the logit that hidden units make.

Axes: B batch, K units.
"""

from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="ctr_pipeline")
class LogitHead(keras.layers.Layer):
    """`w · x`, one number a row and no bias: the model's one bias is in `Linear`.

    Heads of several parts, added up, are one head over their concatenation, such as Eq. (5) and
    (6) of the DCN paper (arXiv:1708.05123).

    Args:
        seed: Seed of the Glorot uniform initial weights.
    """

    def __init__(self, seed: int = 0, **kwargs: Any) -> None:
        # Its result is a part of the logit, of which bfloat16 would keep three digits.
        super().__init__(**{"dtype": "float32", **kwargs})
        self.seed = seed

    def build(self, input_shape: tuple[Any, ...]) -> None:
        """Makes `w`."""
        self.kernel_K1 = self.add_weight(
            shape=(input_shape[-1], 1),
            initializer=keras.initializers.GlorotUniform(seed=self.seed),
            name="kernel",
        )

    def call(self, x_BK: Any) -> Any:
        """Weighs the units.

        Args:
            x_BK: Units, (batch, units).

        Returns:
            Part of the logit, (batch,).
        """
        return ops.squeeze(ops.matmul(x_BK, self.kernel_K1), axis=-1)

    def compute_output_shape(self, input_shape: tuple[Any, ...]) -> tuple[Any, ...]:
        """(batch,)."""
        return input_shape[:1]

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "seed": self.seed}
