"""Texts to points in time, by the formats of `datetime_formats`.

Points in time are whole seconds since 1970-01-01T00:00 UTC, int64, from the year 1 to 9999;
`NO_TIME` where a text is missing or tells none. Calendars are computed as H. Hinnant shows,
"chrono-compatible low-level date algorithms" (2013), days_from_civil.
"""

import numpy as np
from numba import njit

from ctr_pipeline.datetime_formats import (
    EPOCH_DIGITS,
    EPOCH_DIVISORS,
    FIRST_SHORT_YEAR,
    ISO,
    fixed_format,
)
from ctr_pipeline.kernels.compilation import kernel
from ctr_pipeline.kernels.text_buffers import TextBuffers, is_null

NO_TIME = -(2**62)
FIRST_SECOND = -62_135_596_800
"""0001-01-01T00:00:00."""
LAST_SECOND = 253_402_300_799
"""9999-12-31T23:59:59."""

_ISO_MINUTES, _ISO_SECONDS = 16, 19


def parse_seconds(text: TextBuffers, format: str) -> np.ndarray:
    """int64 [N], seconds since 1970 or NO_TIME."""
    seconds = np.empty(len(text.offsets) - 1, np.int64)
    if format == ISO:
        _parse_iso(text, seconds)
    elif format in EPOCH_DIVISORS:
        _parse_epoch(text, EPOCH_DIVISORS[format], EPOCH_DIGITS, seconds)
    else:
        fixed = fixed_format(format)
        components = np.array(fixed.components, np.int64)
        literals = np.frombuffer(fixed.literals, np.uint8)
        first_short_year = FIRST_SHORT_YEAR if fixed.has_short_year else 0
        _parse_fixed(text, components, literals, first_short_year, seconds)
    return seconds


@njit(inline="always")
def _seconds_of(year: int, month: int, day: int, second_of_day: int) -> int:
    """Seconds since 1970 of a date, or NO_TIME if there is no such day."""
    is_leap = (year % 4 == 0 and year % 100 != 0) or year % 400 == 0
    last = 31
    if month == 2:
        last = 29 if is_leap else 28
    elif month in {4, 6, 9, 11}:
        last = 30
    if year < 1 or month < 1 or month > 12 or day < 1 or day > last:
        return NO_TIME
    shifted = year - 1 if month <= 2 else year
    era = shifted // 400
    of_era = shifted - 400 * era
    of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    days = era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468
    return days * 86_400 + second_of_day


@njit(inline="always")
def _bounded(seconds: int) -> int:
    return seconds if FIRST_SECOND <= seconds <= LAST_SECOND else NO_TIME


@njit(inline="always")
def _digits(data: np.ndarray, start: int, count: int) -> int:
    """A number of so many digits, or a very negative one if other bytes are among them."""
    number = 0
    for place in range(start, start + count):
        digit = int(data[place]) - 48
        if digit < 0 or digit > 9:
            return -(10**9)
        number = 10 * number + digit
    return number


@kernel
def _iso_seconds(data: np.ndarray, start: int, length: int) -> int:
    if length != 10 and length < _ISO_MINUTES:
        return NO_TIME
    if data[start + 4] != 45 or data[start + 7] != 45:
        return NO_TIME
    year, month = _digits(data, start, 4), _digits(data, start + 5, 2)
    day = _digits(data, start + 8, 2)
    if length == 10:
        midnight: int = _seconds_of(year, month, day, 0)
        return midnight
    if (data[start + 10] != 84 and data[start + 10] != 32) or data[start + 13] != 58:
        return NO_TIME
    hour, minute, second = _digits(data, start + 11, 2), _digits(data, start + 14, 2), 0
    place, end = start + _ISO_MINUTES, start + length
    if place < end and data[place] == 58:
        if end - place < 3:
            return NO_TIME
        second = _digits(data, place + 1, 2)
        place = start + _ISO_SECONDS
        if place < end and data[place] == 46:
            first = place + 1
            place = first
            while place < end and 48 <= data[place] <= 57:
                place += 1
            if place == first or place - first > 9:
                return NO_TIME
    offset = 0
    if place < end and data[place] == 90:
        place += 1
    elif place < end and (data[place] == 43 or data[place] == 45):
        has_colon = end - place == 6 and data[place + 3] == 58
        if end - place != 5 and not has_colon:
            return NO_TIME
        hours, minutes = _digits(data, place + 1, 2), _digits(data, end - 2, 2)
        if hours < 0 or hours > 23 or minutes < 0 or minutes > 59:
            return NO_TIME
        offset = 60 * hours + minutes
        if data[place] == 45:
            offset = -offset
        place = end
    if place != end or not (0 <= hour <= 23 and 0 <= minute <= 59 and 0 <= second <= 59):
        return NO_TIME
    seconds = _seconds_of(year, month, day, 3600 * hour + 60 * minute + second)
    return NO_TIME if seconds == NO_TIME else _bounded(seconds - 60 * offset)


@kernel
def _parse_iso(text: TextBuffers, seconds: np.ndarray) -> None:
    for n in range(len(seconds)):
        start, end = np.int64(text.offsets[n]), np.int64(text.offsets[n + 1])
        seconds[n] = NO_TIME if is_null(text, n) else _iso_seconds(text.data, start, end - start)


@kernel
def _parse_epoch(text: TextBuffers, divisor: int, max_digits: int, seconds: np.ndarray) -> None:
    for n in range(len(seconds)):
        start, end = np.int64(text.offsets[n]), np.int64(text.offsets[n + 1])
        seconds[n] = NO_TIME
        if is_null(text, n) or start == end:
            continue
        is_negative = text.data[start] == 45
        first = start + 1 if is_negative else start
        num_digits = end - first
        if num_digits < 1 or num_digits > max_digits:
            continue
        if num_digits == max_digits and text.data[first] == 57:  # 9 in front: beyond int64.
            continue
        number = _digits_of_epoch(text.data, first, end)
        if number >= 0:
            seconds[n] = _bounded((-number if is_negative else number) // divisor)


@njit(inline="always")
def _digits_of_epoch(data: np.ndarray, first: int, end: int) -> int:
    number = 0
    for place in range(first, end):
        digit = int(data[place]) - 48
        if digit < 0 or digit > 9:
            return -1
        number = 10 * number + digit
    return number


@kernel
def _parse_fixed(
    text: TextBuffers,
    components: np.ndarray,
    literals: np.ndarray,
    first_short_year: int,
    seconds: np.ndarray,
) -> None:
    numbers = np.zeros(6, np.int64)
    for n in range(len(seconds)):
        start, end = np.int64(text.offsets[n]), np.int64(text.offsets[n + 1])
        seconds[n] = NO_TIME
        if is_null(text, n) or end - start != len(components):
            continue
        numbers[:] = 0
        is_good = True
        for place in range(len(components)):
            byte, component = text.data[start + place], components[place]
            if component < 0:
                is_good = is_good and bool(byte == literals[place])
            else:
                digit = int(byte) - 48
                is_good = is_good and 0 <= digit <= 9
                numbers[component] = 10 * numbers[component] + digit
        if first_short_year:
            numbers[0] += 1900 if numbers[0] >= first_short_year else 2000
        if is_good and numbers[3] <= 23 and numbers[4] <= 59 and numbers[5] <= 59:
            second = 3600 * numbers[3] + 60 * numbers[4] + numbers[5]
            seconds[n] = _seconds_of(numbers[0], numbers[1], numbers[2], second)
