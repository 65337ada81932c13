r"""The one text of a value, however it was written.

- A whole number that something made a float of, as pandas does where another value of the column is
  missing, is that number: `1084.0` is `1084`. This holds below 9e15, since float64 tells whole
  numbers apart up to 2^53 = 9.007e15.
- A truth value is 1 or 0: so are `True`, `true` and `TRUE`.

Every other text is kept as it is: `007`, `7.5` and `1e3` are no other writings of anything.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr_pipeline.kernels.text_buffers import text_buffers
from ctr_pipeline.kernels.value_texts import mark_rewritable

WHOLE_FLOAT = r"^-?([1-9][0-9]{0,14}|[1-8][0-9]{15})[.]0+$"
"""A float that is a whole number other than 0; for all that know regular expressions."""
POINT_ZEROS = r"[.]0+$"
ZERO_FLOAT = r"^-?0[.]0+$"
TRUE, FALSE = "true", "false"
"""In small letters."""

_MOST_WHOLE = {16: 2**11, 32: 2**24, 64: 9 * 10**15}
"""By bits of a float: below, each whole number is one of them and no other was rounded to it."""


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
