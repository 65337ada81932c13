"""Which rows of a table a split has, and its columns as SQL; pure.

A table has no order, so rows are divided by what they hold: by the MD5 of one column's text, or of
the text of all columns and the seed. The service divides, for reading and for the statistics alike.
"""

from collections.abc import Sequence

import pyarrow as pa
from sqlglot import exp

from ctr_pipeline.dataset.maxcompute.table import HashRange, TableRows
from ctr_pipeline.features import ColumnType

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


def typed_value(
    name: str, kind: pa.DataType, column_type: ColumnType, missing_values: Sequence[str]
) -> exp.Expr | None:
    """A column as the reader of rows makes it; None if SQL has no way to say the same.

    Args:
        name: The column.
        kind: Its type in the table.
        column_type: What it is read as.
        missing_values: Texts that mean missing, the empty one among them.
    """
    column: exp.Expr = exp.column(name)
    if pa.types.is_boolean(kind):
        yes, no = ("1.0", "0.0") if column_type is ColumnType.NUMBER else ("true", "false")
        target = "double" if column_type is ColumnType.NUMBER else "text"
        case = exp.Case().when(column, exp.Literal.string(yes))
        return exp.cast(case.when(exp.Not(this=column), exp.Literal.string(no)), target)
    if column_type is ColumnType.NUMBER:
        is_number = (
            pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        )
        number: exp.Expr = exp.cast(column, "double")
        if pa.types.is_floating(kind):
            # Makes 0 of -0, which some engines count apart.
            number = exp.Add(this=number, expression=exp.cast(exp.Literal.string("0.0"), "double"))
        return number if is_number else None
    if column_type is not ColumnType.TEXT:
        return None
    if pa.types.is_integer(kind):
        column = exp.cast(column, "text")
    elif not pa.types.is_string(kind):
        return None
    listed = exp.In(this=column, expressions=[exp.Literal.string(one) for one in missing_values])
    return exp.Case().when(listed, exp.null()).else_(column.copy())


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
