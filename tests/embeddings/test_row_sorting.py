import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.embeddings import row_sorting
from ctr_pipeline.embeddings.row_merge import merge_blocks
from ctr_pipeline.embeddings.row_sorting import RowSorter
from ctr_pipeline.embeddings.store import RowBlock
from ctr_pipeline.errors import RunFolderError

WIDTH = 2
ROW_BYTES = 8 + 4 * (1 + WIDTH)
KEYS = st.integers(0, 30) | st.integers(0, 2**60)
OPENED = []


@pytest.fixture(autouse=True)
def closed():
    yield
    while OPENED:
        OPENED.pop().close()


def finish(sorter):
    OPENED.append(sorter.finish())
    return OPENED[-1]


def block_of(keys, values=None):
    keys = np.asarray(keys, np.int64)
    if values is None:
        values = np.stack([keys % 1000, keys % 7], axis=1)
    return RowBlock(keys, np.asarray(values, np.float32).reshape(len(keys), WIDTH))


def joined(blocks):
    blocks = list(blocks)
    keys = [key for block in blocks for key in block.keys.tolist()]
    return keys, [row for block in blocks for row in block.values.tolist()]


def sort_all(folder, blocks, **arguments):
    with RowSorter(folder, WIDTH, **arguments) as sorter:
        for block in blocks:
            sorter.add(block.keys, block.values)
        return finish(sorter)


@given(
    st.lists(st.lists(st.lists(KEYS, max_size=4), max_size=5), min_size=1, max_size=4),
    st.integers(1, 6),
)
def test_merged_streams_are_all_rows_in_order(pieces, block_rows):
    streams = []
    expected = []
    for number, stream in enumerate(pieces):
        keys = sorted(key for piece in stream for key in piece)
        rows = [(key, float(number), float(place)) for place, key in enumerate(keys)]
        expected += rows
        sizes = np.cumsum([len(piece) for piece in stream])[:-1] if stream else []
        parts = np.split(np.arange(len(keys)), sizes)
        streams.append(
            iter([block_of([rows[i][0] for i in p], [rows[i][1:] for i in p]) for p in parts])
        )
    blocks = list(merge_blocks(streams, block_rows))
    assert all(0 < len(block.keys) <= block_rows for block in blocks)
    keys, values = joined(blocks)
    # Rows of one key in the order of the streams, and as they stand in each.
    assert [(key, *row) for key, row in zip(keys, values, strict=True)] == sorted(expected)


def test_merged_blocks_have_rows():
    with pytest.raises(ValueError, match="block_rows 0 is below 1"):
        next(merge_blocks([], 0))


@given(
    st.lists(st.dictionaries(KEYS, st.booleans(), max_size=12), min_size=1, max_size=4),
    st.integers(1, 8),
    st.randoms(use_true_random=False),
)
def test_the_newest_row_of_a_key_stays_unless_it_is_a_tombstone(
    tmp_path_factory, files, run_rows, chance
):
    """Files from the newest to the oldest: a key and whether it is deleted there."""
    expected = {}
    for age, file in reversed(list(enumerate(files))):
        for key, deleted in file.items():
            if deleted:
                expected.pop(key, None)
            else:
                expected[key] = [float(age), float(key % 97)]
    parts = [(age, key, gone) for age, file in enumerate(files) for key, gone in file.items()]
    chance.shuffle(parts)
    folder = tmp_path_factory.getbasetemp()
    with RowSorter(folder, WIDTH, run_bytes=run_rows * ROW_BYTES) as sorter:
        for age, key, deleted in parts:
            sorter.add(
                np.array([key]),
                np.array([[age, key % 97]], np.float32),
                age=age,
                deleted_N=np.array([deleted]),
            )
        rows = finish(sorter)
    assert rows.num_rows == len(expected)
    keys, values = joined(rows.iterate_rows(3))
    assert keys == sorted(expected)
    assert values == [expected[key] for key in keys]
    sought = np.array(sorted({key for _, key, _ in parts} | {1, 2**40}), np.int64)
    found = rows.find(np.random.default_rng(0).permutation(sought))
    assert joined([found]) == (keys, values)
    OPENED.pop().close()


