"""One cross layer, in the vector form of DCN and the matrix forms of DCNv2.

Axes: B batch, K units, R rank.
"""

from typing import Any, Literal

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="ctr_pipeline")
class Cross(keras.layers.Layer):
    """Multiplies the network's input by a projection of the current features and adds these.

    - form "vector": `x_{l+1} = x_0 (x_l · w) + b + x_l`, Eq. (3) of Wang et al. 2017, "Deep & Cross
      Network" (arXiv:1708.05123). `x_l · w` is computed first, one number per row; the outer
      product `x_0 x_lᵀ` of the equation is never formed.
    - form "matrix": `x_{l+1} = x_0 ∘ (W x_l + b) + x_l`, Eq. (1) of Wang et al. 2021, "DCN V2"
      (arXiv:2008.13535).
    - form "matrix" with a `rank`: the same with `W = U Vᵀ`, Eq. (2) of that paper.

    There is no `diag_scale` as in Keras RS, which adds a constant multiple of `x_0 ∘ x_l`: neither
    paper has it, and a W of full rank can learn it.

    Example:
    ```python
    x_0 = keras.Input((64,))
    x_1 = Cross(rank=16)(x_0)
    x_2 = Cross(rank=16)(x_0, x_1)
    ```

    Args:
        form: "vector" or "matrix".
        seed: Seed of the Glorot uniform initial weights; biases start at zero.
        rank: Columns of U and V; None for a full matrix. It saves weights below half the units.

    Raises:
        ValueError: The form is unknown, or the rank is below 1 or given for the form "vector".
    """

    def __init__(
        self,
        form: Literal["vector", "matrix"] = "matrix",
        seed: int = 0,
        rank: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if form not in {"vector", "matrix"}:
            raise ValueError(f"form must be 'vector' or 'matrix', received {form!r}")
        if rank is not None and (form == "vector" or rank < 1):
            raise ValueError(f"rank must be at least 1, for form 'matrix', received {rank}")
        self.form = form
        self.seed = seed
        self.rank = rank

    def build(
        self, first_BK_shape: tuple[Any, ...], current_BK_shape: tuple[Any, ...] | None = None
    ) -> None:
        """Makes the weights: kernel (K, 1) or (K, K), or V (K, R) and U (R, K); bias (K,)."""
        units = first_BK_shape[-1]
        if current_BK_shape is not None and current_BK_shape[-1] != units:
            raise ValueError(f"x_0 has {units} units but x_l has {current_BK_shape[-1]}")
        self.down_KR = None
        if self.rank is not None:
            self.down_KR = self._add_kernel((units, self.rank), "down_kernel", self.seed + 1)
        rows, columns = self.rank or units, 1 if self.form == "vector" else units
        self.kernel = self._add_kernel((rows, columns), "kernel", self.seed)
        self.bias_K = self.add_weight(shape=(units,), initializer="zeros", name="bias")

    def _add_kernel(self, shape: tuple[int, int], name: str, seed: int) -> Any:
        initializer = keras.initializers.GlorotUniform(seed=seed)
        return self.add_weight(shape=shape, initializer=initializer, name=name)

    def call(self, first_BK: Any, current_BK: Any = None) -> Any:
        """Crosses once more.

        Args:
            first_BK: The network's input x_0, (batch, units).
            current_BK: The output x_l of the layer before, (batch, units); None for x_0 itself.

        Returns:
            x_{l+1}, (batch, units).
        """
        if current_BK is None:
            current_BK = first_BK
        product = current_BK if self.down_KR is None else ops.matmul(current_BK, self.down_KR)
        product = ops.matmul(product, self.kernel)
        if self.form == "vector":
            return first_BK * product + self.bias_K + current_BK
        return first_BK * (product + self.bias_K) + current_BK

    def compute_output_shape(
        self, first_BK_shape: tuple[Any, ...], current_BK_shape: tuple[Any, ...] | None = None
    ) -> tuple[Any, ...]:
        """(batch, units)."""
        del current_BK_shape
        return first_BK_shape

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "form": self.form, "seed": self.seed, "rank": self.rank}
