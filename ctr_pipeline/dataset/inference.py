"""What a text column holds, decided from the first rows and the column's name.

A column is a number if at least one value of the first rows is a decimal, none is anything else
(`inf` and `nan` are let pass), and its name does not look like an identifier's. A decimal has an
optional sign, digits without leading zeros and an optional fraction; an exponent needs a decimal
point or a sign of its own, so that `1e-05` is a number and the hexadecimal id `32813e21` is not.
A column with no value at all in the first rows is text.
"""

import re

import pyarrow as pa
import pyarrow.compute as pc

from ctr_pipeline.features import WEIGHT_NUMBER, ColumnType, SequenceSpec

_DECIMAL = (
    r"^[+-]?("
    r"(0|[1-9]\d*)(\.\d*([eE][+-]?\d+)?|[eE][+-]\d+)?"
    r"|\.\d+([eE][+-]?\d+)?"
    r")$"
)
_NOT_FINITE = r"(?i)^[+-]?(inf|infinity|nan)$"

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_DELIMITERS = ("|", ";", ",")
_LEAST_TEXTS = 20
_LEAST_ELEMENTS = 1.3
"""A value, on average."""
_MOST_DIFFERENT = 0.5
"""Share of different elements among all, above which they do not come again."""
_WEIGHTED_ELEMENT = re.compile(rf"([^:]+):({WEIGHT_NUMBER})")
_IDENTIFIERS = frozenset(
    {
        "id",
        "ids",
        "uid",
        "gid",
        "pid",
        "uuid",
        "guid",
        "hash",
        "md",
        "sha",
        "zip",
        "zipcode",
        "postcode",
        "postal",
        "ip",
        "phone",
        "tel",
        "msisdn",
        "imei",
        "isbn",
        "ean",
        "sku",
        "asin",
        "ssn",
        "iban",
        "cookie",
        "token",
        "fingerprint",
    }
)


def looks_like_identifier(name: str) -> bool:
    """Whether the last word of a column's name is one that identifiers end in.

    Words are told by case and by what is no letter: `user_id`, `userId`, `UserID`, `ip2`.
    """
    words = _WORDS.findall(name)
    return bool(words) and words[-1].lower() in _IDENTIFIERS


def is_decimal(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Which texts are numbers in the strict sense of this module; NULL stays NULL."""
    return pc.match_substring_regex(pc.utf8_trim_whitespace(texts), _DECIMAL)


def is_numeric(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Which texts are decimals, infinite or NaN; NULL stays NULL."""
    not_finite = pc.match_substring_regex(pc.utf8_trim_whitespace(texts), _NOT_FINITE)
    return pc.or_(is_decimal(texts), not_finite)


def infer_type(name: str, texts: pa.ChunkedArray) -> ColumnType:
    """The type of a column of texts in which missing values are NULL."""
    if looks_like_identifier(name):
        return ColumnType.TEXT
    decimal = is_decimal(texts)
    if not pc.any(decimal).as_py():
        return ColumnType.TEXT
    is_number = pc.all(decimal).as_py() or pc.all(is_numeric(texts)).as_py()
    return ColumnType.NUMBER if is_number else ColumnType.TEXT


def infer_sequence(values: pa.Array | pa.ChunkedArray) -> SequenceSpec | None:
    """How texts are lists of elements, or None if they are not.

    A delimiter makes lists if values differ in their number of elements, no element has a blank
    around it, and elements come again: an address has delimiters, too. A comma between digits alone
    may be a decimal one.

    Args:
        values: Text of one column's first rows.
    """
    texts = [text for text in values.to_pylist() if text]
    if len(texts) < _LEAST_TEXTS:
        return None
    for delimiter in _DELIMITERS:
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
            and not (delimiter == "," and all(element.isdigit() for element in elements))
        ):
            return SequenceSpec(delimiter=delimiter, weights=has_weights)
    return None
