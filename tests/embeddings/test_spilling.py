"""Rows beyond a memory limit lie in a file; nothing else about them is different."""

import gc
import io
import os
import resource
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ctr_pipeline.embeddings import spilling
from ctr_pipeline.embeddings.cut_storage import CutStorage
from ctr_pipeline.embeddings.log_chain import CutFile
from ctr_pipeline.embeddings.row_log import restore_rows
from ctr_pipeline.embeddings.snapshot import RowSnapshot
from ctr_pipeline.embeddings.spilling import MemoryLimit
from ctr_pipeline.embeddings.store import EmbeddingStore
from ctr_pipeline.errors import RunFolderError
from ctr_pipeline.specs.initializer import InitializerSpec
from ctr_pipeline.specs.optimizer import OptimizerSpec
from ctr_pipeline.specs.segment import SegmentSpec
from ctr_pipeline.specs.table import TableSpec

SEGMENTS = (
    SegmentSpec(
        "linear", 1, OptimizerSpec(name="adagrad", learning_rate=0.05), "sum", l2_strength=2.0
    ),
    SegmentSpec(
        "vector",
        5,
        OptimizerSpec(name="adam", learning_rate=0.01),
        "mean",
        initializer=InitializerSpec(name="uniform", scale=0.1),
    ),
)
TABLES = (TableSpec("a", 3000), TableSpec("b", 500))
# 2 of header, 6 values, 11 of state, 1 of padding: records lie across borders of pages.
RECORD_BYTES = 80


def make_store(limit=None, threads=1):
    return EmbeddingStore(TABLES, SEGMENTS, seed=3, threads=threads, memory_limit=limit)


def train(store, *, num_steps, seed=0, first_step=1):
    """Skewed ids, so that rows in memory and in the file are updated again and again."""
    chance = np.random.default_rng(seed)
    sizes = np.array([table.num_ids for table in TABLES])
    for step in range(first_step, first_step + num_steps):
        ids = (sizes * chance.random((128, 2)) ** 2).astype(np.int64)
        prepared = store.prepare(ids, 120)
        store.locate(prepared, create=True)
        values = store.gather(prepared)
        gradients = np.sin(7 * values) + chance.normal(size=values.shape).astype(np.float32)
        store.update(prepared, gradients, step=step, learning_rate_factor=1.0, num_examples=120)


def content(store):
    """All bits of all rows, in their order."""
    file = io.BytesIO()
    store.save(file)
    return file.getvalue()


