"""Several streams of rows by ascending key as one, whoever holds the rows."""

from collections.abc import Iterator, Sequence

import numpy as np

from ctr_pipeline.embeddings.store import RowBlock


def merge_blocks(streams: Sequence[Iterator[RowBlock]], block_rows: int) -> Iterator[RowBlock]:
    """All rows by ascending key, in blocks of at most `block_rows`.

    Memory: two blocks of each stream. Rows of one key come next to each other, in the order of
    the streams that they are of; a block may end between them.

    Args:
        streams: Each in blocks by ascending key.
        block_rows: From 1.

    Raises:
        ValueError: `block_rows` is below 1.
    """
    if block_rows < 1:
        raise ValueError(f"block_rows {block_rows} is below 1")
    heads = [_next_block(stream) for stream in streams]
    while any(head is not None for head in heads):
        # No later block of any stream holds a key below the least of the last keys.
        limit = min(head.keys[-1] for head in heads if head is not None)
        parts: list[RowBlock] = []
        for number, stream in enumerate(streams):
            heads[number] = _take(heads[number], stream, limit, parts)
        keys = np.concatenate([part.keys for part in parts])
        values = np.concatenate([part.values for part in parts])
        order = np.argsort(keys, kind="stable")
        for first in range(0, len(order), block_rows):
            chosen = order[first : first + block_rows]
            yield RowBlock(keys[chosen], values[chosen])


def _take(
    head: RowBlock | None, stream: Iterator[RowBlock], limit: np.int64, parts: list[RowBlock]
) -> RowBlock | None:
    """Moves rows up to a key into `parts`; what is left of the head, or the next one."""
    while head is not None and head.keys[0] <= limit:
        size = int(np.searchsorted(head.keys, limit, side="right"))
        parts.append(RowBlock(head.keys[:size], head.values[:size]))
        if size < len(head.keys):
            return RowBlock(head.keys[size:], head.values[size:])
        head = _next_block(stream)
    return head


def _next_block(blocks: Iterator[RowBlock]) -> RowBlock | None:
    """The next block with rows; None after the last."""
    return next((block for block in blocks if len(block.keys)), None)
