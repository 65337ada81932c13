"""The deep part.

Axes: B batch, K units.
"""

from collections.abc import Sequence
from typing import Any

import keras

from ctr_pipeline.models.layers.seeded_dropout import SeededDropout


@keras.saving.register_keras_serializable(package="ctr_pipeline")
class MLP(keras.layers.Layer):
    """`a_{l+1} = dropout(ReLU(W_l a_l + b_l))`: the deep part that the models share.

    Eq. (4) of DeepFM (arXiv:1703.04247), Section 3.2 of Wide & Deep (arXiv:1606.07792). There is
    no batch normalisation: a row's score does not depend on its batch.

    Args:
        hidden_units: Widths of the layers.
        dropout: Share of units set to zero after each layer while training, in [0, 1); the others
            are scaled up by 1 / (1 - dropout).
        seed: Seed of the Glorot uniform initial weights and of dropout.
    """

    def __init__(
        self, hidden_units: Sequence[int], dropout: float = 0.0, seed: int = 0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.hidden_units = tuple(hidden_units)
        self.dropout = dropout
        self.seed = seed
        self.dense_layers = [
            keras.layers.Dense(
                units,
                activation="relu",
                kernel_initializer=keras.initializers.GlorotUniform(seed=seed + index),
                name=f"dense_{index}",
            )
            for index, units in enumerate(self.hidden_units)
        ]
        self.dropout_layers = [
            SeededDropout(dropout, seed + index, name=f"dropout_{index}")
            for index in range(len(self.hidden_units))
        ]

    def build(self, input_shape: tuple[Any, ...]) -> None:
        """Builds the dense layers."""
        width = input_shape[-1]
        for dense in self.dense_layers:
            dense.build((None, width))
            width = dense.units

    def call(self, x_BK: Any, training: bool | None = None) -> Any:
        """Runs the layers.

        Args:
            x_BK: Flat input, (batch, units).
            training: Whether dropout is on.

        Returns:
            Units of the last layer, (batch, last width).
        """
        for dense, dropout in zip(self.dense_layers, self.dropout_layers, strict=True):
            x_BK = dropout(dense(x_BK), training=training)
        return x_BK

    def compute_output_shape(self, input_shape: tuple[Any, ...]) -> tuple[Any, ...]:
        """(batch, last width)."""
        widths = (input_shape[-1], *self.hidden_units)
        return (input_shape[0], widths[-1])

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "hidden_units": list(self.hidden_units),
            "dropout": self.dropout,
            "seed": self.seed,
        }
