"""All good rows of a source, in order, parsed by several threads, in bounded memory."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor

import pyarrow as pa

from ctr_pipeline.dataset.bad_rows import BadRowLedger
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
    ledger: BadRowLedger,
    pool: Executor,
    *,
    max_ahead: int,
    on_bytes: Callable[[int], None] = lambda _: None,
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[pa.Table]:
    """The good rows of `units`, in tables of one block each; bad ones go to the ledger.

    Args:
        source: What the units are of.
        units: In this order. Rows of a file are numbered from the first unit of it on.
        plan: What to read.
        ledger: Counts bad rows.
        pool: Parses.
        max_ahead: Blocks parsed ahead of the one that is given out.
        on_bytes: Told how many more bytes of the files are done.
        block_bytes: Size of a block of text or of RecordIO.

    Raises:
        DataError: A file is damaged, or the ledger refuses a bad row.
    """
    lines = _LineCounter()

    def parse(block: Block) -> tuple[Block, ParsedBlock]:
        return block, block.parse(plan)

    blocks = (block for unit in units for block in source.read(unit, plan, block_bytes))
    for block, parsed in map_in_order(pool, parse, blocks, ahead=max_ahead):
        before, num_bytes = lines.enter(block, parsed.num_lines)
        ledger.enter(
            block.path,
            parsed.table.num_rows,
            parsed.counts,
            [(fault, before + row) for fault, row in parsed.faults],
        )
        on_bytes(num_bytes)
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


class _LineCounter:
    """Lines and bytes of the current file before the next block."""

    def __init__(self) -> None:
        self._path: Place | None = None
        self._lines = 0
        self._bytes = 0

    def enter(self, block: Block, num_lines: int) -> tuple[int, int]:
        """Lines before the block, and how many bytes of the file it took."""
        if block.path != self._path:
            self._path, self._lines, self._bytes = block.path, 0, 0
        before, num_bytes = self._lines, block.position_bytes - self._bytes
        self._lines += num_lines
        self._bytes = block.position_bytes
        return before, num_bytes
