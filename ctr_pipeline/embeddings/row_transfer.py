"""Copies the rows of one store to another, bit for bit; ids move where tables have grown."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ctr_pipeline.embeddings.counts import counts_of_keys
from ctr_pipeline.embeddings.layout import RowLayout, describe_segments
from ctr_pipeline.embeddings.store import EmbeddingStore
from ctr_pipeline.embeddings.update_kernels import HEADER_COUNT
from ctr_pipeline.specs.table import ID_BITS, TableSpec

BLOCK_ROWS = 1 << 16
_ID_MASK = (1 << ID_BITS) - 1
_INT32_MAX = (1 << 31) - 1


@dataclass(frozen=True)
class TableMove:
    """How the ids of a table change.

    Attributes:
        table: Index of the table in the other store.
        first_moved: Ids below it stay the same.
        shift: Added to the other ids.
    """

    table: int
    first_moved: int
    shift: int


def incompatible_tables(
    source: EmbeddingStore, target: EmbeddingStore, moves: Sequence[TableMove]
) -> list[str]:
    """Names of tables whose records differ in their values, slots or layout."""
    if _describe(source.layout, None) != _describe(target.layout, None):
        return [table.name for table in source.tables]
    return [
        table.name
        for table, move in zip(source.tables, moves, strict=True)
        if _describe(source.layout, table) != _describe(target.layout, target.tables[move.table])
    ]


def _describe(layout: RowLayout, table: TableSpec | None) -> object:
    own = None if table is None else table.segments
    segments = describe_segments(own or layout.groups[0])
    return segments, layout.width, layout.num_slots, layout.record_floats


def transfer_rows(
    source: EmbeddingStore, target: EmbeddingStore, moves: Sequence[TableMove]
) -> None:
    """Adds all rows of `source` to `target`, with their optimizer state.

    The training count of a row becomes the sum of both trainings: that of `source`, and the count
    of its id in the training counts of `target`.

    Args:
        source: Any store.
        target: A store with none of these rows, and with records of the same layout.
        moves: The move of each table of `source`.

    Raises:
        ValueError: The records differ, or an id is outside its new table.
        TrainingError: There is no room for so many rows.
    """
    if incompatible_tables(source, target, moves):
        raise ValueError("records of another make")
    table_T = np.array([move.table for move in moves], np.int64)
    first_T = np.array([move.first_moved for move in moves], np.int64)
    shift_T = np.array([move.shift for move in moves], np.int64)
    num_ids_T = np.array([target.tables[move.table].num_ids for move in moves], np.int64)
    rows = target.rows
    with rows.lock:
        for begin in range(0, source.num_rows, BLOCK_ROWS):
            end = min(begin + BLOCK_ROWS, source.num_rows)
            keys = source.rows.keys_N[begin:end]
            tables, ids = keys >> ID_BITS, keys & _ID_MASK
            ids = np.where(ids >= first_T[tables], ids + shift_T[tables], ids)
            if (ids >= num_ids_T[tables]).any():
                raise ValueError("an id has no place in its new table")
            moved = np.ascontiguousarray((table_T[tables] << ID_BITS) | ids)
            first = rows.append(moved)
            last = first + len(moved)
            rows.records_NR[first:last] = source.rows.records_NR[begin:end]
            counts = rows.headers_NR[first:last, HEADER_COUNT].astype(np.int64)
            total = counts + counts_of_keys(target.training_counts, moved)
            rows.headers_NR[first:last, HEADER_COUNT] = np.minimum(total, _INT32_MAX)
