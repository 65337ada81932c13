"""All good rows of some files, in order, parsed by several threads, in bounded memory."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor

import pyarrow as pa

from ctr_pipeline.dataset.bad_rows import BadRowLedger
from ctr_pipeline.dataset.columns import ParsedBlock, ReadingPlan
from ctr_pipeline.dataset.formats.databases.table import DatabaseTable
from ctr_pipeline.dataset.formats.maxcompute.source import MaxComputeTable
from ctr_pipeline.dataset.formats.parquet.reading import (
    ParquetFile,
    RecordBlock,
    read_parquet_blocks,
)
from ctr_pipeline.dataset.formats.recordio.rows import (
    ExampleBlock,
    ExampleFile,
    LineBlock,
    LineFile,
    read_example_blocks,
    read_line_blocks,
)
from ctr_pipeline.dataset.formats.text.blocks import BLOCK_BYTES, read_text_blocks
from ctr_pipeline.dataset.formats.text.parsing import TextBlock
from ctr_pipeline.dataset.paths import Place
from ctr_pipeline.dataset.source import Source
from ctr_pipeline.ordered_map import map_in_order

Block = TextBlock | RecordBlock | LineBlock | ExampleBlock


def read_good_rows(
    source: Source,
    files: Sequence[Place],
    plan: ReadingPlan,
    ledger: BadRowLedger,
    pool: Executor,
    *,
    max_ahead: int,
    on_bytes: Callable[[int], None] = lambda _: None,
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[pa.Table]:
    """The good rows of `files`, in tables of one block each; bad ones go to the ledger.

    Args:
        source: The source of the files.
        files: In this order.
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

    blocks = (block for file in files for block in _read_blocks(source, file, plan, block_bytes))
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


def _read_blocks(
    source: Source, file: Place, plan: ReadingPlan, block_bytes: int
) -> Iterator[Block]:
    opened = source.opened[file]
    if isinstance(opened, ParquetFile):
        return read_parquet_blocks(opened, plan)
    if isinstance(opened, LineFile):
        return read_line_blocks(opened, block_bytes)
    if isinstance(opened, ExampleFile):
        return read_example_blocks(opened, plan, block_bytes)
    if isinstance(opened, MaxComputeTable):
        from ctr_pipeline.dataset.formats.maxcompute.reading import read_table_blocks

        return read_table_blocks(opened, plan)
    if isinstance(opened, DatabaseTable):
        from ctr_pipeline.dataset.formats.databases.inspection import read_database_blocks

        return read_database_blocks(opened, plan)
    return read_text_blocks(opened, block_bytes)
