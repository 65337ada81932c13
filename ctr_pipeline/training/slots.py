"""Slots of ids to fields: which belong together, and how their values become one.

Axes: B batch, F fields, S slots, L slots of a field, C coefficients, N numbers, W values of an id.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf


@dataclass(frozen=True)
class PooledField:
    """A field of several slots.

    Attributes:
        num_slots: L.
        is_max: The largest of each value, where the coefficient is not 0; else the sum of values
            times coefficients.
    """

    num_slots: int
    is_max: bool


@dataclass(frozen=True)
class Slots:
    """How slots become fields: the first ones are fields as they are, then come pooled ones.

    Attributes:
        num_plain: Fields of one slot.
        pooled: The other fields.
        num_numbers: N; coefficients stand after the numbers, slot after slot.
        apart: Whether the model is also given the slots of pooled fields one by one.
    """

    num_plain: int
    pooled: Sequence[PooledField]
    num_numbers: int
    apart: bool = False

    def elements(self, values_BSW: Any, floats: Any) -> tuple[Any, Any]:
        """Values and coefficients of the slots that are pooled, one by one.

        Args:
            values_BSW: Values of the id in each slot.
            floats: Numbers and coefficients, float32 [B, N + C].

        Returns:
            [B, C, W] and [B, C]; a coefficient is 0 where no element is.
        """
        return values_BSW[:, self.num_plain :], floats[:, self.num_numbers :]

    def numbers(self, floats: Any) -> Any:
        """The numbers of [B, N + C]: [B, N]."""
        return floats[:, : self.num_numbers]

    def pool(self, values_BSW: Any, floats: Any) -> Any:
        """The values of fields; those without any element are zeros.

        Args:
            values_BSW: Values of the id in each slot.
            floats: Numbers and coefficients, float32 [B, N + C].

        Returns:
            [B, F, W].
        """
        parts = [values_BSW[:, : self.num_plain]]
        slot, place = self.num_plain, self.num_numbers
        for field in self.pooled:
            values_BLW = values_BSW[:, slot : slot + field.num_slots]
            coefficients_BL1 = floats[:, place : place + field.num_slots, None]
            parts.append(_pool(values_BLW, coefficients_BL1, is_max=field.is_max))
            slot += field.num_slots
            place += field.num_slots
        return tf.concat(parts, axis=1)


def _pool(values_BLW: Any, coefficients_BL1: Any, *, is_max: bool) -> Any:
    if not is_max:
        return tf.reduce_sum(values_BLW * coefficients_BL1, axis=1, keepdims=True)
    is_there_BL1 = coefficients_BL1 != 0.0
    lowest = tf.where(is_there_BL1, values_BLW, tf.constant(values_BLW.dtype.min, values_BLW.dtype))
    largest_B1W = tf.reduce_max(lowest, axis=1, keepdims=True)
    any_B11 = tf.reduce_any(is_there_BL1, axis=1, keepdims=True)
    return tf.where(any_B11, largest_B1W, tf.zeros_like(largest_B1W))
