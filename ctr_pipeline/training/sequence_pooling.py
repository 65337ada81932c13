"""How the positions of a sequence are pooled into one field.

Axes: B batch, F fields, S positions, L positions of a field, C coefficients, N numbers, W values of
an id.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf


@dataclass(frozen=True)
class PooledField:
    """A field of several positions.

    Attributes:
        num_positions: L.
        is_max: Whether to take the maximum of each value over positions whose coefficient is not 0;
            otherwise the sum of values times coefficients.
    """

    num_positions: int
    is_max: bool


@dataclass(frozen=True)
class SequencePooling:
    """How positions become fields: first the fields of one position, then the pooled ones.

    Attributes:
        num_plain: Number of fields of one position.
        pooled: The other fields.
        num_numbers: N; the coefficients of all positions follow the numbers.
        apart: Whether the model also takes the single positions of pooled fields.
    """

    num_plain: int
    pooled: Sequence[PooledField]
    num_numbers: int
    apart: bool = False

    def elements(self, values_BSW: Any, floats: Any) -> tuple[Any, Any]:
        """Returns values and coefficients of the positions that are pooled.

        Args:
            values_BSW: Values of the id in each position.
            floats: Numbers and coefficients, float32 [B, N + C].

        Returns:
            [B, C, W] and [B, C]; the coefficient of an empty position is 0.
        """
        return values_BSW[:, self.num_plain :], floats[:, self.num_numbers :]

    def numbers(self, floats: Any) -> Any:
        """Returns the numbers [B, N] of [B, N + C]."""
        return floats[:, : self.num_numbers]

    def pool(self, values_BSW: Any, floats: Any) -> Any:
        """Pools positions into fields; a field without elements is all zeros.

        Args:
            values_BSW: Values of the id in each position.
            floats: Numbers and coefficients, float32 [B, N + C].

        Returns:
            [B, F, W].
        """
        parts = [values_BSW[:, : self.num_plain]]
        position, place = self.num_plain, self.num_numbers
        for field in self.pooled:
            values_BLW = values_BSW[:, position : position + field.num_positions]
            coefficients_BL1 = floats[:, place : place + field.num_positions, None]
            parts.append(_pool(values_BLW, coefficients_BL1, is_max=field.is_max))
            position += field.num_positions
            place += field.num_positions
        return tf.concat(parts, axis=1)


def _pool(values_BLW: Any, coefficients_BL1: Any, *, is_max: bool) -> Any:
    if not is_max:
        return tf.reduce_sum(values_BLW * coefficients_BL1, axis=1, keepdims=True)
    is_there_BL1 = coefficients_BL1 != 0.0
    lowest = tf.where(is_there_BL1, values_BLW, tf.constant(values_BLW.dtype.min, values_BLW.dtype))
    largest_B1W = tf.reduce_max(lowest, axis=1, keepdims=True)
    any_B11 = tf.reduce_any(is_there_BL1, axis=1, keepdims=True)
    return tf.where(any_B11, largest_B1W, tf.zeros_like(largest_B1W))