def test_a_row_wins_over_a_tombstone_of_the_same_file(tmp_path):
    with RowSorter(tmp_path, WIDTH, run_bytes=ROW_BYTES) as sorter:
        sorter.add(np.array([5]), np.zeros((1, WIDTH), np.float32), deleted_N=np.array([True]))
        sorter.add(np.array([5]), np.ones((1, WIDTH), np.float32))
        assert joined(finish(sorter).iterate_rows(9)) == ([5], [[1.0, 1.0]])


@pytest.mark.parametrize("run_rows", [1, 2, 100])
def test_a_key_that_stands_twice_in_a_file_is_told(tmp_path, run_rows):
    with pytest.raises(ValueError, match="key 4 stands twice"):
        sort_all(tmp_path, [block_of([4, 9]), block_of([4])], run_bytes=run_rows * ROW_BYTES)


@pytest.mark.parametrize("num_keys", [0, 1, 63, 64, 65, 20_000])
def test_rows_are_found_among_many(tmp_path, monkeypatch, num_keys):
    monkeypatch.setattr(row_sorting, "KEYS_SOUGHT", 100)
    keys = np.random.default_rng(1).permutation(np.arange(num_keys, dtype=np.int64) * 3)
    rows = sort_all(tmp_path, [block_of(keys)], run_bytes=3000 * ROW_BYTES)
    sought = np.arange(-2, 3 * num_keys + 5, 2, dtype=np.int64)
    found = rows.find(sought)
    expected = np.intersect1d(sought, keys)
    assert found.keys.tolist() == expected.tolist()
    assert np.array_equal(found.values, block_of(expected).values)
    with pytest.raises(ValueError, match="block_rows 0 is below 1"):
        next(rows.iterate_rows(0))


def test_an_index_that_would_be_large_is_thinned(tmp_path, monkeypatch):
    monkeypatch.setattr(row_sorting, "MOST_INDEXED", 4)
    keys = np.arange(1000, dtype=np.int64)
    rows = sort_all(tmp_path, [block_of(keys)])
    assert len(rows.index) == 4
    assert rows.find(keys[::-7]).keys.tolist() == keys[::-7][::-1].tolist()


def peak_bytes(folder, num_rows, run_bytes):
    """Memory that sorting, reading and finding take at most; NumPy tells tracemalloc of arrays."""

    def rows():
        for first in range(0, num_rows, 1000):
            keys = np.arange(first, first + 1000, dtype=np.int64) * 7919 % (1 << 40)
            yield block_of(keys, np.ones((1000, WIDTH)))

    tracemalloc.start()
    found = sort_all(folder, rows(), run_bytes=run_bytes)
    assert sum(len(block.keys) for block in found.iterate_rows(5000)) == num_rows
    assert len(found.find(np.arange(1000, dtype=np.int64) * 7919).keys) == 1000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_memory_is_that_of_a_run_however_many_rows_there_are(tmp_path, monkeypatch):
    monkeypatch.setattr(row_sorting, "BLOCK_ROWS", 5000)
    run_bytes = 20_000 * ROW_BYTES
    peak_bytes(tmp_path, 20_000, run_bytes)
    few, many = (peak_bytes(tmp_path, num_rows, run_bytes) for num_rows in (40_000, 400_000))
    # All rows together would be 8 MB; a key in 64 is held.
    assert many < 1.25 * few < 2e6


def test_no_file_is_left_behind_even_if_the_process_ends_now(tmp_path):
    rows = sort_all(tmp_path, [block_of([3, 1])])
    assert list(tmp_path.iterdir()) == []
    assert joined(rows.iterate_rows(1))[0] == [1, 3]


def test_a_full_disk_is_told(tmp_path):
    def full(_folder):
        return Path("/dev/full").open("wb", buffering=0)

    with pytest.raises(RunFolderError, match="the disk is full"):
        sort_all(tmp_path, [block_of([3, 1])], open_file=full)


def test_a_folder_that_is_not_there_is_told(tmp_path):
    with pytest.raises(RunFolderError, match="cannot be written"):
        RowSorter(tmp_path / "absent", WIDTH)
