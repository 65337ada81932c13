"""Which rows of a table a split has; pure.

A table has no order, so the service divides rows by what they hold: for the statistics by the hash
of one column's text, as they are divided where they are read; for the statistics and for reading by
the hash of the texts of all columns and the seed, at random.
"""

from collections.abc import Sequence

import pyarrow as pa
from sqlglot import exp

from ctr_pipeline.dataset.formats.maxcompute.table import HashRange, TableRows
from ctr_pipeline.dataset.value_sql import digest_of, is_below, is_in_range, typed_value
from ctr_pipeline.specs.columns import ColumnType

_SEPARATOR = "\x1f"
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
        conditions += is_in_range(_digest(chosen), chosen.hashes)
    return query.where(*conditions) if conditions else query


def sample_of(chosen: Sequence[tuple[int, HashRange | None]]) -> exp.Expr:
    """Which sample a row is of, where several divide the rows of a table by their hash.

    Args:
        chosen: Number of each sample and its share of the rows; None: all rows.
    """
    if len(chosen) == 1:
        return exp.Literal.number(chosen[0][0])
    ranges = [(one, number) for number, one in chosen if one is not None]
    if len(ranges) < len(chosen):
        raise ValueError("rows of a table are divided by their hash or not at all")
    *others, (_, last) = sorted(ranges, key=lambda one: one[0].hashes)
    case = exp.Case()
    for one, number in others:
        case = case.when(is_below(_digest(one), one.hashes[1]), exp.Literal.number(number))
    return case.else_(exp.Literal.number(last))


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
    if chosen.salt is None:
        ((name, kind),) = chosen.columns
        text = typed_value(name, kind, ColumnType.TEXT, chosen.missing_values)
        if text is None:
            raise TypeError(f"{name}, a column of {kind}, should have been refused before")
        return digest_of(text)
    parts = [exp.Literal.string(_SEPARATOR), exp.Literal.string(chosen.salt)]
    texts = [
        exp.Coalesce(this=_text(name), expressions=[exp.Literal.string("")])
        for name, _ in chosen.columns
    ]
    return digest_of(exp.func("CONCAT_WS", *parts, *texts))


def _text(name: str) -> exp.Expr:
    return exp.cast(exp.column(name), "text")
