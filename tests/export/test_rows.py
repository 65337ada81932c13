import numpy as np
import pytest

from ctr_pipeline.embeddings.store import RowBlock
from ctr_pipeline.export.rows import SENTINEL_KEY, gather_blocks


def block(*keys: int, width: int = 2) -> RowBlock:
    values = np.repeat(np.array(keys, dtype=np.float32)[:, None], width, axis=1)
    return RowBlock(np.array(keys, dtype=np.int64), values)


@pytest.mark.parametrize("block_bytes", [1, 40, 1 << 20])
def test_blocks_are_joined_and_end_with_a_row_of_zeros(block_bytes: int) -> None:
    blocks = [block(0, 3), block(), block(4), block(9, 11, 12)]
    joined = list(gather_blocks(blocks, num_rows=6, width=2, block_bytes=block_bytes))
    assert len(joined) == {1: 4, 40: 3, 1 << 20: 1}[block_bytes]
    keys = np.concatenate([part.keys for part in joined])
    values = np.concatenate([part.values for part in joined])
    np.testing.assert_array_equal(keys, [0, 3, 4, 9, 11, 12, SENTINEL_KEY])
    np.testing.assert_array_equal(values[:, 1], [0, 3, 4, 9, 11, 12, 0])


def test_no_rows_leave_the_row_of_zeros() -> None:
    (only,) = gather_blocks([], num_rows=0, width=3)
    assert only.keys.tolist() == [SENTINEL_KEY]
    assert only.values.tolist() == [[0, 0, 0]]


@pytest.mark.parametrize(
    ("blocks", "num_rows", "message"),
    [
        ([block(1, 1)], 2, "ascending"),
        ([block(5), block(4)], 2, "ascending"),
        ([block(-1)], 1, "ascending"),
        ([block(1)], 2, "1 embedding rows came, 2 were announced"),
        ([block(1, width=3)], 1, r"shape \(1, 3\), expected \(1, 2\)"),
    ],
)
def test_refusals(blocks: list[RowBlock], num_rows: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(gather_blocks(blocks, num_rows=num_rows, width=2))
