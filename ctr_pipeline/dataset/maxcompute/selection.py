"""Which rows of a table a split has; pure.

A table has no order, so rows are divided by what they hold: by the MD5 of one column's text, or of
the text of all columns and the seed. The service divides, for reading and for the statistics alike.
"""

from collections.abc import Sequence

import pyarrow as pa
from sqlglot import exp

from ctr_pipeline.dataset.maxcompute.table import HashRange, TableRows

_SEPARATOR = "\x1f"
_HASH_BITS = 64


def select_rows(rows: TableRows, columns: Sequence[exp.Expr]) -> exp.Select:
    """The rows with these expressions over the table's columns."""
    address = rows.address
    query = exp.select(*columns).from_(exp.table_(address.table, db=address.project))
    conditions: list[exp.Expr] = [
        exp.EQ(this=exp.column(key), expression=exp.Literal.string(value))
        for key, value in address.partition
    ]
    if rows.chosen is not None:
        conditions += _in_range(rows.chosen)
    return query.where(*conditions) if conditions else query


def has_text(kind: pa.DataType) -> bool:
    """Whether a column of this type can be hashed as a text that is the same for equal values."""
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
    )


def _in_range(chosen: HashRange) -> list[exp.Expr]:
    texts: list[exp.Expr] = [
        exp.Coalesce(this=exp.cast(exp.column(name), "text"), expressions=[exp.Literal.string("")])
        for name in chosen.columns
    ]
    text = texts[0]
    if chosen.salt is not None:
        parts = [exp.Literal.string(_SEPARATOR), exp.Literal.string(chosen.salt), *texts]
        text = exp.func("CONCAT_WS", *parts)
    # Hexadecimal digits sort as the numbers they mean.
    digest = exp.Lower(this=exp.func("MD5", text))
    conditions: list[exp.Expr] = []
    if chosen.low > 0:
        conditions.append(exp.GTE(this=digest.copy(), expression=_threshold(chosen.low)))
    if chosen.high < 1:
        conditions.append(exp.LT(this=digest.copy(), expression=_threshold(chosen.high)))
    return conditions


def _threshold(share: float) -> exp.Expr:
    return exp.Literal.string(f"{int(share * 2**_HASH_BITS):0{_HASH_BITS // 4}x}")
