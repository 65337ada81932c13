"""Texts that tell points in time to ids and numbers: `DatetimePart` and `Age`.

All arithmetic is in whole numbers, as in the kernels; see `datetime_kernels`.
"""

from pathlib import Path
from typing import Any, Self

import tensorflow as tf

from ctr_pipeline.datetime_formats import (
    EPOCH_DIGITS,
    EPOCH_DIVISORS,
    FIRST_SHORT_YEAR,
    ISO,
    check_format,
    fixed_format,
)
from ctr_pipeline.kernels.time_parsing import FIRST_SECOND, LAST_SECOND, NO_TIME
from ctr_pipeline.preprocessing.layers.raw_layer import (
    ElementwiseLayer,
    as_text,
    check_text,
    serves,
)
from ctr_pipeline.transforms.age import AgeStep
from ctr_pipeline.transforms.datetime import PART_SIZES, DatetimePartStep

_ISO_REGEX = (
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"([T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?(Z|[+-][0-9]{2}:?[0-9]{2})?)?"
)
_EPOCH_REGEX = rf"-?([0-9]{{1,{EPOCH_DIGITS - 1}}}|[0-8][0-9]{{{EPOCH_DIGITS - 1}}})"
_DAYS_OF_MONTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


class _DatetimeLayer(ElementwiseLayer):
    """Reads points in time by `format`."""

    def __init__(self, format: str, **options: Any) -> None:
        super().__init__(**options)
        self.format = check_format(format)

    def _seconds(self, values: tf.Tensor) -> tf.Tensor:
        text = as_text(values)
        if self.format == ISO:
            return _iso_seconds(text)
        if self.format in EPOCH_DIVISORS:
            return _epoch_seconds(text, EPOCH_DIVISORS[self.format])
        return _fixed_seconds(text, self.format)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "format": self.format}


@serves(DatetimePartStep)
class DatetimePart(_DatetimeLayer):
    """A part of a point in time as an id: hour, weekday (Monday is 0), day of the month.

    Args:
        part: minute, hour, hour_of_week, weekday, is_weekend, day or month.
        format: iso, epoch_seconds (or _milliseconds, _microseconds, _nanoseconds), or a pattern
            such as %d.%m.%Y.
        utc_offset_minutes: By how much the clock is ahead of UTC.
        options: Keyword arguments of `keras.layers.Layer`.

    Raises:
        ValueError: The part or the format is unknown.

    Example:
        >>> DatetimePart("weekday")(["2024-03-31", "2024-04-01T08:30:00+02:00", "soon"]).numpy()
        array([6, 0, 7])
    """

    def __init__(
        self, part: str, format: str = ISO, utc_offset_minutes: int = 0, **options: Any
    ) -> None:
        super().__init__(format, **options)
        if part not in PART_SIZES:
            raise ValueError(f"part must be one of {', '.join(PART_SIZES)}, got '{part}'")
        self.part = part
        self.utc_offset_minutes = int(utc_offset_minutes)

    def of_values(self, values: tf.Tensor) -> tf.Tensor:
        """Ids of text or integers, int64; where a text tells no time the number of ids."""
        seconds = self._seconds(values)
        ids = _part(seconds + 60 * self.utc_offset_minutes, self.part)
        size = tf.constant(PART_SIZES[self.part], tf.int64)
        return tf.where(tf.equal(seconds, NO_TIME), size, ids)

    def result_dtype(self, dtype: tf.DType) -> tf.DType:
        """int64."""
        check_text(dtype)
        return tf.int64

    @classmethod
    def of_step(cls, step: Any, folder: Path) -> Self:
        """Makes the layer; the id of a missing value follows those of the part."""
        del folder
        return cls(step.part, step.format, step.utc_offset_minutes)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "part": self.part,
            "utc_offset_minutes": self.utc_offset_minutes,
        }


@serves(AgeStep)
class Age(_DatetimeLayer):
    """Days from a point in time to another; NaN where a text tells none.

    Args:
        at_seconds: The other, in seconds since 1970.
        format: iso, epoch_seconds (or _milliseconds, _microseconds, _nanoseconds), or a pattern
            such as %d.%m.%Y.
        options: Keyword arguments of `keras.layers.Layer`; the result is float32 unless `dtype`
            says otherwise.

    Raises:
        ValueError: The format is unknown.

    Example:
        >>> Age(at_seconds=86_400)(["1970-01-01", "1969-12-31T12:00", ""]).numpy()
        array([1. , 1.5, nan], dtype=float32)
    """

    def __init__(self, at_seconds: int, format: str = ISO, **options: Any) -> None:
        super().__init__(format, **options)
        self.at_seconds = int(at_seconds)

    def of_values(self, values: tf.Tensor) -> tf.Tensor:
        """Ages of text or integers, in the layer's compute type."""
        seconds = self._seconds(values)
        since = tf.cast(tf.constant(self.at_seconds, tf.int64) - seconds, tf.float64)
        # Not `/`, which the graph rewriter would turn into a multiplication.
        days = tf.math.divide_no_nan(since, tf.constant(86_400.0, tf.float64))
        no_time = tf.equal(seconds, NO_TIME)
        nan = tf.constant(float("nan"), tf.float64)
        return tf.cast(tf.where(no_time, nan, days), self.compute_dtype)

    def result_dtype(self, dtype: tf.DType) -> tf.DType:
        """The layer's compute type."""
        check_text(dtype)
        return tf.as_dtype(self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "at_seconds": self.at_seconds}


