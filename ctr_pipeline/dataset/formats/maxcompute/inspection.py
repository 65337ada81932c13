"""What the tables of a config hold, and which of their rows each split has.

Rows that are divided by a hash or by time are divided where they are read, as those of files are.
At random, that goes by the number of a row, which those of a table do not have: a query selects
them, by the hash of all that they hold.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from ctr_pipeline.config.models import DataConfig
from ctr_pipeline.dataset.formats.maxcompute.client import connect
from ctr_pipeline.dataset.formats.maxcompute.reading import MaxComputeTable, read_head
from ctr_pipeline.dataset.formats.maxcompute.selected import select_into_table
from ctr_pipeline.dataset.formats.maxcompute.selection import has_text
from ctr_pipeline.dataset.formats.maxcompute.table import (
    HashRange,
    TableAddress,
    TableFacts,
    TableRows,
)
from ctr_pipeline.dataset.schema_checks import check_same_names
from ctr_pipeline.dataset.splits import Shares, plan_hash_ranges, shares_of
from ctr_pipeline.dataset.statement import Query
from ctr_pipeline.errors import DataError


def find_tables(
    data: DataConfig, named: Mapping[str, Sequence[TableAddress | Query]], *, seed: int | None
) -> tuple[dict[str, tuple[TableRows, ...]], dict[TableRows, MaxComputeTable]]:
    """The rows of each split, and what each table holds.

    Args:
        data: The config's section.
        named: Tables, partitions and SELECTs, by split.
        seed: Seed of the random split; None: rows are not divided.

    Raises:
        DataError: A table is not there or may not be read, tables have other columns than the
            first, or rows cannot be divided as the config says.
    """
    client = connect()
    shares = shares_of(data.split, [split for split, group in named.items() if group])
    if seed is not None:
        # Before a SELECT is executed, which costs.
        _refuse_order(data, shares)
    found_rows = {
        one: select_into_table(client, one) if isinstance(one, Query) else TableRows(one)
        for one in dict.fromkeys(one for group in named.values() for one in group)
    }
    facts = {found.address: client.describe(found.address) for found in found_rows.values()}
    for address, found in facts.items():
        if found.is_view:
            # Nothing tells when the rows of a view change, so old ones might be taken for new.
            raise DataError(
                "is a view, and rows of a view cannot be downloaded",
                place=str(address),
                remedy="Make a table of it: CREATE TABLE … LIFECYCLE 7 AS SELECT * FROM the view",
            )
    _check_same_columns(facts)
    rows = {split: tuple(found_rows[one] for one in group) for split, group in named.items()}
    if seed is not None and data.split.by == "random" and shares.splits != ("train",):
        schema = next(iter(facts.values())).schema
        trained = rows["train"]
        rows |= {
            split: tuple(replace(one, chosen=chosen) for one in trained)
            for split, chosen in _divide_at_random(schema, shares, seed).items()
        }
    opened = {
        one: MaxComputeTable(one, facts[one.address], client)
        for group in rows.values()
        for one in group
    }
    return rows, opened


def head_of(opened: Mapping[TableRows, MaxComputeTable], num_rows: int) -> pa.Table:
    """The first rows of the first table that has any.

    Raises:
        DataError: None has a row.
    """
    for source in opened.values():
        head = read_head(source, num_rows)
        if head.num_rows:
            return head
    raise DataError(
        "has no rows", place=str(next(iter(opened))), remedy="Give a table or partition with rows"
    )


def _check_same_columns(facts: Mapping[TableAddress, TableFacts]) -> None:
    first, *others = facts
    schema = facts[first].schema
    for other in others:
        found = facts[other].schema
        check_same_names(found.names, other, schema.names, first)
        for name in schema.names:
            if found.field(name).type != schema.field(name).type:
                raise DataError(
                    f"column '{name}' has the type {found.field(name).type}, but "
                    f"{schema.field(name).type} in '{first}'",
                    place=str(other),
                    remedy="Give tables with the same types",
                )


def _refuse_order(data: DataConfig, shares: Shares) -> None:
    """Raises DataError if rows are to be divided by what a table does not have."""
    wanted = shares.splits[1:]
    if wanted and data.split.by == "order":
        keys = " and ".join(f"data.{name}" for name in wanted)
        raise DataError(
            "rows of a table have no order, so they cannot be divided by it",
            place="data.split.by",
            remedy=f"Set it to time, hash or random, or name tables or partitions in {keys}",
        )


def _divide_at_random(schema: pa.Schema, shares: Shares, seed: int) -> dict[str, HashRange]:
    """Which rows of data.train each split has that has no table of its own."""
    columns = tuple(
        (name, schema.field(name).type)
        for name in schema.names
        if has_text(schema.field(name).type)
    )
    ranges = plan_hash_ranges(shares)
    return {split: HashRange(columns, str(seed), hashes) for split, hashes in ranges.items()}
