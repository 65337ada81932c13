"""What a text column holds, decided from the values of the first rows; names play no part.

A column is a number if at least one value of the first rows is a decimal and none is anything else
(`inf` and `nan` are let pass). A decimal has an optional sign, digits without leading zeros and an
optional fraction; an exponent needs a decimal point or a sign of its own, so that `1e-05` is a
number and the hexadecimal id `32813e21` is not. A column with no value at all in the first rows is
text.

Whole numbers beyond 2^53 are text as well: float64 does not tell them from their neighbours, and
nobody measures so finely. Of a column with fractions or exponents they are numbers all the same.

Whole numbers are points in time since 1970 if their range is one of dates and they are spread like
times of events, or patterns of digits such as 20240331 if each is a date of these years. Other
texts are points in time if one format reads nearly all of them. Lists are sequences of elements, or
vectors if they are floats and all of one length.
"""

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ctr_pipeline.dataset.value_texts import as_float64, texts_of_floats
from ctr_pipeline.datetime_formats import EPOCH_DIVISORS, ISO
from ctr_pipeline.features import WEIGHT_NUMBER, ListSpec, SequenceSpec, VectorSpec
from ctr_pipeline.kernels.text_buffers import text_buffers
from ctr_pipeline.kernels.time_parsing import NO_TIME, parse_seconds
from ctr_pipeline.specs.columns import ColumnType

_DECIMAL = (
    r"^[+-]?("
    r"(0|[1-9]\d*)(\.\d*([eE][+-]?\d+)?|[eE][+-]\d+)?"
    r"|\.\d+([eE][+-]?\d+)?"
    r")$"
)
_NOT_FINITE = r"(?i)^[+-]?(inf|infinity|nan)$"

_WHOLE = r"^[+-]?\d+$"
_LARGEST_WHOLE = 2**53
"""Up to here float64 holds every whole number."""
_MICROSECONDS = 1_000_000
"""Whole numbers from here on may be ids that are made of a time. These come again, and the digits
of so fine a clock do not."""
_MOST_AGAIN = 0.1
"""Share of the values of such a clock that were there before."""

_DELIMITERS = ("|", ";", ",")
_BLANK = " "
_FEWEST_BEYOND_A_COMMA = 0.05
"""Share of values with several commas, from which no comma is a decimal one."""
_LEAST_TEXTS = 20
_LEAST_ELEMENTS = 1.3
"""A value, on average."""
_MOST_DIFFERENT = 0.5
"""Share of different elements among all, above which they do not come again."""
_YEARS = (1_104_537_600, 2_082_758_400)
"""2005 to 2036, in seconds since 1970: where times of events may lie."""
_LEAST_SPREAD = 600
_MOST_SPREAD = 15 * 366 * 86_400
"""Seconds from the first to the last of the times in a column."""
_MOST_DENSE = 0.5
"""Share of the seconds in between that have a value, above which numbers are counted up."""
_LEAST_TIMES = 50
_LEAST_DATES = 5
"""Different whole numbers, each a date, from which none is one by chance."""
_LEAST_READ = 0.95
"""Share of the texts of a column that are points in time; others may be `0000-00-00` or `n/a`."""
_NUM_SHAPES = 20
"""Different texts whose shapes are tried as formats."""
_DIGIT_PATTERNS = ("%Y%m%d", "%y%m%d%H", "%Y%m%d%H", "%Y%m%d%H%M", "%Y%m%d%H%M%S")
_DATE_ORDERS = (("day", "month", "year"), ("month", "day", "year"), ("year", "month", "day"))
_DATED = re.compile(
    r"([0-9]{1,4}|[A-Za-z]{3})([-/. ])([0-9]{1,2}|[A-Za-z]{3})(,? |[-/.])([0-9]{4}|[0-9]{1,2})"
    r"(?:(,? |T|:|-)([0-9]{1,2})(:[0-9]{2})?(:[0-9]{2})?([.,][0-9]{1,9})?( ?[AaPp][Mm])?"
    r"( ?(?:Z|UTC|[+-][0-9]{2}(?::?[0-9]{2})?))?)?"
)
"""A date of three parts with what divides them, and maybe a time of day."""
_LONGEST_VECTOR = 1024
_LEAST_COUNTED = 10
"""Rows, below which values may ascend by chance."""
_WEIGHTED_ELEMENT = re.compile(rf"([^:]+):({WEIGHT_NUMBER})")


