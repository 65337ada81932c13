"""Embedding rows as the export takes them: sorted keys and values, block by block."""

from collections.abc import Iterable, Iterator

import numpy as np

from ctr_pipeline.embeddings.store import RowBlock

FIELD_SHIFT = 44
"""A key is (field index << 44) | id, so an id is below 2**44 and a field index below 2**19."""

SENTINEL_KEY = 2**63 - 1
"""Above every key; its row is zeros and is what an id without a row reads."""

_BLOCK_BYTES = 16 << 20
"""Peak memory is four times as much, and every block a file: 64 files for a gigabyte."""


def gather_blocks(
    blocks: Iterable[RowBlock], *, num_rows: int, width: int, block_bytes: int = _BLOCK_BYTES
) -> Iterator[RowBlock]:
    """Checks blocks and joins small ones; the last row is the sentinel's.

    Args:
        blocks: Rows in ascending order of keys over all blocks.
        num_rows: How many there are in all.
        width: Values of a row.
        block_bytes: Blocks given out hold about this much, unless one given in holds more.

    Yields:
        `num_rows` + 1 rows.

    Raises:
        ValueError: Keys do not ascend, or number or width of the rows are others.
    """
    pending: list[RowBlock] = []
    pending_bytes = 0
    seen = 0
    last_key = -1
    sentinel = RowBlock(np.array([SENTINEL_KEY]), np.zeros((1, width), dtype=np.float32))
    for block in _with_last(blocks, sentinel):
        if block.values.shape != (len(block.keys), width):
            raise ValueError(
                f"embedding rows have shape {block.values.shape}, "
                f"expected ({len(block.keys)}, {width})"
            )
        if not len(block.keys):
            continue
        if block.keys[0] <= last_key or np.any(np.diff(block.keys) <= 0):
            raise ValueError("embedding rows do not come in ascending order of their keys")
        last_key = int(block.keys[-1])
        seen += len(block.keys)
        pending.append(block)
        pending_bytes += block.keys.nbytes + block.values.nbytes
        del block
        if pending_bytes >= block_bytes:
            joined, pending, pending_bytes = _join(pending), [], 0
            yield joined
            # Nothing refers to a block that was written while the next one grows.
            del joined
    if seen != num_rows + 1:
        raise ValueError(f"{seen - 1} embedding rows came, {num_rows} were announced")
    if pending:
        yield _join(pending)


def _with_last(blocks: Iterable[RowBlock], last: RowBlock) -> Iterator[RowBlock]:
    yield from blocks
    yield last


def _join(blocks: list[RowBlock]) -> RowBlock:
    if len(blocks) == 1:
        return blocks[0]
    return RowBlock(
        np.concatenate([block.keys for block in blocks]),
        np.concatenate([block.values for block in blocks]),
    )
