"""Texts that tell points in time to ids and numbers: `DatetimePart` and `Age`.

All arithmetic is in whole numbers, as in the kernels; see `datetime_kernels`.
"""

import re
from pathlib import Path
from typing import Any, Self

import tensorflow as tf

from ctr_pipeline.datetime_formats import (
    COMPONENTS,
    EPOCH_DIGITS,
    EPOCH_DIVISORS,
    FIRST_SHORT_YEAR,
    ISO,
    ISO_REGEX,
    MONTHS,
    check_format,
    time_pattern,
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

_EPOCH_REGEX = rf"-?([0-9]{{1,{EPOCH_DIGITS - 1}}}|[0-8][0-9]{{{EPOCH_DIGITS - 1}}})(\.[0-9]+)?"
_DAYS_OF_MONTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


class _DatetimeLayer(ElementwiseLayer):
    """Reads points in time by `format`."""

    def __init__(self, format: str, **options: Any) -> None:
        super().__init__(**options)
        self.format = check_format(format)

    def _seconds(self, values: tf.Tensor) -> tf.Tensor:
        return _seconds_of(as_text(values), self.format)

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


def _seconds_of(text: tf.Tensor, format: str) -> tf.Tensor:
    text = tf.strings.strip(text)
    iso = _regex_seconds(text, ISO_REGEX)
    if format == ISO:
        return iso
    if format in EPOCH_DIVISORS:
        seconds = _epoch_seconds(text, EPOCH_DIVISORS[format])
    else:
        pattern = time_pattern(format)
        seconds = _regex_seconds(text, pattern.regex, has_short_year=pattern.has_short_year)
    return tf.where(tf.equal(seconds, NO_TIME), iso, seconds)


def _epoch_seconds(text: tf.Tensor, divisor: int) -> tf.Tensor:
    is_number = tf.strings.regex_full_match(text, _EPOCH_REGEX)
    whole = tf.strings.regex_replace(tf.where(is_number, text, "0"), r"\..*", "")
    number = tf.strings.to_number(whole, tf.int64)
    return _bounded(tf.math.floordiv(number, tf.constant(divisor, tf.int64)), is_number)


def _regex_seconds(text: tf.Tensor, regex: str, *, has_short_year: bool = False) -> tf.Tensor:
    """Seconds of texts that a regular expression takes apart, by the names of its groups."""
    is_good = tf.strings.regex_full_match(text, f"(?s:{_plain(regex, '')})")

    def part(name: str) -> tf.Tensor:
        """What a group took; empty without one."""
        if f"(?P<{name}>" not in regex:
            return tf.zeros_like(text)
        found = tf.strings.regex_replace(text, f"(?s)^{_plain(regex, name)}$", r"\1")
        return tf.where(is_good, found, "")

    def number(name: str) -> tf.Tensor:
        digits = part(name)
        return tf.strings.to_number(tf.where(tf.equal(digits, ""), "0", digits), tf.int64)

    year, month, day, hour, minute, second = (number(name) for name in COMPONENTS)
    if has_short_year:
        year += tf.where(year >= FIRST_SHORT_YEAR, tf.constant(1900, tf.int64), 2000)
    if "(?P<month_name>" in regex:
        name = tf.strings.lower(part("month_name"))
        month = tf.add_n(
            [place * tf.cast(tf.equal(name, one), tf.int64) for place, one in enumerate(MONTHS, 1)]
        )
    if "(?P<half>" in regex:
        is_good &= (hour >= 1) & (hour <= 12)
        is_late = tf.equal(tf.strings.lower(part("half")), "p")
        hour = hour % 12 + 12 * tf.cast(is_late, tf.int64)
    local = _civil_seconds([year, month, day], hour, minute, second)
    hours, minutes = number("offset_hours"), number("offset_minutes")
    offset = 60 * (60 * hours + minutes)
    seconds = local - tf.where(tf.equal(part("sign"), "-"), -offset, offset)
    is_good &= tf.not_equal(local, NO_TIME) & (hours <= 23) & (minutes <= 59)
    return _bounded(seconds, is_good)


def _plain(regex: str, name: str) -> str:
    """The regular expression with one of its named groups as the first one, without the others."""
    return re.sub(r"\(\?P<\w+>", "(?:", regex.replace(f"(?P<{name}>", "("))


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
