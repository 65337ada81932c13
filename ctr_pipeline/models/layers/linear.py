"""The first-order term.

Axes: B batch, F fields, N numbers.
"""

from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="ctr_pipeline")
class Linear(keras.layers.Layer):
    """`b + Σ_f w[id_f] + numbers · w_n`: the linear part of a factorization machine.

    The first two terms of Eq. (1) in Rendle, "Factorization Machines" (ICDM 2010), which is also
    the wide part of Cheng et al. 2016 (arXiv:1606.07792, Section 3.1). The weights of ids come in
    as values, already looked up; the layer owns `b` and `w_n` alone. `w_n` starts at zero.

    Args:
        initial_bias: First value of `b`; the logit of the click rate makes an untrained model
            right on average.
    """

    def __init__(
        self, initial_bias: float = 0.0, name: str = "linear_logit", **kwargs: Any
    ) -> None:
        # Keras's automatic name would be "linear", which is an input's.
        # Its result is a part of the logit, of which bfloat16 would keep three digits.
        super().__init__(name=name, **{"dtype": "float32", **kwargs})
        self.initial_bias = initial_bias

    def build(self, linear_BF_shape: tuple[Any, ...], numbers_BN_shape: tuple[Any, ...]) -> None:
        """Makes `b`, and `w_n` if there are numbers."""
        self.bias = self.add_weight(
            shape=(), initializer=keras.initializers.Constant(self.initial_bias), name="bias"
        )
        num_numbers = numbers_BN_shape[-1]
        # A variable without elements would only burden optimizers and checkpoints.
        self.kernel_N = (
            self.add_weight(shape=(num_numbers,), initializer="zeros", name="kernel")
            if num_numbers
            else None
        )

    def call(self, linear_BF: Any, numbers_BN: Any) -> Any:
        """Sums the weights and weighs the numbers.

        Args:
            linear_BF: Linear weight of each field's id, (batch, fields).
            numbers_BN: Dense inputs, (batch, numbers).

        Returns:
            Logits, (batch,).
        """
        logit_B = ops.sum(linear_BF, axis=-1) + self.bias
        if self.kernel_N is not None:
            logit_B += ops.matmul(numbers_BN, self.kernel_N)
        return logit_B

    def compute_output_shape(
        self, linear_BF_shape: tuple[Any, ...], numbers_BN_shape: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        """(batch,)."""
        del numbers_BN_shape
        return linear_BF_shape[:1]

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "initial_bias": self.initial_bias}
