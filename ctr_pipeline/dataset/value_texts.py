r"""The one text of a value, however it was written.

- A whole number that something made a float of, as pandas does where another value of the column is
  missing, is that number: `1084.0` is `1084`. This holds below 9e15, since float64 tells whole
  numbers apart up to 2^53 = 9.007e15.
- A truth value is 1 or 0: so are `True`, `true` and `TRUE`.
- Blanks around a text, as columns of fixed width are filled with, are no part of it.

Every other text is kept as it is: `007`, `7.5` and `1e3` are no other writings of anything.

A number of fewer than 64 bits is the decimal number that it is printed as: a float32 0.1 is the 0.1
of a text, not 0.100000001490116.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr_pipeline.kernels.text_buffers import text_buffers
from ctr_pipeline.kernels.value_texts import mark_rewritable, shortest_decimals

WHOLE_FLOAT = r"^-?([1-9][0-9]{0,14}|[1-8][0-9]{15})[.]0+$"
"""A float that is a whole number other than 0; for all that know regular expressions."""
POINT_ZEROS = r"[.]0+$"
ZERO_FLOAT = r"^-?0[.]0+$"
BLANKS = " \t\n\v\f\r"
TRUE, FALSE = "true", "false"
"""Texts of booleans, in small letters."""

_MOST_WHOLE = {16: 2**11, 32: 2**24, 64: 9 * 10**15}
"""Bounds by bits of a float: below, each whole number is one of them, and none was rounded to it.
"""


def missing_texts(listed: Sequence[str]) -> tuple[str, ...]:
    """Texts that mean missing: the empty one, those that are listed, and the one text of each."""
    return tuple(dict.fromkeys(("", *listed, *one_text(pa.array(listed, pa.string())).to_pylist())))


def one_text(texts: pa.Array) -> pa.Array:
    """Each text as the one of its value; the same array if each is.

    Args:
        texts: string; NULL stays.
    """
    marks = mark_rewritable(text_buffers(texts))
    if marks is None:
        return texts
    marked = pa.array(marks)
    return pc.replace_with_mask(texts, marked, _rewrite(texts.filter(marked)))


def _rewrite(texts: pa.Array) -> pa.Array:
    texts = pc.utf8_trim(texts, BLANKS)
    lower = pc.utf8_lower(texts)
    conditions = [
        pc.match_substring_regex(texts, WHOLE_FLOAT),
        pc.match_substring_regex(texts, ZERO_FLOAT),
        pc.equal(lower, TRUE),
        pc.equal(lower, FALSE),
    ]
    return pc.case_when(
        pc.make_struct(*conditions),
        pc.replace_substring_regex(texts, POINT_ZEROS, ""),
        "0",
        "1",
        "0",
        texts,
    )


def as_float64(numbers: Any) -> Any:
    """Numbers as float64; NULL stays.

    Args:
        numbers: An array or chunked array of booleans, integers, floats or decimals.
    """
    if not pa.types.is_float32(numbers.type) and not pa.types.is_float16(numbers.type):
        return pc.cast(numbers, pa.float64(), safe=False)
    is_null = np.asarray(pc.is_null(numbers))
    values = numbers.to_numpy(zero_copy_only=False)
    if pa.types.is_float32(numbers.type):
        return pa.array(shortest_decimals(values), mask=is_null)
    different, places = np.unique(values, return_inverse=True)
    decimals = np.array([float(str(value)) for value in different], np.float64)
    return pa.array(decimals[places], pa.float64(), mask=is_null)


def texts_of_decimals(numbers: Any) -> pa.Array:
    """Decimals as texts; whole ones, however large, as integers.

    Args:
        numbers: An array of decimals; NULL stays.
    """
    texts = pc.replace_substring_regex(pc.cast(numbers, pa.string()), POINT_ZEROS, "")
    # Arrow writes a zero with many digits behind its point as `0E-10`.
    return pc.if_else(pc.starts_with(texts, "0E"), "0", texts)


def texts_of_floats(numbers: Any) -> tuple[pa.Array, Any]:
    """Floats as texts, NULL where missing, and a mask of those that have no one text.

    A fraction may be written as `0.5` or `.50`, and what a large float was rounded from is not
    known.

    Args:
        numbers: float16, float32 or float64.
    """
    most = _MOST_WHOLE[numbers.type.bit_width]
    values = pc.fill_null(numbers.cast(pa.float64()), np.nan).to_numpy(zero_copy_only=False)
    is_whole = (np.floor(values) == values) & (np.abs(values) < most)
    whole = pa.array(np.where(is_whole, values, 0).astype(np.int64), mask=~is_whole)
    return whole.cast(pa.string()), ~is_whole & ~np.isnan(values)
