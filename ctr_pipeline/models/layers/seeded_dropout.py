"""Dropout whose masks are a hash of (seed, step, place).

Axes: B batch, K units.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

_LOW_32_BITS = 0xFFFFFFFF


@keras.saving.register_keras_serializable(package="ctr_pipeline")
class SeededDropout(keras.layers.Layer):
    """Sets a share of the units to zero while training and scales up the others.

    Srivastava et al. 2014, "Dropout" (JMLR 15), scaled while training. Unit (b, k) is dropped where
    a 32-bit hash of its place, keyed by the state of the layer's seed generator, is below the rate:
    a mask is the same in eager mode and under XLA and on every machine, which
    `keras.layers.Dropout` is not, and it is fused into the product where XLA compiles. (Under XLA
    on CPUs Keras's dropout falls back to a generator that takes hundreds of times as long.)

    The hash is "lowbias32" (C. Wellons, "Prospecting for Hash Functions", 2018), with one half of
    the key going in before the first round and the other before the second.

    Args:
        rate: Share of units dropped, in [0, 1).
        seed: Part of the key beside the generator's state, so that two layers differ even where
            a caller of `stateless_call` gives both the same state.
    """

    def __init__(self, rate: float, seed: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not 0 <= rate < 1:
            raise ValueError(f"rate must be in [0, 1), received {rate}")
        self.rate = rate
        self.seed = seed
        self.seed_generator = (
            keras.random.SeedGenerator(seed, name="seed_generator") if rate > 0 else None
        )
        self.built = True

    def call(self, x_BK: Any, training: bool | None = None) -> Any:
        """Drops units.

        Args:
            x_BK: Units, (batch, units).
            training: Whether to drop; otherwise the input is returned.

        Returns:
            (batch, units).
        """
        if not training or self.seed_generator is None:
            return x_BK
        state = ops.cast(ops.bitwise_and(self.seed_generator.next(), _LOW_32_BITS), "uint32")
        salt = ops.convert_to_tensor(np.uint32(self.seed & _LOW_32_BITS))
        first_key = _mix(state[0] ^ salt, state[1])
        second_key = _mix(state[1] ^ salt, first_key)
        num_units = x_BK.shape[-1]
        row_B1 = ops.cast(ops.arange(ops.shape(x_BK)[0], dtype="int32"), "uint32")[:, None]
        unit_1K = ops.convert_to_tensor(np.arange(num_units, dtype=np.uint32)[None, :])
        place_BK = row_B1 * np.uint32(num_units) + unit_1K
        hash_BK = _mix(place_BK ^ first_key, second_key)
        # The bound is exact to 2**-32.
        kept_BK = hash_BK >= np.uint32(round(self.rate * 2**32))
        return ops.where(kept_BK, x_BK * (1.0 / (1.0 - self.rate)), 0.0)

    def compute_output_shape(self, input_shape: tuple[Any, ...]) -> tuple[Any, ...]:
        """(batch, units)."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "rate": self.rate, "seed": self.seed}


def _mix(x: Any, key: Any) -> Any:
    """lowbias32 of uint32, `key` added between the rounds; wraps modulo 2**32."""
    x = x ^ ops.right_shift(x, np.uint32(16))
    x = x * np.uint32(0x7FEB352D)
    x = x ^ ops.right_shift(x, np.uint32(15))
    x = (x + key) * np.uint32(0x846CA68B)
    return x ^ ops.right_shift(x, np.uint32(16))
