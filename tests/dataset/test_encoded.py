import numpy as np
import pytest

from ctr_pipeline.dataset.encoded import (
    EncodedReader,
    EncodedWriter,
    join_parts,
    load_meta,
    part_folder,
)
from ctr_pipeline.dataset.order import EpochOrder
from ctr_pipeline.errors import DataError


def write_rows(folder, num_rows, num_fields=3, num_numbers=2):
    generator = np.random.default_rng(0)
    ids = generator.integers(0, 1000, (num_rows, num_fields), dtype=np.int32)
    numbers = generator.normal(size=(num_rows, num_numbers)).astype(np.float32)
    labels = generator.integers(0, 2, num_rows).astype(np.float32)
    with EncodedWriter(
        folder, num_fields=num_fields, num_numbers=num_numbers, fingerprint="f"
    ) as writer:
        half = num_rows // 2
        writer.write(ids[:half], numbers[:half], labels[:half])
        writer.write(ids[half:], numbers[half:], labels[half:])
    return ids, numbers, labels


def test_rows_come_back_as_they_were_written(tmp_path):
    ids, numbers, labels = write_rows(tmp_path, 1001)
    with EncodedReader(tmp_path) as reader:
        assert reader.meta.num_positive == labels.sum()
        batches = list(reader.read_in_order(100))
    assert [batch.num_rows for batch in batches] == [100] * 10 + [1]
    assert np.array_equal(np.concatenate([b.ids_BF for b in batches]), ids)
    assert np.array_equal(np.concatenate([b.numbers_BN for b in batches]), numbers)
    assert np.array_equal(np.concatenate([b.labels_B for b in batches]), labels)


@pytest.mark.parametrize(("num_fields", "num_numbers"), [(0, 2), (3, 0)])
def test_one_kind_of_input_may_be_absent(tmp_path, num_fields, num_numbers):
    ids, numbers, _ = write_rows(tmp_path, 10, num_fields, num_numbers)
    with EncodedReader(tmp_path) as reader:
        rows = reader.read_range(2, 5)
    assert np.array_equal(rows.ids_BF, ids[2:7])
    assert np.array_equal(rows.numbers_BN, numbers[2:7])


def test_a_task_reads_its_rows_in_its_order(tmp_path):
    ids, _, _ = write_rows(tmp_path, 5000)
    order = EpochOrder(5000, 50, seed=1, epoch=0, batches_per_task=10)
    with EncodedReader(tmp_path) as reader:
        task = order.rows_of(3)
        read = np.concatenate([batch.ids_BF for batch in reader.read_task(task, 50)])
    rows = np.concatenate([np.arange(first, first + count) for first, count in task.ranges])
    assert np.array_equal(read, ids[rows[task.permutation]])


def test_rows_cut_short_are_not_there(tmp_path):
    write_rows(tmp_path, 100)
    file = tmp_path / "rows.bin"
    file.write_bytes(file.read_bytes()[:-3])
    assert load_meta(tmp_path) is None
    with pytest.raises(DataError, match="missing or damaged"):
        EncodedReader(tmp_path)


def write_and_fail(folder):
    with EncodedWriter(folder, num_fields=1, num_numbers=0, fingerprint="f") as writer:
        one = np.zeros(1, np.float32)
        writer.write(np.zeros((1, 1), np.int32), np.zeros((1, 0), np.float32), one)
        raise KeyError


def test_an_error_while_writing_leaves_no_rows(tmp_path):
    with pytest.raises(KeyError):
        write_and_fail(tmp_path)
    assert load_meta(tmp_path) is None


