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

from ctr_pipeline.features import ColumnType

_DECIMAL = (
    r"^[+-]?("
    r"(0|[1-9]\d*)(\.\d*([eE][+-]?\d+)?|[eE][+-]\d+)?"
    r"|\.\d+([eE][+-]?\d+)?"
    r")$"
)
_NOT_FINITE = r"(?i)^[+-]?(inf|infinity|nan)$"

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
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
