"""Which rows of a table a split has; pure.

A table has no order, so rows are divided by what they hold: by the MD5 of one column's text, or of
the text of all columns and the seed. The service divides, for reading and for the statistics alike.
"""

import itertools
from collections.abc import Sequence

import pyarrow as pa
from sqlglot import exp

from ctr_pipeline.dataset.formats.maxcompute.table import HashRange, TableRows

_SEPARATOR = "\x1f"
_HASH_BITS = 64
_LARGEST_IN = 1000
"""The service recommends at most 1,024 values:
https://www.alibabacloud.com/help/en/maxcompute/user-guide/maxcompute-sql-limits"""


def group_partitions(rows: Sequence[TableRows]) -> list[tuple[TableRows, ...]]:
    """Rows that one SELECT gives: partitions that differ in the value of their last column alone.

    Args:
        rows: Tables and partitions, none twice.

    Returns:
        Groups in order of first mention, of at most 1,000 partitions each.
    """
    groups: dict[tuple[object, ...], list[TableRows]] = {}
    for one in rows:
        address = one.address
        keys = tuple(key for key, _ in address.partition)
        alike = (address.project, address.table, keys, address.partition[:-1], one.chosen)
        groups.setdefault(alike, []).append(one)
    return [
        tuple(group[start : start + _LARGEST_IN])
        for group in groups.values()
        for start in range(0, len(group), _LARGEST_IN)
    ]


def select_rows(rows: Sequence[TableRows], columns: Sequence[exp.Expr]) -> exp.Select:
    """The rows with these expressions over the table's columns.

    Args:
        rows: One of the groups of `group_partitions`.
        columns: Expressions over the table's columns.
    """
    address, chosen = rows[0].address, rows[0].chosen
    query = exp.select(*columns).from_(exp.table_(address.table, db=address.project))
    conditions: list[exp.Expr] = []
    for position, (key, _) in enumerate(address.partition):
        values = dict.fromkeys(one.address.partition[position][1] for one in rows)
        texts: list[exp.Expr] = [exp.Literal.string(value) for value in values]
        column = exp.column(key)
        conditions.append(
            exp.EQ(this=column, expression=texts[0])
            if len(texts) == 1
            else exp.In(this=column, expressions=texts)
        )
    if chosen is not None:
        conditions += _in_range(chosen)
    return query.where(*conditions) if conditions else query


def sample_of(chosen: Sequence[tuple[int, HashRange | None]]) -> exp.Expr:
    """Which sample a row is of, where several divide the rows of a table by their hash.

    Args:
        chosen: Number of each sample and its share of the rows; None: all rows.
    """
    if len(chosen) == 1:
        return exp.Literal.number(chosen[0][0])
    ordered = sorted(chosen, key=lambda one: _low_of(one[1]))
    case = exp.Case()
    for (number, _), (_, after) in itertools.pairwise(ordered):
        if after is None:
            raise ValueError("rows of a table are divided by their hash or not at all")
        below = exp.LT(this=_digest(after), expression=_threshold(after.low))
        case = case.when(below, exp.Literal.number(number))
    return case.else_(exp.Literal.number(ordered[-1][0]))


def _low_of(chosen: HashRange | None) -> float:
    return 0.0 if chosen is None else chosen.low


def has_text(kind: pa.DataType) -> bool:
    """Whether a column of this type can be hashed as a text that is the same for equal values."""
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
    )


def _digest(chosen: HashRange) -> exp.Expr:
    texts: list[exp.Expr] = [
        exp.Coalesce(this=exp.cast(exp.column(name), "text"), expressions=[exp.Literal.string("")])
        for name in chosen.columns
    ]
    text = texts[0]
    if chosen.salt is not None:
        parts = [exp.Literal.string(_SEPARATOR), exp.Literal.string(chosen.salt), *texts]
        text = exp.func("CONCAT_WS", *parts)
    # Hexadecimal digits sort as the numbers they mean.
    return exp.Lower(this=exp.func("MD5", text))


def _in_range(chosen: HashRange) -> list[exp.Expr]:
    digest = _digest(chosen)
    conditions: list[exp.Expr] = []
    if chosen.low > 0:
        conditions.append(exp.GTE(this=digest.copy(), expression=_threshold(chosen.low)))
    if chosen.high < 1:
        conditions.append(exp.LT(this=digest.copy(), expression=_threshold(chosen.high)))
    return conditions


def _threshold(share: float) -> exp.Expr:
    return exp.Literal.string(f"{int(share * 2**_HASH_BITS):0{_HASH_BITS // 4}x}")
