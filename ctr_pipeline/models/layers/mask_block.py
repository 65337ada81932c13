"""The mask block of MaskNet.

Axes: B batch, K units of the guide, X units of the input, U units of the block.
"""

from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="ctr_pipeline")
class MaskBlock(keras.layers.Layer):
    """A hidden layer whose input is first multiplied by a mask that the row itself makes.

    Wang et al. 2021, "MaskNet" (arXiv:2102.07619): the instance-guided mask
    `W_2 ReLU(W_1 v + b_1) + b_2`, Eq. (4) and (5); `ReLU(LN(W (mask ∘ x)))`, Eq. (8) and (9).

    Args:
        units: Units of the block.
        mask_units: Units of the hidden layer that makes the mask.
        seed: Seed of the Glorot uniform initial weights; biases start at zero.
    """

    def __init__(self, units: int, mask_units: int, seed: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = units
        self.mask_units = mask_units
        self.seed = seed
        self.aggregation = keras.layers.Dense(
            mask_units,
            activation="relu",
            kernel_initializer=keras.initializers.GlorotUniform(seed=seed),
            name="aggregation",
        )
        self.projection_seed = seed + 1
        self.hidden = keras.layers.Dense(
            units,
            use_bias=False,
            kernel_initializer=keras.initializers.GlorotUniform(seed=seed + 2),
            name="hidden",
        )
        self.norm = keras.layers.LayerNormalization(epsilon=1e-5, name="norm")

    def build(self, x_BX_shape: tuple[Any, ...], guide_BK_shape: tuple[Any, ...]) -> None:
        """Makes the layers."""
        self.aggregation.build((None, guide_BK_shape[-1]))
        self.projection = keras.layers.Dense(
            x_BX_shape[-1],
            kernel_initializer=keras.initializers.GlorotUniform(seed=self.projection_seed),
            name="projection",
        )
        self.projection.build((None, self.mask_units))
        self.hidden.build((None, x_BX_shape[-1]))
        self.norm.build((None, self.units))

    def call(self, x_BX: Any, guide_BK: Any) -> Any:
        """Masks and maps.

        Args:
            x_BX: Input, (batch, units).
            guide_BK: What the mask is made of: the row's flat embeddings, (batch, units).

        Returns:
            (batch, units of the block), not negative.
        """
        mask_BX = self.projection(self.aggregation(guide_BK))
        return ops.relu(self.norm(self.hidden(mask_BX * x_BX)))

    def compute_output_shape(
        self, x_BX_shape: tuple[Any, ...], guide_BK_shape: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        """(batch, units of the block)."""
        del guide_BK_shape
        return (x_BX_shape[0], self.units)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "units": self.units,
            "mask_units": self.mask_units,
            "seed": self.seed,
        }
