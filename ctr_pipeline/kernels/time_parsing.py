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
    MONTHS,
    time_pattern,
)
from ctr_pipeline.kernels.compilation import kernel
from ctr_pipeline.kernels.text_buffers import TextBuffers, is_blank, is_null

NO_TIME = -(2**62)
FIRST_SECOND = -62_135_596_800
"""0001-01-01T00:00:00."""
LAST_SECOND = 253_402_300_799
"""9999-12-31T23:59:59."""

_FRACTION, _SHORT_YEAR, _HALF, _OFFSET, _MONTH_NAME, _LITERAL = 6, 7, 8, 9, 10, 11
"""What a part of a pattern is, if no component of a time."""
_KINDS = {
    **{letter: place for place, letter in enumerate("YmdHMS")},
    "I": 3,
    "y": _SHORT_YEAR,
    "f": _FRACTION,
    "p": _HALF,
    "z": _OFFSET,
    "b": _MONTH_NAME,
    "": _LITERAL,
}
_WRONG = 10**9


def parse_seconds(text: TextBuffers, format: str) -> np.ndarray:
    """int64 [N], seconds since 1970 or NO_TIME."""
    seconds = np.empty(len(text.offsets) - 1, np.int64)
    if format == ISO:
        _parse_iso(text, seconds)
    elif format in EPOCH_DIVISORS:
        _parse_epoch(text, EPOCH_DIVISORS[format], EPOCH_DIGITS, seconds)
    else:
        pattern = time_pattern(format)
        parts = np.array(
            [
                (_KINDS[part.letter], part.fewest, part.most, ord(part.literal or " "))
                for part in pattern.parts
            ],
            np.int64,
        )
        parts[parts[:, 0] == _SHORT_YEAR, 3] = FIRST_SHORT_YEAR
        months = np.frombuffer("".join(MONTHS).encode(), np.uint8).reshape(12, 3)
        _parse_pattern(text, parts, months, seconds)
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


@njit(inline="always")
def _ends(text: TextBuffers, n: int) -> tuple[int, int]:
    """Where a text starts and ends without the blanks around it; an empty one if it is missing."""
    start, end = int(text.offsets[n]), int(text.offsets[n + 1])
    if is_null(text, n):
        return start, start
    while start < end and is_blank(text.data[start]):
        start += 1
    while start < end and is_blank(text.data[end - 1]):
        end -= 1
    return start, end


@kernel
def _offset_minutes(data: np.ndarray, place: int, end: int) -> int:
    """Minutes ahead of UTC of an offset that goes to the end, or _WRONG."""
    length = end - place
    if length == 1 and data[place] == 90:
        return 0
    if length == 3 and data[place] == 85 and data[place + 1] == 84 and data[place + 2] == 67:
        return 0
    if length < 3 or (data[place] != 43 and data[place] != 45):
        return _WRONG
    if length not in {3, 5} and not (length == 6 and data[place + 3] == 58):
        return _WRONG
    hours = _digits(data, place + 1, 2)
    minutes = 0 if length == 3 else _digits(data, end - 2, 2)
    if hours < 0 or hours > 23 or minutes < 0 or minutes > 59:
        return _WRONG
    sign = -1 if data[place] == 45 else 1
    return int(sign * (60 * hours + minutes))


@njit(inline="always")
def _point(date: tuple[int, int, int], hour: int, minute: int, second: int, offset: int) -> int:
    """Seconds since 1970 of a date, a time of day and an offset; NO_TIME if one is wrong."""
    if not (0 <= hour <= 23 and 0 <= minute <= 59 and 0 <= second <= 59) or offset == _WRONG:
        return NO_TIME
    seconds = _seconds_of(date[0], date[1], date[2], 3600 * hour + 60 * minute + second)
    return NO_TIME if seconds == NO_TIME else _bounded(seconds - 60 * offset)


@kernel
def _iso_seconds(data: np.ndarray, start: int, end: int) -> int:
    length = end - start
    if length < 10 or length in {11, 12}:
        return NO_TIME
    if data[start + 4] != 45 or data[start + 7] != 45:
        return NO_TIME
    date = (
        _digits(data, start, 4),
        _digits(data, start + 5, 2),
        _digits(data, start + 8, 2),
    )
    if length == 10:
        return int(_point(date, 0, 0, 0, 0))
    if data[start + 10] != 84 and data[start + 10] != 32:
        return NO_TIME
    hour, minute, second, offset = _digits(data, start + 11, 2), 0, 0, 0
    place = start + 13
    if place < end:
        if data[place] != 58 or end - place < 3:
            return NO_TIME
        minute = _digits(data, place + 1, 2)
        place += 3
        if place < end and data[place] == 58:
            if end - place < 3:
                return NO_TIME
            second = _digits(data, place + 1, 2)
            place += 3
            if place < end and (data[place] == 46 or data[place] == 44):
                first = place + 1
                place = first
                while place < end and 48 <= data[place] <= 57:
                    place += 1
                if place == first or place - first > 9:
                    return NO_TIME
        if place < end:
            offset = _offset_minutes(data, place + 1 if data[place] == 32 else place, end)
    return int(_point(date, hour, minute, second, offset))


