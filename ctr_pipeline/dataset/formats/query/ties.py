"""Rows that an ORDER BY does not tell apart."""

import pyarrow as pa
import pyarrow.compute as pc

from ctr_pipeline.dataset.statement import Query


def describe_ties(query: Query, head: pa.Table, *, is_stable: bool) -> str:
    """What it means that rows tie in an ORDER BY; empty where none of the first rows do.

    Args:
        query: A SELECT.
        head: Its first rows.
        is_stable: Whether the same data comes in the same order each time.
    """
    names = query.order_columns(head.column_names)
    if not names:
        return ""
    # Values of nested types are no keys of groups.
    if any(pa.types.is_nested(head.schema.field(name).type) for name in names):
        return ""
    keys = list(dict.fromkeys(names))
    sizes = head.group_by(keys).aggregate([([], "count_all")]).column("count_all")
    num_tied = pc.sum(sizes.filter(pc.greater(sizes, 1))).as_py() or 0
    if not num_tied:
        return ""
    order = (
        "The same data gives them in the same order, which means nothing"
        if is_stable
        else "The database gives them in any order, so the same data may be divided otherwise"
    )
    return (
        f"{query.key}: {num_tied:,} of the first {head.num_rows:,} rows tie in ORDER BY "
        f"{', '.join(keys)}. {order}; add columns until no rows tie if that matters"
    )
