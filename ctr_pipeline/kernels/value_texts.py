"""Values that may be another writing of one: texts, and numbers of fewer bits."""

import numpy as np

from ctr_pipeline.kernels.compilation import kernel
from ctr_pipeline.kernels.text_buffers import TextBuffers, is_blank, is_null

_ZERO, _NINE, _POINT, _SMALL, _E = ord("0"), ord("9"), ord("."), 0x20, ord("e")
_LEAST, _LEN_TRUE, _LEN_FALSE = len("7.0"), len("true"), len("false")

_TENS = 10.0 ** np.arange(23)
"""Powers of ten that float64 holds exactly: a division by one of them rounds once."""
_FEWEST_DIGITS, _MOST_DIGITS = 6, 9
"""Each decimal number of so few digits is another float32, and each float32 one of so many."""
_WHOLE = 1e6


def mark_rewritable(text: TextBuffers) -> np.ndarray | None:
    """Marks texts that have a blank around them, or end as `7.0`, `True` and `False` do.

    Returns:
        bool [N]; None if there is no such text. NULL is none.
    """
    marks = np.zeros(len(text.offsets) - 1, np.bool_)
    return marks if _mark(text, marks) else None


@kernel
def _mark(text: TextBuffers, marks: np.ndarray) -> int:
    found = 0
    for n in range(len(marks)):
        start, end = np.int64(text.offsets[n]), np.int64(text.offsets[n + 1])
        if start == end:
            continue
        last = text.data[end - 1]
        if is_blank(last) or is_blank(text.data[start]):
            is_marked = True
        elif end - start < _LEAST:
            continue
        elif last == _ZERO:
            place = end - 2
            while place > start and text.data[place] == _ZERO:
                place -= 1
            before = text.data[place - 1] if place > start else 0
            is_marked = text.data[place] == _POINT and _ZERO <= before <= _NINE
        else:
            is_word = end - start == _LEN_TRUE or end - start == _LEN_FALSE
            is_marked = is_word and last | _SMALL == _E
        if is_marked and not is_null(text, n):
            marks[n] = True
            found += 1
    return found


def shortest_decimals(values_N: np.ndarray) -> np.ndarray:
    """The decimal number with the fewest digits that rounds to a float32, as it would be printed.

    It is what was meant: 0.1 as a float32 is 0.100000001490116, but a text of it is `0.1`.

    Args:
        values_N: float32.

    Returns:
        float64 [N].
    """
    with np.errstate(invalid="ignore"):
        numbers_N = values_N.astype(np.float64)
    for n in np.flatnonzero(_shorten(values_N, numbers_N)):
        numbers_N[n] = float(str(values_N[n]))
    return numbers_N


@kernel
def _shorten(values_N: np.ndarray, numbers_N: np.ndarray) -> np.ndarray:
    """Marks numbers for which it does not work, as powers of ten are not exact: bool [N]."""
    is_left_N = np.zeros(len(values_N), np.bool_)
    for n in range(len(values_N)):
        number = numbers_N[n]
        size = abs(number)
        if not np.isfinite(number) or (number == np.floor(number) and size < _WHOLE):
            continue
        before_point = np.int64(np.floor(np.log10(size))) + 1
        if _MOST_DIGITS - before_point >= len(_TENS) or before_point >= len(_TENS):
            is_left_N[n] = True
            continue
        for digits in range(_FEWEST_DIGITS, _MOST_DIGITS + 1):
            after_point = digits - before_point
            if after_point >= 0:
                found = np.rint(number * _TENS[after_point]) / _TENS[after_point]
            else:
                found = np.rint(number / _TENS[-after_point]) * _TENS[-after_point]
            if np.float32(found) == values_N[n]:
                numbers_N[n] = found
                break
        else:
            is_left_N[n] = True
    return is_left_N
