import zlib
from dataclasses import replace

import numpy as np
import pytest

from ctr_pipeline.embeddings.cut_storage import CutStorage
from ctr_pipeline.embeddings.dense import DenseParameters
from ctr_pipeline.embeddings.dense_log import restore_range, save_range
from ctr_pipeline.embeddings.optimizers import OPTIMIZERS
from ctr_pipeline.errors import CheckpointError, TrainingError
from ctr_pipeline.specs.optimizer import OptimizerSpec

NUM_DENSE = 11


def trained(name, num_values, seed=0):
    rng = np.random.default_rng(seed)
    dense = DenseParameters(
        rng.normal(size=num_values).astype(np.float32), OptimizerSpec(name=name, learning_rate=0.1)
    )
    for step in (1, 2, 3):
        dense.update(rng.normal(size=num_values).astype(np.float32), step=step)
    return dense


def split(dense, folder, bounds, cut=1):
    """Saves ranges of a whole vector, each trained by itself."""
    optimizer = dense.optimizer
    num_parts = len(dense.slots) // len(dense.values)
    files = []
    for first, last in bounds:
        slots = [
            dense.slots[part * NUM_DENSE + first : part * NUM_DENSE + last]
            for part in range(num_parts)
        ]
        slots = np.concatenate(slots) if slots else np.empty(0, np.float32)
        files.append(
            save_range(
                CutStorage.at(folder),
                dense.values[first:last],
                slots,
                optimizer,
                cut=cut,
                first=first,
                num_dense=NUM_DENSE,
            )
        )
    return files


def zeros(name, num_values):
    return DenseParameters(
        np.zeros(num_values, np.float32), OptimizerSpec(name=name, learning_rate=0.1)
    )


@pytest.mark.parametrize("name", sorted(set(OPTIMIZERS) - {"rowwise_adagrad"}))
def test_ranges_are_restored_under_any_other_division(name, tmp_path):
    dense = trained(name, NUM_DENSE)
    files = split(dense, tmp_path, [(0, 4), (4, 5), (5, 11)])
    assert [(file.first, file.num_rows, file.kind) for file in files] == [
        (0, 4, "dense"),
        (4, 1, "dense"),
        (5, 6, "dense"),
    ]
    whole = zeros(name, NUM_DENSE)
    restore_range(whole, CutStorage.at(tmp_path), files, first=0, num_dense=NUM_DENSE)
    np.testing.assert_array_equal(whole.values, dense.values)
    np.testing.assert_array_equal(whole.slots, dense.slots)
    gradient = np.linspace(-1, 1, NUM_DENSE, dtype=np.float32)
    dense.update(gradient, step=4)
    for first, last in ((0, 6), (6, 10), (10, 11)):
        part = zeros(name, last - first)
        restore_range(part, CutStorage.at(tmp_path), files, first=first, num_dense=NUM_DENSE)
        part.update(gradient[first:last], step=4)
        np.testing.assert_array_equal(part.values, dense.values[first:last])
    nothing = zeros(name, 0)
    restore_range(nothing, CutStorage.at(tmp_path), files, first=11, num_dense=NUM_DENSE)


def test_an_accumulator_of_a_whole_range_becomes_the_weighted_mean(tmp_path):
    files = []
    parts = [(0, 4), (4, 11)]
    accumulators = []
    for first, last in parts:
        dense = trained("rowwise_adagrad", last - first, seed=first)
        accumulators.append(float(dense.slots[0]))
        files.append(
            save_range(
                CutStorage.at(tmp_path),
                dense.values,
                dense.slots,
                dense.optimizer,
                cut=1,
                first=first,
                num_dense=NUM_DENSE,
            )
        )
    for first, last in ((0, 11), (0, 4), (2, 6), (5, 9)):
        part = zeros("rowwise_adagrad", last - first)
        restore_range(part, CutStorage.at(tmp_path), files, first=first, num_dense=NUM_DENSE)
        shares = [
            max(0, min(last, end) - max(first, begin)) / (last - first) for begin, end in parts
        ]
        np.testing.assert_allclose(part.slots, [np.dot(shares, accumulators)], rtol=1e-6)


def test_files_that_do_not_fit_are_refused_and_change_nothing(tmp_path):
    dense = trained("adam", NUM_DENSE)
    files = split(dense, tmp_path, [(0, 4), (4, 11)])
    target = trained("adam", NUM_DENSE, seed=5)
    before = target.values.copy(), target.slots.copy()
    with pytest.raises(CheckpointError, match="dense parameter 4 is in no file"):
        restore_range(target, CutStorage.at(tmp_path), files[:1], first=0, num_dense=NUM_DENSE)
    with pytest.raises(CheckpointError, match="num_dense: 11 in the file, 12 configured"):
        restore_range(target, CutStorage.at(tmp_path), files, first=0, num_dense=12)
    with pytest.raises(CheckpointError, match="optimizer: 'adam' in the file, 'sgd' configured"):
        restore_range(zeros("sgd", 4), CutStorage.at(tmp_path), files, first=0, num_dense=NUM_DENSE)
    path = tmp_path / files[1].name
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="checksum differs") as caught:
        restore_range(target, CutStorage.at(tmp_path), files, first=0, num_dense=NUM_DENSE)
    assert caught.value.place == files[1].name
    # A range that the damaged file has no part in can still be read.
    restore_range(zeros("adam", 4), CutStorage.at(tmp_path), files, first=0, num_dense=NUM_DENSE)
    path.unlink()
    CutStorage.at(tmp_path).begin("job-1")
    with pytest.raises(CheckpointError, match="is missing"):
        restore_range(target, CutStorage.at(tmp_path), files, first=0, num_dense=NUM_DENSE)
    np.testing.assert_array_equal(target.values, before[0])
    np.testing.assert_array_equal(target.slots, before[1])


def test_an_empty_range_has_no_file(tmp_path):
    empty = zeros("adam", 0)
    with pytest.raises(ValueError, match="an empty range has no file"):
        save_range(
            CutStorage.at(tmp_path),
            empty.values,
            empty.slots,
            empty.optimizer,
            cut=1,
            first=3,
            num_dense=3,
        )
    assert not list(tmp_path.iterdir())


def test_a_false_number_of_values_takes_no_memory(tmp_path):
    (file,) = split(trained("adam", NUM_DENSE), tmp_path, [(0, NUM_DENSE)])
    path = tmp_path / file.name
    vast = 10**12
    content = path.read_bytes()
    for key, value in (("num_values", NUM_DENSE), ("num_dense", NUM_DENSE)):
        content = content.replace(f'"{key}": {value}'.encode(), f'"{key}": {vast}'.encode())
    length = len(content) - path.stat().st_size + int.from_bytes(content[8:12], "little")
    content = content[:8] + length.to_bytes(4, "little") + content[12:]
    path.write_bytes(content)
    file = replace(file, num_rows=vast, num_bytes=len(content), crc32=zlib.crc32(content))
    with pytest.raises(CheckpointError, match="cannot hold 1,000,000,000,000 values"):
        restore_range(
            zeros("adam", NUM_DENSE), CutStorage.at(tmp_path), [file], first=0, num_dense=vast
        )


def test_values_that_are_not_finite_are_not_written(tmp_path):
    dense = trained("adam", NUM_DENSE)
    dense.values[5] = np.inf
    with pytest.raises(TrainingError, match="not finite"):
        split(dense, tmp_path, [(0, NUM_DENSE)])
    assert not list(tmp_path.iterdir())