def mapped_files(folder):
    """Files of a folder that this process has mapped, by name."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line.split(maxsplit=5)[5] for line in lines if f"{folder}/" in line]


def open_files(folder):
    """Links to the files of a folder that this process has open."""
    return [
        link
        for link in Path("/proc/self/fd").iterdir()
        if link.is_symlink() and str(folder) in str(link.readlink())
    ]


@contextmanager
def longest_file(num_bytes):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@given(st.integers(0, 200_000), st.integers(1, 3), st.sampled_from([4096, 1 << 24]))
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_stream_trains_the_same_bits_under_any_limit(tmp_path_factory, limit, threads, growth):
    folder = tmp_path_factory.mktemp("rows")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spilling, "GROWTH_BYTES", growth)
        free, bound = make_store(), make_store(MemoryLimit(limit, folder), threads)
        for store in (free, bound):
            train(store, num_steps=30)
    assert content(bound) == content(free)
    in_memory = min(limit // 4096 * 4096, RECORD_BYTES * free.num_rows)
    assert bound.spilled_bytes() == RECORD_BYTES * free.num_rows - in_memory
    assert bound.memory_bytes() == free.memory_bytes() - bound.spilled_bytes()
    assert free.spilled_bytes() == 0


@pytest.mark.parametrize("native", [True, False])
def test_spill_file_holds_the_bytes_reported_as_spilled(tmp_path, monkeypatch, native):
    if not native:
        monkeypatch.delattr(os, "posix_fallocate")
    monkeypatch.setattr(spilling, "GROWTH_BYTES", 8192)
    opened = []
    make_file = spilling.tempfile.mkstemp

    def noting(*arguments):
        opened.append(make_file(*arguments)[0])
        path = Path(f"/proc/self/fd/{opened[0]}").readlink()
        assert path.parent == tmp_path / "new"
        return opened[0], path

    monkeypatch.setattr(spilling.tempfile, "mkstemp", noting)
    store = make_store(MemoryLimit(10_000, tmp_path / "new"))
    store.read_rows(np.arange(102), create=True)
    assert store.spilled_bytes() == 0
    assert not (tmp_path / "new").exists()
    train(store, num_steps=20)
    (descriptor,) = opened
    spilled = store.spilled_bytes()
    assert spilled == store.num_rows * RECORD_BYTES - 8192 > 50_000
    size = os.fstat(descriptor).st_size
    assert spilled <= size < spilled + 8192
    records = store.rows.records_NR[: store.num_rows].tobytes()
    assert os.pread(descriptor, spilled, 0) == records[8192:]
    # Nothing is left of it when the process ends, however that may be.
    assert list((tmp_path / "new").iterdir()) == []
    assert [name.endswith("(deleted)") for name in mapped_files(tmp_path)] == [True]


def test_blocks_go_back_to_the_disk_with_the_rows(tmp_path):
    store = make_store(MemoryLimit(0, tmp_path))
    train(store, num_steps=5)
    before = content(store)
    (link,) = open_files(tmp_path)
    assert link.stat().st_blocks * 512 >= store.spilled_bytes() > 0
    store.release()
    assert link.stat().st_blocks == 0
    assert (store.num_rows, store.spilled_bytes()) == (0, 0)
    train(store, num_steps=5)
    assert content(store) == before
    del store
    gc.collect()
    assert open_files(tmp_path) == []
    assert mapped_files(tmp_path) == []


def test_a_full_disk_is_an_error_that_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(spilling, "GROWTH_BYTES", 4096)
    store = make_store(MemoryLimit(4096, tmp_path / "run"))
    for most_bytes, num_rows in ((4096, 51), (1 << 16, 102)):
        store.read_rows(np.arange(num_rows), create=True)
        before = content(store)
        with longest_file(most_bytes - 4096), pytest.raises(RunFolderError) as caught:
            store.read_rows(np.arange(3000), create=True)
        assert caught.value.place == str(tmp_path / "run")
        assert "larger than files may be" in str(caught.value)
        assert content(store) == before
    free = make_store()
    for one in (store, free):
        one.read_rows(np.arange(102), create=True)
        train(one, num_steps=10)
    assert content(store) == content(free)


def test_a_folder_that_cannot_be_is_named(tmp_path):
    (tmp_path / "run").write_text("")
    store = make_store(MemoryLimit(0, tmp_path / "run"))
    with pytest.raises(RunFolderError, match="run: cannot be written"):
        store.read_rows(np.arange(3), create=True)
    assert store.num_rows == 0


def test_rows_are_read_from_checkpoints_beyond_the_limit(tmp_path):
    free, bound = make_store(), make_store(MemoryLimit(8192, tmp_path / "loaded"))
    train(free, num_steps=10)
    bound.load(io.BytesIO(content(free)))
    assert content(bound) == content(free)
    assert bound.spilled_bytes() > 0
    for store in (free, bound):
        train(store, num_steps=10, first_step=11)
    assert content(bound) == content(free)

    files = cut_of(bound, tmp_path)
    again = make_store(MemoryLimit(8192, tmp_path / "restored"))
    restore_rows(
        again, CutStorage.at(tmp_path), [[file] for file in files], num_partitions=4, cut=1
    )
    assert again.spilled_bytes() == bound.spilled_bytes()
    for one, other in zip(again.iterate_rows(100), free.iterate_rows(100), strict=True):
        np.testing.assert_array_equal(one.keys, other.keys)
        np.testing.assert_array_equal(one.values, other.values)


def cut_of(store, folder) -> tuple[CutFile, ...]:
    snapshot = RowSnapshot(store, cut=1)
    snapshot.begin(full=True)
    return snapshot.write(CutStorage.at(folder), num_partitions=4, partitions=range(4))