@kernel
def _parse_iso(text: TextBuffers, seconds: np.ndarray) -> None:
    for n in range(len(seconds)):
        start, end = _ends(text, n)
        seconds[n] = _iso_seconds(text.data, start, end)


@kernel
def _epoch_seconds(data: np.ndarray, start: int, end: int, divisor: int, max_digits: int) -> int:
    is_negative = start < end and data[start] == 45
    first = start + 1 if is_negative else start
    place, number = first, 0
    while place < end and place - first < max_digits and 48 <= data[place] <= 57:
        number = 10 * number + int(data[place]) - 48
        place += 1
    num_digits = place - first
    if num_digits == 0 or (num_digits == max_digits and data[first] == 57):  # 9: beyond int64
        return NO_TIME
    if place < end:
        if data[place] != 46 or place + 1 == end:
            return NO_TIME
        for behind in range(place + 1, end):
            if data[behind] < 48 or data[behind] > 57:
                return NO_TIME
    return int(_bounded((-number if is_negative else number) // divisor))


@kernel
def _parse_epoch(text: TextBuffers, divisor: int, max_digits: int, seconds: np.ndarray) -> None:
    for n in range(len(seconds)):
        start, end = _ends(text, n)
        point = _epoch_seconds(text.data, start, end, divisor, max_digits)
        seconds[n] = _iso_seconds(text.data, start, end) if point == NO_TIME else point


@njit(inline="always")
def _small(byte: int) -> int:
    return int(byte) + 32 if 65 <= byte <= 90 else int(byte)


@kernel
def _pattern_seconds(
    text: TextBuffers, n: int, parts: np.ndarray, months: np.ndarray, numbers: np.ndarray
) -> int:
    data, (place, end) = text.data, _ends(text, n)
    numbers[:] = 0
    offset, half = 0, -1
    for part in range(len(parts)):
        kind, fewest = parts[part, 0], parts[part, 1]
        most, detail = parts[part, 2], parts[part, 3]
        if kind <= _SHORT_YEAR:
            first, number = place, 0
            while place < end and place - first < most and 48 <= data[place] <= 57:
                number = 10 * number + int(data[place]) - 48
                place += 1
            if place - first < fewest:
                return NO_TIME
            if kind == _SHORT_YEAR:
                numbers[0] = number + (1900 if number >= detail else 2000)
            else:
                numbers[kind] = number
        elif kind == _OFFSET:
            offset = _offset_minutes(data, place, end)
            place = end
        elif kind == _MONTH_NAME:
            if end - place < 3:
                return NO_TIME
            for month in range(12):
                if (
                    _small(data[place]) == months[month, 0]
                    and _small(data[place + 1]) == months[month, 1]
                    and _small(data[place + 2]) == months[month, 2]
                ):
                    numbers[1] = month + 1
            place += 3
        elif kind == _HALF:
            if end - place < 2 or _small(data[place + 1]) != 109:
                return NO_TIME
            half = 0 if _small(data[place]) == 97 else 1 if _small(data[place]) == 112 else 2
            place += 2
        else:
            if place == end or data[place] != detail:
                return NO_TIME
            place += 1
    if place != end or half == 2:
        return NO_TIME
    hour = numbers[3]
    if half >= 0:
        if hour < 1 or hour > 12:
            return NO_TIME
        hour = hour % 12 + 12 * half
    date = (numbers[0], numbers[1], numbers[2])
    return int(_point(date, hour, numbers[4], numbers[5], offset))


@kernel
def _parse_pattern(
    text: TextBuffers, parts: np.ndarray, months: np.ndarray, seconds: np.ndarray
) -> None:
    numbers = np.zeros(_FRACTION + 1, np.int64)
    for n in range(len(seconds)):
        seconds[n] = _pattern_seconds(text, n, parts, months, numbers)
        if seconds[n] == NO_TIME:
            start, end = _ends(text, n)
            seconds[n] = _iso_seconds(text.data, start, end)
