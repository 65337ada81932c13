"""Dropout whose masks are a hash of (seed, step, place).

Axes: B batch, K units.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

_LOW_32_BITS = 0xFFFFFFFF
_GOLDEN = 0x9E3779B9
_MIX_1 = 0x85EBCA6B
_MIX_2 = 0xC2B2AE35


@keras.saving.register_keras_serializable(package="ctr_pipeline")
class SeededDropout(keras.layers.Layer):
    """Sets a share of the units to zero while training and scales up the others.

    Srivastava et al. 2014, "Dropout" (JMLR 15), scaled while training. Unit (b, k) is dropped where
    a 32-bit hash of its place, keyed by the state of the layer's seed generator, is below the rate:
    a mask is the same in eager mode and under XLA and on every machine, which
    `keras.layers.Dropout` is not, and it is fused into the product where XLA compiles. (Under XLA
    on CPUs Keras's dropout falls back to a generator that takes hundreds of times as long.)

    The hash is the finaliser of MurmurHash3 (A. Appleby, 2011) over keyed rows and units.

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
        # Both halves of the state go through the mixer before they meet a place: masks of
        # neighbouring seeds and steps would be copies of each other with a few places swapped.
        first_key = _mix(state[0] + _word(self.seed * _GOLDEN))
        second_key = _mix(state[1] + first_key)
        batch_size, num_units = ops.shape(x_BK)
        row_B1 = ops.cast(ops.arange(batch_size, dtype="int32"), "uint32")[:, None]
        unit_1K = ops.cast(ops.arange(num_units, dtype="int32"), "uint32")[None, :]
        row_B1 = _mix(row_B1 * _word(_GOLDEN) + first_key)
        unit_1K = _mix(unit_1K * _word(_GOLDEN) + second_key)
        # Mixed once more, or masks of two rows would be shifts of each other.
        hash_BK = _mix(row_B1 + unit_1K)
        # The bound is exact to 2**-32.
        kept_BK = hash_BK >= _word(round(self.rate * 2**32))
        return ops.where(kept_BK, x_BK * (1.0 / (1.0 - self.rate)), 0.0)

    def compute_output_shape(self, input_shape: tuple[Any, ...]) -> tuple[Any, ...]:
        """(batch, units)."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "rate": self.rate, "seed": self.seed}


def _word(value: int) -> Any:
    return ops.convert_to_tensor(np.uint32(value & _LOW_32_BITS))


def _mix(bits: Any) -> Any:
    """Finaliser of MurmurHash3's 32-bit variant: every input bit moves every output bit."""
    bits = ops.bitwise_xor(bits, ops.right_shift(bits, _word(16)))
    bits = bits * _word(_MIX_1)
    bits = ops.bitwise_xor(bits, ops.right_shift(bits, _word(13)))
    bits = bits * _word(_MIX_2)
    return ops.bitwise_xor(bits, ops.right_shift(bits, _word(16)))
