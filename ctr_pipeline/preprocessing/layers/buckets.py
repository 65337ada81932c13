"""Numbers to ids: `Discretization`, `LogRound`, `RoundIdentity` and `IntervalIds`.

Ids are int64. All compare in float64 with thresholds computed beforehand, so that no logarithm is
taken here.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ctr_pipeline.preprocessing.layers.raw_layer import (
    PACKAGE,
    ElementwiseLayer,
    as_number,
    check_number,
    serves,
)
from ctr_pipeline.transforms.round_identity import RoundIdentityStep
from ctr_pipeline.transforms.shared.intervals import IntervalsStep, boundary_steps, log_round_steps


class _IdLayer(ElementwiseLayer):
    def of_values(self, values: tf.Tensor) -> tf.Tensor:
        """Ids of floats or integers, int64; NaN means missing."""
        return self._ids(as_number(values))

    def result_dtype(self, dtype: tf.DType) -> tf.DType:
        """int64."""
        check_number(dtype)
        return tf.int64

    def _ids(self, values: tf.Tensor) -> tf.Tensor:
        raise NotImplementedError


def _step_ids(
    values: tf.Tensor, thresholds: np.ndarray, ids: np.ndarray, missing_id: int
) -> tf.Tensor:
    if len(thresholds) == 0:
        # searchsorted wants a threshold; one between two equal ids changes nothing.
        thresholds, ids = np.zeros(1), np.repeat(ids, 2)
    flat = tf.reshape(values, [-1])
    missing = tf.math.is_nan(flat)
    positions = tf.searchsorted(
        tf.constant(thresholds, tf.float64), tf.where(missing, tf.zeros_like(flat), flat), "right"
    )
    found = tf.gather(tf.constant(ids, tf.int64), positions)
    return tf.reshape(tf.where(missing, tf.constant(missing_id, tf.int64), found), tf.shape(values))


@serves(IntervalsStep)
class IntervalIds(_IdLayer):
    """`ids[k]` where k is the number of thresholds <= x.

    Args:
        thresholds: T numbers, ascending; T may be 0.
        ids: T + 1 ids.
        missing_id: Id of NaN.
        options: Keyword arguments of `keras.layers.Layer`.

    Raises:
        ValueError: The thresholds descend, or the lengths do not fit.

    Example:
        >>> IntervalIds([0.0, 10.0], [7, 8, 9], missing_id=3)([-1.0, 0.0, float("nan")]).numpy()
        array([7, 8, 3])
    """

    def __init__(
        self, thresholds: Sequence[float], ids: Sequence[int], missing_id: int, **options: Any
    ) -> None:
        super().__init__(**options)
        # Kept as arrays: Keras would wrap a list, and track every element of it.
        self._thresholds = np.asarray(thresholds, np.float64)
        self._step_ids = np.asarray(ids, np.int64)
        self.missing_id = int(missing_id)
        if len(self._step_ids) != len(self._thresholds) + 1:
            raise ValueError(
                f"{len(self._thresholds)} thresholds need {len(self._thresholds) + 1} ids, "
                f"got {len(self._step_ids)}"
            )
        if not np.all(self._thresholds[:-1] <= self._thresholds[1:]):
            raise ValueError("thresholds must not descend")

    def _ids(self, values: tf.Tensor) -> tf.Tensor:
        return _step_ids(values, self._thresholds, self._step_ids, self.missing_id)

    @property
    def num_thresholds(self) -> int:
        """T."""
        return len(self._thresholds)

    @staticmethod
    def of_rows(layers: Sequence["IntervalIds"], values_CB: tf.Tensor) -> tf.Tensor:
        """The ids of C layers, each of a row of values, by a handful of operations.

        Args:
            layers: Layers with similar numbers of thresholds; otherwise memory is wasted.
            values_CB: float64 without subnormal numbers.

        Returns:
            int64 [C, B].
        """
        counts = [layer.num_thresholds for layer in layers]
        thresholds_CT = np.full((len(layers), max(1, *counts)), np.inf)
        for row, layer in enumerate(layers):
            thresholds_CT[row, : counts[row]] = layer._thresholds
        missing_CB = tf.math.is_nan(values_CB)
        positions_CB = tf.searchsorted(
            tf.constant(thresholds_CT, tf.float64),
            tf.where(missing_CB, tf.zeros_like(values_CB), values_CB),
            "right",
        )
        # Infinity is beyond the thresholds that fill a row up as well.
        positions_CB = tf.minimum(positions_CB, tf.constant([[one] for one in counts], tf.int32))
        starts = np.cumsum([0, *(one + 1 for one in counts[:-1])])
        ids = tf.constant(np.concatenate([layer._step_ids for layer in layers]), tf.int64)
        found_CB = tf.gather(ids, positions_CB + tf.constant(starts[:, None], tf.int32))
        missing = tf.constant([[layer.missing_id] for layer in layers], tf.int64)
        return tf.where(missing_CB, missing, found_CB)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "thresholds": self._thresholds.tolist(),
            "ids": self._step_ids.tolist(),
            "missing_id": self.missing_id,
        }


@keras.saving.register_keras_serializable(package=PACKAGE)
class Discretization(_IdLayer):
    """The index of the left-closed interval that holds x: 0 below b0, 1 in [b0, b1), and so on.

    Args:
        bins: B boundaries, strictly ascending; ids are 0..B.
        missing_id: Id of NaN; None: that of the last interval, B.
        options: Keyword arguments of `keras.layers.Layer`.

    Raises:
        ValueError: There are no boundaries, or they do not ascend.

    Example:
        >>> Discretization(bins=[0.0, 1.0, 2.0])([-1.5, 0.0, 0.5, 1.0, 3.4]).numpy()
        array([0, 1, 1, 2, 3])
    """

    def __init__(
        self, bins: Sequence[float], *, missing_id: int | None = None, **options: Any
    ) -> None:
        super().__init__(**options)
        self._bins = np.asarray(bins, np.float64)
        if len(self._bins) == 0:
            raise ValueError("bins is empty")
        if np.isnan(self._bins[0]) or not np.all(self._bins[:-1] < self._bins[1:]):
            raise ValueError("bins must be strictly ascending")
        self.missing_id = missing_id
        self._steps = boundary_steps(self._bins)

    def _ids(self, values: tf.Tensor) -> tf.Tensor:
        missing_id = len(self._bins) if self.missing_id is None else self.missing_id
        return _step_ids(values, self._steps.thresholds, self._steps.ids, missing_id)

    def num_bins(self) -> int:
        """Number of intervals, B + 1."""
        return len(self._bins) + 1

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "bins": self._bins.tolist(),
            "missing_id": self.missing_id,
        }


@keras.saving.register_keras_serializable(package=PACKAGE)
class LogRound(_IdLayer):
    """`round(log(x))`, half to even, where it lies in [0, num_bins), else `default_value`.

    Args:
        num_bins: Number of ids.
        default_value: Id of x <= 0 and of results out of range.
        base: Base of the logarithm; None: e.
        missing_id: Id of NaN; None: the default value.
        options: Keyword arguments of `keras.layers.Layer`.

    Raises:
        ValueError: num_bins is below 1, or the base not above 1.

    Example:
        >>> LogRound(num_bins=16, base=2)([1.2, 1.6, 3.1, 100.0, 0.0]).numpy()
        array([0, 1, 2, 7, 0])
    """

    def __init__(
        self,
        num_bins: int,
        default_value: int = 0,
        base: float | None = None,
        *,
        missing_id: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if num_bins < 1:
            raise ValueError(f"num_bins must be at least 1, got {num_bins}")
        if base is not None and not base > 1:
            raise ValueError(f"base must be above 1, got {base}")
        self.num_bins = int(num_bins)
        self.default_value = int(default_value)
        self.base = None if base is None else float(base)
        self.missing_id = missing_id
        self._steps = log_round_steps(self.num_bins, self.default_value, self.base)

    def _ids(self, values: tf.Tensor) -> tf.Tensor:
        missing_id = self.default_value if self.missing_id is None else self.missing_id
        return _step_ids(values, self._steps.thresholds, self._steps.ids, missing_id)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "num_bins": self.num_bins,
            "default_value": self.default_value,
            "base": self.base,
            "missing_id": self.missing_id,
        }


@serves(RoundIdentityStep)
class RoundIdentity(_IdLayer):
    """`round(x)`, half to even, where it lies in [0, num_buckets), else `default_value`.

    Args:
        num_buckets: Number of ids.
        default_value: Id of values out of range.
        missing_id: Id of NaN; None: the default value.
        options: Keyword arguments of `keras.layers.Layer`.

    Raises:
        ValueError: num_buckets is below 1.

    Example:
        >>> RoundIdentity(num_buckets=5)([1.2, 1.6, 0.2, 3.1, 4.9]).numpy()
        array([1, 2, 0, 3, 0])
    """

    def __init__(
        self,
        num_buckets: int,
        default_value: int = 0,
        *,
        missing_id: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if num_buckets < 1:
            raise ValueError(f"num_buckets must be at least 1, got {num_buckets}")
        self.num_buckets = int(num_buckets)
        self.default_value = int(default_value)
        self.missing_id = missing_id

    def _ids(self, values: tf.Tensor) -> tf.Tensor:
        missing_id = self.default_value if self.missing_id is None else self.missing_id
        rounded = tf.math.rint(values)
        inside = (rounded >= 0.0) & (rounded < tf.constant(self.num_buckets, tf.float64))
        # Only values inside are cast: a huge float has no integer.
        ids = tf.cast(tf.where(inside, rounded, tf.zeros_like(rounded)), tf.int64)
        ids = tf.where(inside, ids, tf.constant(self.default_value, tf.int64))
        return tf.where(tf.math.is_nan(values), tf.constant(missing_id, tf.int64), ids)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "num_buckets": self.num_buckets,
            "default_value": self.default_value,
            "missing_id": self.missing_id,
        }
