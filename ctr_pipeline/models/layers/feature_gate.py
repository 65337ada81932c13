"""The feature selection of FinalMLP.

Axes: B batch, K units.
"""

from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="ctr_pipeline")
class FeatureGate(keras.layers.Layer):
    """`2 sigmoid(g) ∘ x` with a learned `g`: which units one of two streams looks at.

    Mao et al. 2023, "FinalMLP" (arXiv:2304.00902), Eq. (4) and (5), in the case without context
    features, where a gate learns from parameters alone. `g` starts at zero: all units pass as they
    are.
    """

    def build(self, input_shape: tuple[Any, ...]) -> None:
        """Makes `g`."""
        self.gate_K = self.add_weight(shape=(input_shape[-1],), initializer="zeros", name="gate")

    def call(self, x_BK: Any) -> Any:
        """Weighs the units.

        Args:
            x_BK: (batch, units).

        Returns:
            (batch, units).
        """
        return 2.0 * ops.sigmoid(self.gate_K) * x_BK

    def compute_output_shape(self, input_shape: tuple[Any, ...]) -> tuple[Any, ...]:
        """(batch, units)."""
        return input_shape