def _iso_seconds(text: tf.Tensor) -> tf.Tensor:
    is_iso = tf.strings.regex_full_match(text, _ISO_REGEX)
    # From here on every text is good, and each step brings it nearer to YYYY-MM-DDTHH:MM:SS+HHMM.
    full = tf.where(is_iso, text, "1970-01-01")
    full = tf.where(tf.equal(tf.strings.length(full), 10), full + "T00:00", full)
    full = tf.strings.regex_replace(full, r"^(.{16})((Z|[+-][0-9]{2}:?[0-9]{2})?)$", r"\1:00\2")
    full = tf.strings.regex_replace(full, r"\.[0-9]+", "")
    full = tf.where(tf.equal(tf.strings.length(full), 19), full + "Z", full)
    full = tf.strings.regex_replace(full, r"Z$", "+0000")
    full = tf.strings.regex_replace(full, r"^(.{19})([+-][0-9]{2}):([0-9]{2})$", r"\1\2\3")

    def number(start: int, width: int) -> tf.Tensor:
        return tf.strings.to_number(tf.strings.substr(full, start, width), tf.int64)

    hours, minutes = number(20, 2), number(22, 2)
    is_west = tf.equal(tf.strings.substr(full, 19, 1), "-")
    offset = 60 * hours + minutes
    local = _civil_seconds(
        [number(*place) for place in ((0, 4), (5, 2), (8, 2))],
        number(11, 2),
        number(14, 2),
        number(17, 2),
    )
    seconds = local - 60 * tf.where(is_west, -offset, offset)
    is_good = is_iso & tf.not_equal(local, NO_TIME) & (hours <= 23) & (minutes <= 59)
    return _bounded(seconds, is_good)


def _epoch_seconds(text: tf.Tensor, divisor: int) -> tf.Tensor:
    is_number = tf.strings.regex_full_match(text, _EPOCH_REGEX)
    number = tf.strings.to_number(tf.where(is_number, text, "0"), tf.int64)
    return _bounded(tf.math.floordiv(number, tf.constant(divisor, tf.int64)), is_number)


def _fixed_seconds(text: tf.Tensor, format: str) -> tf.Tensor:
    fixed = fixed_format(format)
    is_good = tf.strings.regex_full_match(text, f"(?s){fixed.regex}")
    zeros = bytes(
        literal if component < 0 else ord("0")
        for component, literal in zip(fixed.components, fixed.literals, strict=True)
    )
    good = tf.where(is_good, text, zeros)

    def number(component: int) -> tf.Tensor:
        if component not in fixed.components:
            return tf.zeros_like(is_good, tf.int64)
        start, width = fixed.components.index(component), fixed.components.count(component)
        return tf.strings.to_number(tf.strings.substr(good, start, width), tf.int64)

    year = number(0)
    if fixed.has_short_year:
        year += tf.where(year >= FIRST_SHORT_YEAR, tf.constant(1900, tf.int64), 2000)
    seconds = _civil_seconds([year, number(1), number(2)], number(3), number(4), number(5))
    return tf.where(is_good, seconds, tf.constant(NO_TIME, tf.int64))


def _civil_seconds(
    date: list[tf.Tensor], hour: tf.Tensor, minute: tf.Tensor, second: tf.Tensor
) -> tf.Tensor:
    """Seconds since 1970, NO_TIME where there is no such day or time of day."""
    year, month, day = date
    is_leap = (tf.equal(year % 4, 0) & tf.not_equal(year % 100, 0)) | tf.equal(year % 400, 0)
    place = tf.clip_by_value(month, 1, 12) - 1
    last = tf.gather(tf.constant(_DAYS_OF_MONTHS, tf.int64), place)
    last += tf.cast(is_leap & tf.equal(month, 2), tf.int64)
    is_good = (year >= 1) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= last)
    is_good &= (hour <= 23) & (minute <= 59) & (second <= 59)
    shifted = year - tf.cast(month <= 2, tf.int64)
    era = shifted // 400
    of_era = shifted - 400 * era
    of_year = (153 * tf.where(month > 2, month - 3, month + 9) + 2) // 5 + day - 1
    days = era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468
    seconds = days * 86_400 + 3600 * hour + 60 * minute + second
    return tf.where(is_good, seconds, tf.constant(NO_TIME, tf.int64))


def _bounded(seconds: tf.Tensor, is_good: tf.Tensor) -> tf.Tensor:
    is_good &= (seconds >= FIRST_SECOND) & (seconds <= LAST_SECOND)
    return tf.where(is_good, seconds, tf.constant(NO_TIME, tf.int64))


def _part(local: tf.Tensor, part: str) -> tf.Tensor:
    days, minutes = local // 86_400, local % 86_400 // 60
    weekday = (days + 3) % 7
    if part == "minute":
        return minutes % 60
    if part == "hour":
        return minutes // 60
    if part == "hour_of_week":
        return 24 * weekday + minutes // 60
    if part == "weekday":
        return weekday
    if part == "is_weekend":
        return weekday // 5
    of_era = (days + 719_468) % 146_097
    year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    from_march = (5 * of_year + 2) // 153
    if part == "month":
        return (from_march + 2) % 12
    return of_year - (153 * from_march + 2) // 5