def test_folders_are_read_as_one(tmp_path):
    parts = []
    for name, num_rows in (("a", 700), ("b", 1), ("c", 300)):
        write_rows(tmp_path / name, num_rows)
        with EncodedReader(tmp_path / name) as reader:
            parts.append(reader.read_range(0, num_rows))
    ids = np.concatenate([part.ids_BF for part in parts])
    numbers = np.concatenate([part.numbers_BN for part in parts])
    order = EpochOrder(1001, 50, seed=1, epoch=0, batches_per_task=3)
    with EncodedReader(*(tmp_path / name for name in "abc")) as reader:
        assert (reader.meta.num_rows, reader.meta.fingerprint) == (1001, "f")
        assert reader.meta.num_positive == sum(part.labels_B.sum() for part in parts)
        for first, count in ((0, 1001), (699, 3), (700, 1), (701, 300), (690, 20)):
            read = reader.read_range(first, count)
            assert np.array_equal(read.ids_BF, ids[first : first + count])
            assert np.array_equal(read.numbers_BN, numbers[first : first + count])
        for task in order.tasks():
            rows = np.concatenate([np.arange(first, first + size) for first, size in task.ranges])
            read = np.concatenate([batch.ids_BF for batch in reader.read_task(task, 50)])
            assert np.array_equal(read, ids[rows[task.permutation]])


def test_folders_that_are_read_as_one_have_one_mean_weight(tmp_path):
    weights = {"a": np.array([1, 2], np.float32), "b": np.array([6], np.float32)}
    for name, values in weights.items():
        with EncodedWriter(
            tmp_path / name, num_fields=1, num_numbers=0, fingerprint="f", has_weights=True
        ) as writer:
            size = len(values)
            ids = np.zeros((size, 1), np.int32)
            writer.write(ids, np.zeros((size, 0), np.float32), np.ones(size, np.float32), values)
    with EncodedReader(tmp_path / "a", tmp_path / "b") as reader:
        read = reader.read_range(0, 3).weights_B
    np.testing.assert_allclose(read, np.array([1, 2, 6]) / 3)


def test_folders_of_different_records_are_no_one(tmp_path):
    write_rows(tmp_path / "a", 10, num_fields=3)
    write_rows(tmp_path / "b", 10, num_fields=4)
    with pytest.raises(ValueError, match="different layouts"):
        EncodedReader(tmp_path / "a", tmp_path / "b")


def test_parts_are_read_as_one_split_and_others_are_deleted(tmp_path):
    write_rows(tmp_path, 5)
    expected = []
    # The first attempt was lost, and no row of the second part was drawn.
    for name, num_rows in (("0-2", 700), ("1-1", 0), ("2-1", 300), ("0-1", 9)):
        part = part_folder(tmp_path, name)
        part.parent.mkdir(exist_ok=True)
        write_rows(part, num_rows)
        if num_rows:
            with EncodedReader(part) as reader:
                expected.append(reader.read_range(0, num_rows).ids_BF)
    join_parts(tmp_path, ["0-2", "1-1", "2-1"])
    with EncodedReader(tmp_path) as reader:
        assert reader.meta.num_rows == load_meta(tmp_path).num_rows == 1000
        for first, count in ((0, 1000), (699, 3), (700, 1), (999, 1)):
            read = reader.read_range(first, count).ids_BF
            assert np.array_equal(read, np.concatenate(expected[:2])[first : first + count])
    assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == ["0-2", "1-1", "2-1"]
    assert not (tmp_path / "rows.bin").exists()
    with EncodedReader(tmp_path, tmp_path) as reader:
        assert reader.meta.num_rows == 2000


@pytest.mark.parametrize("missing", ["rows.bin", "meta.json"])
def test_a_split_that_lacks_a_part_is_not_whole(tmp_path, missing):
    for name in ("0-1", "1-1"):
        part_folder(tmp_path, name).parent.mkdir(exist_ok=True)
        write_rows(part_folder(tmp_path, name), 5)
    join_parts(tmp_path, ["0-1", "1-1"])
    (part_folder(tmp_path, "1-1") / missing).unlink()
    if missing == "rows.bin":
        assert load_meta(tmp_path) is None
    with pytest.raises(DataError, match="missing or damaged"):
        EncodedReader(tmp_path)


def test_one_writer_replaces_parts(tmp_path):
    part_folder(tmp_path, "0-1").parent.mkdir()
    write_rows(part_folder(tmp_path, "0-1"), 5)
    join_parts(tmp_path, ["0-1"])
    write_rows(tmp_path, 3)
    assert load_meta(tmp_path).num_rows == 3
    assert not (tmp_path / "parts").exists()