def is_decimal(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Which texts are numbers in the strict sense of this module; NULL stays NULL."""
    return pc.match_substring_regex(pc.utf8_trim_whitespace(texts), _DECIMAL)


def is_numeric(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Which texts are decimals, infinite or NaN; NULL stays NULL."""
    not_finite = pc.match_substring_regex(pc.utf8_trim_whitespace(texts), _NOT_FINITE)
    return pc.or_(is_decimal(texts), not_finite)


def infer_type(texts: pa.ChunkedArray) -> ColumnType:
    """The type of a column of texts in which missing values are NULL."""
    decimal = is_decimal(texts)
    if not pc.any(decimal).as_py():
        return ColumnType.TEXT
    is_number = pc.all(decimal).as_py() or pc.all(is_numeric(texts)).as_py()
    return ColumnType.NUMBER if is_number and not holds_beyond_floats(texts) else ColumnType.TEXT


def holds_beyond_floats(values: pa.Array | pa.ChunkedArray) -> bool:
    """Whether whole numbers of a column of such are beyond 2^53, where float64 merges them.

    Args:
        values: Texts or numbers of one column; NULL where missing.
    """
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if pa.types.is_string(values.type):
        texts = pc.utf8_trim_whitespace(values)
        if not pc.any(pc.match_substring_regex(texts, r"^[+-]?[1-9]\d{15}")).as_py():
            return False
        finite = texts.filter(is_decimal(texts))
        if not pc.all(pc.match_substring_regex(finite, _WHOLE)).as_py():
            return False
        digits = pc.utf8_ltrim(finite, "+-")
        lengths, most = pc.utf8_length(digits), str(_LARGEST_WHOLE)
        is_beyond = pc.or_(
            pc.greater(lengths, len(most)),
            pc.and_(pc.equal(lengths, len(most)), pc.greater(digits, most)),
        )
        return bool(pc.any(is_beyond).as_py())
    is_whole = pa.types.is_integer(values.type) or (
        pa.types.is_decimal(values.type) and values.type.scale == 0
    )
    if not is_whole:
        return False
    ends = pc.min_max(values).as_py()
    return any(end is not None and abs(end) > _LARGEST_WHOLE for end in ends.values())


def infer_epoch(values: pa.Array | pa.ChunkedArray) -> str | None:
    """The `datetime` format of whole numbers that are points in time, or None if they are not.

    Args:
        values: int64, of a column's first rows; NULL where missing.
    """
    present = values.drop_null().to_numpy()
    if len(present) < _LEAST_TIMES:
        return None
    for format, divisor in EPOCH_DIVISORS.items():
        first, last = int(present.min()) // divisor, int(present.max()) // divisor
        if (
            _YEARS[0] <= first <= last < _YEARS[1]
            and _LEAST_SPREAD <= last - first <= _MOST_SPREAD
            and len(np.unique(present // divisor)) <= _MOST_DENSE * (last - first)
        ):
            return format if divisor < _MICROSECONDS or _is_clock(present) else None
    return None


def _is_clock(present: NDArray[np.int64]) -> bool:
    """Whether times in microseconds or finer are those of a clock, not ids that are made of it."""
    counts_coarsely = not (present % 1000).any()
    return counts_coarsely or len(np.unique(present)) >= (1 - _MOST_AGAIN) * len(present)


def whole_numbers(texts: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray | None:
    """Texts as int64, if each has digits as a point in time since 1970; else None.

    A fraction is dropped.
    """
    texts = pc.utf8_trim_whitespace(texts)
    is_whole = pc.match_substring_regex(texts, r"^([1-9]\d{7,17}|[1-8]\d{18})([.]\d+)?$")
    if not pc.all(is_whole).as_py():
        return None
    return pc.replace_substring_regex(texts, r"[.].*", "").cast(pa.int64())


def infer_time(values: pa.Array | pa.ChunkedArray) -> str | None:
    """The `datetime` format of a column of points in time; None if it is none, or none is sure.

    Args:
        values: The first rows: texts, integers or floats; NULL where missing.
    """
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if pa.types.is_floating(values.type):
        values, has_fraction = texts_of_floats(values)
        if has_fraction.any():
            return None
    try:
        texts = values.cast(pa.string())
        # Arrow takes the bytes of a text for UTF-8, whatever a file holds.
        texts = texts.cast(pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return None
    numbers = whole_numbers(texts)
    found = None if numbers is None else infer_epoch(numbers)
    if found is None:
        formats = time_patterns(texts)
        found = formats[0] if len(formats) == 1 else None
    return found


def time_patterns(texts: pa.Array, num_rows: NDArray[np.int64] | None = None) -> tuple[str, ...]:
    """The format `iso` or a pattern by which texts are points in time; empty if they are none.

    More than one where it is not known which number is the day and which one the month.

    Args:
        texts: string, of one column; NULL where missing.
        num_rows: int64, rows of each text; one without it.
    """
    different = texts.drop_null().unique()
    first = [text.strip() for text in different[:_NUM_SHAPES].to_pylist()]
    if len(different) < 2:
        return ()
    if all(text.isdigit() for text in first):
        return _digit_patterns(different)
    candidates = dict.fromkeys(format for text in first for format in _formats_like(text))
    weights = np.ones(len(texts), np.int64) if num_rows is None else num_rows
    shares = {format: _share_read(texts, weights, format) for format in candidates}
    best = max(shares.values(), default=0.0)
    return tuple(
        format for format, share in shares.items() if share == best and share >= _LEAST_READ
    )


def _digit_patterns(different: pa.Array) -> tuple[str, ...]:
    if len(different) < _LEAST_DATES:
        return ()
    first_few = text_buffers(different[:_NUM_SHAPES])
    for format in _DIGIT_PATTERNS:
        # Each has to be a date, and most numbers are none soon.
        if (parse_seconds(first_few, format) == NO_TIME).any():
            continue
        seconds = parse_seconds(text_buffers(different), format)
        first, last = int(seconds.min()), int(seconds.max())
        if _YEARS[0] <= first <= last < _YEARS[1] and last - first <= _MOST_SPREAD:
            return (format,)
    return ()


def _share_read(texts: pa.Array, num_rows: NDArray[np.int64], format: str) -> float:
    is_read = parse_seconds(text_buffers(texts), format) != NO_TIME
    is_there = np.asarray(texts.is_valid())
    return float(num_rows[is_read].sum() / num_rows[is_there].sum())


def _formats_like(text: str) -> list[str]:
    """Formats by which a text of this shape may tell a point in time, likelier ones first."""
    if re.match(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?![0-9])", text):
        return [ISO]
    shape = _DATED.fullmatch(text)
    if shape is None:
        return []
    gap, hour, minute, second, fraction, half, zone = shape.groups()[5:]
    time = f"{gap}{'%I' if half else '%H'}" if hour else ""
    time += ":%M" if minute else ""
    time += ":%S" if second else ""
    time += f"{fraction[0]}%f" if fraction else ""
    time += half[:-2] + "%p" if half else ""
    time += " %z" if zone and zone[0] == " " else "%z" if zone else ""
    dates = [_date_like(shape, order) for order in _DATE_ORDERS]
    return [f"{date}{time}" for date in dates if date is not None]


def _date_like(shape: re.Match[str], order: Sequence[str]) -> str | None:
    """The pattern of a date in this order; None where its parts are not in it."""
    first, mark, second, other_mark, third = shape.groups()[:5]
    directives = []
    for name, part in zip(order, (first, second, third), strict=True):
        if part.isalpha():
            directive = "%b" if name == "month" else None
        elif name == "year":
            directive = {4: "%Y", 2: "%y"}.get(len(part))
        else:
            directive = f"%{name[0]}" if len(part) <= 2 else None
        if directive is None:
            return None
        directives.append(directive)
    # Points divide days from months in this order alone, and versions: `7.1.12` may be one.
    is_version = mark == "." and directives[2] == "%y" and shape[7] is None
    if is_version or (order[0] == "month" and mark == ".") or directives[0] == "%y":
        return None
    return f"{directives[0]}{mark}{directives[1]}{other_mark}{directives[2]}"


def infer_list(values: pa.Array | pa.ChunkedArray) -> ListSpec | None:
    """How lists are read: as elements of texts or integers, or as numbers of a vector.

    Whole numbers that something made floats of are elements where their lists are no vectors. None
    if they are neither: fractions of several lengths, lists of lists, no list at all.

    Args:
        values: The first rows of a column of lists.
    """
    kind = values.type.value_type
    is_float = pa.types.is_floating(kind)
    if not (is_float or pa.types.is_integer(kind) or _is_text(kind)):
        return None
    lengths = np.unique(pc.list_value_length(values).drop_null().to_numpy())
    lengths = lengths[lengths > 0]
    if not len(lengths):
        return None
    elements = pc.list_flatten(values)
    if is_float:
        if len(lengths) == 1 and not elements.null_count:
            return VectorSpec(length=int(lengths[0])) if lengths[0] <= _LONGEST_VECTOR else None
        if texts_of_floats(elements)[1].any():
            return None
    for delimiter in _DELIMITERS:
        if not (_is_text(kind) and pc.any(pc.match_substring(elements, delimiter)).as_py()):
            return SequenceSpec(delimiter=delimiter)
    return None


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def infer_sequence(values: pa.Array | pa.ChunkedArray) -> SequenceSpec | None:
    """How texts are lists of elements, or None if they are not.

    A delimiter makes lists if values differ in their number of elements, no element has a blank
    around it, and elements come again: an address has delimiters, too. A comma between digits alone
    may be a decimal one, or divide thousands. A blank makes lists of digits alone: words with
    blanks between them may be one text.

    Args:
        values: Text of one column's first rows.
    """
    texts = [text for text in values.to_pylist() if text]
    if len(texts) < _LEAST_TEXTS:
        return None
    for delimiter in (*_DELIMITERS, _BLANK):
        lists = [[element for element in text.split(delimiter) if element] for text in texts]
        elements = [element for one in lists for element in one]
        weighted = [_WEIGHTED_ELEMENT.fullmatch(element) for element in elements]
        has_weights = all(weighted)
        names = {match[1] for match in weighted if match} if has_weights else set(elements)
        if (
            len({len(one) for one in lists}) > 1
            and len(elements) >= _LEAST_ELEMENTS * len(texts)
            and all(element == element.strip() for element in elements)
            and len(names) <= _MOST_DIFFERENT * len(elements)
            and _divides_elements(delimiter, lists, elements)
        ):
            return SequenceSpec(delimiter=delimiter, weights=has_weights)
    return None


def _divides_elements(
    delimiter: str, lists: Sequence[Sequence[str]], elements: Sequence[str]
) -> bool:
    """Whether a delimiter has no other meaning in these values."""
    are_digits = all(element.isdigit() for element in elements)
    if delimiter != "," or not are_digits:
        return delimiter != _BLANK or are_digits
    num_longer = sum(len(one) > 2 for one in lists)
    are_thousands = all(len(element) == 3 for one in lists for element in one[1:])
    return num_longer >= _FEWEST_BEYOND_A_COMMA * len(lists) and not are_thousands


def counts_rows(values: pa.Array | pa.ChunkedArray) -> bool:
    """Whether whole numbers ascend from row to row, each once, as a counter of rows does.

    Args:
        values: Numbers or texts of one column's first rows; NULL where missing.
    """
    if values.null_count or len(values) < _LEAST_COUNTED:
        return False
    if pa.types.is_string(values.type):
        if not pc.all(pc.match_substring_regex(values, r"^[+-]?\d{1,15}$")).as_py():
            return False
        values = values.cast(pa.int64())
    if pa.types.is_floating(values.type):
        values = as_float64(values)
        if not pc.all(pc.equal(values, pc.floor(values))).as_py():
            return False
    elif not pa.types.is_integer(values.type):
        return False
    numbers = values.to_numpy()
    return bool((numbers[1:] > numbers[:-1]).all())
