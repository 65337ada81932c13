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
    for taken in take_together(streams):
        keys = np.concatenate([rows.keys for _, rows in taken])
        values = np.concatenate([rows.values for _, rows in taken])
        order = np.argsort(keys, kind="stable")
        for first in range(0, len(order), block_rows):
            chosen = order[first : first + block_rows]
            yield RowBlock(keys[chosen], values[chosen])


def take_together(
    streams: Sequence[Iterator[RowBlock]],
) -> Iterator[list[tuple[int, RowBlock]]]:
    """Rows of all streams up to a key that no later block holds: number of the stream, rows.

    Memory: two blocks of each stream. A stream whose blocks end within rows of one key may come
    several times, one time after the other.

    Args:
        streams: Each in blocks by ascending key.
    """
    heads = [_next_block(stream) for stream in streams]
    while live := [head for head in heads if head is not None]:
        # No later block of any stream holds a key below the least of the last keys.
        limit = min(head.keys[-1] for head in live)
        taken: list[tuple[int, RowBlock]] = []
        for number, stream in enumerate(streams):
            head = heads[number]
            while head is not None and head.keys[0] <= limit:
                size = int(np.searchsorted(head.keys, limit, side="right"))
                taken.append((number, RowBlock(head.keys[:size], head.values[:size])))
                if size < len(head.keys):
                    head = RowBlock(head.keys[size:], head.values[size:])
                else:
                    head = _next_block(stream)
            heads[number] = head
        yield taken


def _next_block(blocks: Iterator[RowBlock]) -> RowBlock | None:
    """The next block with rows; None after the last."""
    return next((block for block in blocks if len(block.keys)), None)
