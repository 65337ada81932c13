"""One cross layer, in the vector form of DCN and the matrix form of DCNv2.

Axes: B batch, K units.
"""

from typing import Any, Literal

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="ctr_pipeline")
class Cross(keras.layers.Layer):
    """Multiplies what came so far by the first input once more, explicitly and with a residual.

    form "vector": `x_{l+1} = x_0 (x_l · w) + b + x_l`, Eq. (3) of Wang et al. 2017, "Deep & Cross
    Network" (arXiv:1708.05123). The product is taken in this order, a number a row times a vector;
    the outer product `x_0 x_lᵀ` of the equation is never formed.
    form "matrix": `x_{l+1} = x_0 ∘ (W x_l + b) + x_l`, Eq. (1) of Wang et al. 2021, "DCN V2"
    (arXiv:2008.13535), with a full matrix.

    Args:
        form: Which of the two.
        seed: Seed of the Glorot uniform initial weights; biases start at zero.
    """

    def __init__(
        self, form: Literal["vector", "matrix"] = "matrix", seed: int = 0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        if form not in {"vector", "matrix"}:
            raise ValueError(f"form must be 'vector' or 'matrix', received {form!r}")
        self.form = form
        self.seed = seed

    def build(self, first_BK_shape: tuple[Any, ...], current_BK_shape: tuple[Any, ...]) -> None:
        """Makes the kernel, (K, 1) or (K, K), and the bias."""
        units = first_BK_shape[-1]
        if current_BK_shape[-1] != units:
            raise ValueError(f"x_0 has {units} units but x_l has {current_BK_shape[-1]}")
        self.kernel = self.add_weight(
            shape=(units, 1 if self.form == "vector" else units),
            initializer=keras.initializers.GlorotUniform(seed=self.seed),
            name="kernel",
        )
        self.bias_K = self.add_weight(shape=(units,), initializer="zeros", name="bias")

    def call(self, first_BK: Any, current_BK: Any) -> Any:
        """Crosses once more.

        Args:
            first_BK: The network's input x_0, (batch, units).
            current_BK: The output x_l of the layer before, (batch, units).

        Returns:
            x_{l+1}, (batch, units).
        """
        product = ops.matmul(current_BK, self.kernel)
        if self.form == "vector":
            return first_BK * product + self.bias_K + current_BK
        return first_BK * (product + self.bias_K) + current_BK

    def compute_output_shape(
        self, first_BK_shape: tuple[Any, ...], current_BK_shape: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        """(batch, units)."""
        del current_BK_shape
        return first_BK_shape

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "form": self.form, "seed": self.seed}
