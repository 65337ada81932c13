"""Texts that may be another writing of a value, found without a pattern for each of them."""

import numpy as np

from ctr_pipeline.kernels.compilation import kernel
from ctr_pipeline.kernels.text_buffers import TextBuffers, is_null

_ZERO, _NINE, _POINT, _SMALL, _E = ord("0"), ord("9"), ord("."), 0x20, ord("e")
_LEAST, _LEN_TRUE, _LEN_FALSE = len("7.0"), len("true"), len("false")


def mark_rewritable(text: TextBuffers) -> np.ndarray | None:
    """Marks texts that end as `7.0` does, or as `True` and `False` do, and are as long.

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
        if end - start < _LEAST:
            continue
        last = text.data[end - 1]
        if last == _ZERO:
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
