"""All good rows of a source, in order, parsed by several threads, in bounded memory."""

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor

import pyarrow as pa

from ctr_pipeline.dataset.bad_rows import BadRowLedger, FileRows, RowCounter
from ctr_pipeline.dataset.columns import ParsedBlock, ReadingPlan
from ctr_pipeline.dataset.source import Block, Place, Source, Unit
from ctr_pipeline.ordered_map import map_in_order
from ctr_pipeline.specs.columns import ColumnType

BLOCK_BYTES = 4 << 20
"""Stays in the processor's caches: blocks of 16 MiB take almost three times as long to parse."""


def read_good_rows(
    source: Source,
    units: Sequence[Unit],
    plan: ReadingPlan,
    counter: RowCounter,
    pool: Executor,
    *,
    max_ahead: int,
    on_bytes: Callable[[int], None] = lambda _: None,
    block_bytes: int = BLOCK_BYTES,
) -> Generator[pa.Table, None, None]:
    """The good rows of `units`, in tables of one block each.

    Args:
        source: What the units are of.
        units: In this order. Rows of a file are numbered from the first unit of it on.
        plan: What to read.
        counter: Told of all rows, such as a `BadRowLedger`.
        pool: Parses.
        max_ahead: Blocks parsed ahead of the one that is given out.
        on_bytes: Told how many more bytes of the files are done.
        block_bytes: Size of a block of text or of RecordIO.

    Raises:
        DataError: A file is damaged, or the counter refuses a bad row.
    """
    path: Place | None = None
    position = 0

    def parse(block: Block) -> tuple[Block, ParsedBlock]:
        return block, block.parse(plan)

    blocks = (block for unit in units for block in source.read(unit, plan, block_bytes))
    for block, parsed in map_in_order(pool, parse, blocks, ahead=max_ahead):
        num_good = parsed.table.num_rows
        counter.enter(
            FileRows(block.path, parsed.num_lines, num_good, parsed.counts, parsed.faults)
        )
        if block.path != path:
            path, position = block.path, 0
        on_bytes(block.position_bytes - position)
        position = block.position_bytes
        yield parsed.table


def read_texts(
    source: Source, on_bytes: Callable[[int], None], threads: int = 2
) -> Iterator[pa.Table]:
    """All rows of delimited files or records, every column as text.

    Raises:
        DataError: A file is damaged, or a row is bad.
    """
    names = source.column_names
    plan = ReadingPlan(
        None, dict.fromkeys(names, ColumnType.TEXT), frozenset(names), ("",), frozenset()
    )
    ledger = BadRowLedger("fail", 0.0, may_skip=False)
    units = [unit for split in source.files for unit in source.units(split)]
    with ThreadPoolExecutor(threads, thread_name_prefix="convert") as pool:
        yield from read_good_rows(
            source, units, plan, ledger, pool, max_ahead=threads, on_bytes=on_bytes
        )
