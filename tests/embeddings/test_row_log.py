import errno
import io
import itertools
import json
import os
import random
import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from ctr_pipeline.embeddings.counts import IdCounts
from ctr_pipeline.embeddings.cut_storage import CutStorage
from ctr_pipeline.embeddings.log_chain import extend_chain
from ctr_pipeline.embeddings.partition import partitions_of
from ctr_pipeline.embeddings.row_log import RowLogWriter, restore_rows, verify_files
from ctr_pipeline.embeddings.snapshot import RowSnapshot
from ctr_pipeline.embeddings.store import EmbeddingStore
from ctr_pipeline.embeddings.update_kernels import HEADER_WORDS
from ctr_pipeline.errors import CheckpointError, StorageError, TrainingError
from ctr_pipeline.specs.initializer import InitializerSpec
from ctr_pipeline.specs.optimizer import OptimizerSpec
from ctr_pipeline.specs.segment import SegmentSpec
from ctr_pipeline.specs.table import TableSpec

SEGMENTS = (
    SegmentSpec("linear", 1, OptimizerSpec(name="adagrad", learning_rate=0.05), "sum"),
    SegmentSpec(
        "vector",
        3,
        OptimizerSpec(name="adam", learning_rate=0.01),
        "mean",
        initializer=InitializerSpec(name="uniform", scale=0.1),
    ),
)
TABLES = (TableSpec("a", 50), TableSpec("b", 900))
NUM_PARTITIONS = 4


def make_store(segments=SEGMENTS, tables=TABLES, seed=3):
    store = EmbeddingStore(tables, segments, seed=seed, threads=1)
    store.set_training_counts([IdCounts.of_all(np.arange(table.num_ids) + 5) for table in tables])
    return store


def keys_of(table, ids):
    return (table << 44) | np.asarray(ids, np.int64)


EVERYTHING = np.concatenate([keys_of(0, np.arange(50)), keys_of(1, np.arange(900))])


def train(store, keys, step):
    rng = np.random.default_rng(step)
    store.read_rows(keys, create=True)
    gradients = rng.normal(size=(len(keys), store.width)).astype(np.float32)
    store.apply_gradients(
        keys,
        gradients,
        np.ones(len(keys), np.int32),
        step=step,
        learning_rate_factor=1.0,
        num_examples=2,
    )


def write_cut(store, folder, cut, *, full, partitions=range(NUM_PARTITIONS)):
    snapshot = RowSnapshot(store, cut=cut)
    snapshot.begin(full=full)
    return snapshot.write(
        CutStorage.at(folder), num_partitions=NUM_PARTITIONS, partitions=partitions
    )


def extended(chains, files):
    return {
        **chains,
        **{file.partition: extend_chain(chains.get(file.partition, ()), file) for file in files},
    }


def restore(folder, chains, cut=1, **arguments):
    store = make_store(**arguments)
    restore_rows(store, CutStorage.at(folder), chains, num_partitions=NUM_PARTITIONS, cut=cut)
    return store


def state(store):
    rows = store.rows
    return {int(rows.keys_N[row]): rows.records_NR[row].tobytes() for row in range(rows.num_rows)}


def read_table(folder, file):
    with pa.ipc.open_file(str(folder / file.name)) as reader:
        return reader.read_all()


@pytest.fixture
def cut(tmp_path):
    """A store with all rows, and its files."""
    CutStorage.at(tmp_path).begin("job-1")
    store = make_store()
    train(store, EVERYTHING, 1)
    return store, write_cut(store, tmp_path, 1, full=True)


def test_base_and_deltas_equal_a_full_cut_bit_for_bit(tmp_path):
    store, chains = make_store(), {}
    rng = np.random.default_rng(0)
    for number in range(1, 6):
        train(store, np.sort(rng.choice(EVERYTHING, 60, replace=False)), number)
        files = write_cut(store, tmp_path, number, full=False)
        assert {file.kind for file in files} == {"base" if number == 1 else "delta"}
        chains = extended(chains, files)
    assert max(len(chain) for chain in chains.values()) == 5
    by_deltas = restore(tmp_path, list(chains.values()), cut=5)
    whole = write_cut(store, tmp_path, 6, full=True)
    at_once = restore(tmp_path, [[file] for file in whole], cut=6)
    assert state(by_deltas) == state(at_once) == state(store)
    # The restored store goes on with deltas, and trains as the other one does.
    train(store, EVERYTHING[:40], 7)
    train(by_deltas, EVERYTHING[:40], 7)
    assert state(by_deltas) == state(store)
    following = write_cut(by_deltas, tmp_path, 7, full=False)
    assert sum(file.num_rows for file in following) == 40
    assert {file.kind for file in following} == {"delta"}
    again = restore(tmp_path, list(extended(chains, following).values()), cut=7)
    assert state(again) == state(store)


def test_files_are_plain_arrow_tables(tmp_path, cut):
    store, files = cut
    assert [file.partition for file in files] == list(range(NUM_PARTITIONS))
    assert sum(file.num_rows for file in files) == len(EVERYTHING)
    seen = []
    for file in files:
        table = read_table(tmp_path, file)
        assert [str(field.type) for field in table.schema] == [
            "int32",
            "int64",
            "fixed_size_list<item: float not null>[4]",
            "fixed_size_list<item: float not null>[7]",
            "int32",
            "int32",
            "bool",
        ]
        assert table.column_names == [
            "table",
            "id",
            "values",
            "slots",
            "count",
            "last_seen",
            "deleted",
        ]
        about = json.loads(table.schema.metadata[b"ctrpipe.row_log"])
        assert about == {
            "format": 1,
            "tables": [{"name": "a", "num_ids": 50}, {"name": "b", "num_ids": 900}],
            "segments": [
                {"name": "linear", "dim": 1, "optimizer": "adagrad"},
                {"name": "vector", "dim": 3, "optimizer": "adam"},
            ],
            "seed": 3,
            "partition": file.partition,
            "num_partitions": NUM_PARTITIONS,
            "cut": 1,
            "kind": "base",
        }
        keys = (table["table"].to_numpy().astype(np.int64) << 44) | table["id"].to_numpy()
        assert (partitions_of(keys, NUM_PARTITIONS) == file.partition).all()
        values = np.array(table["values"].to_pylist(), np.float32)
        np.testing.assert_array_equal(values, store.read_rows(keys))
        slots = np.array(table["slots"].to_pylist(), np.float32)
        assert (slots[:, 0] > 0.1).all()
        assert table["count"].to_pylist() == (table["id"].to_numpy() + 5).tolist()
        assert set(table["last_seen"].to_pylist()) == {1}
        assert set(table["deleted"].to_pylist()) == {False}
        seen.extend(keys.tolist())
    assert sorted(seen) == EVERYTHING.tolist()


def test_any_number_of_servers_restores_what_others_wrote(tmp_path):
    one = make_store()
    train(one, EVERYTHING, 1)
    partitions = partitions_of(EVERYTHING, NUM_PARTITIONS)
    files = []
    for server in range(3):
        mine = np.isin(partitions, np.arange(server, NUM_PARTITIONS, 3))
        store = make_store()
        train(store, EVERYTHING[mine], 1)
        files += write_cut(
            store, tmp_path, 1, full=True, partitions=range(server, NUM_PARTITIONS, 3)
        )
    everything = {}
    for server in range(2):
        chains = [[file] for file in files if file.partition % 2 == server]
        store = restore(tmp_path, chains)
        keys = list(state(store))
        assert (partitions_of(np.array(keys), NUM_PARTITIONS) % 2 == server).all()
        everything |= state(store)
    assert everything == state(restore(tmp_path, [[file] for file in files]))
    assert set(everything) == set(EVERYTHING.tolist())


def test_rows_that_were_deleted_stay_away_until_they_are_written_again(tmp_path, cut):
    store, files = cut
    chains = extended({}, files)
    gone, back = EVERYTHING[10:30], EVERYTHING[20:25]
    for number, keys, deleted in ((2, EVERYTHING[25:40], gone), (3, back, EVERYTHING[:2])):
        train(store, keys, number)
        snapshot = RowSnapshot(store, cut=number)
        snapshot.begin(full=False)
        writer = RowLogWriter(
            CutStorage.at(tmp_path),
            store,
            cut=number,
            kind="delta",
            num_partitions=NUM_PARTITIONS,
            partitions=range(NUM_PARTITIONS),
        )
        # Of a key in both, the tombstone must not stand beside the row in one file.
        writer.put_deleted(np.setdiff1d(deleted, keys))
        while snapshot.write_some(writer):
            pass
        chains = extended(chains, snapshot.finish(writer))
    expected = state(store)
    for key in [*np.setdiff1d(gone, [*back, *EVERYTHING[25:40]]), *EVERYTHING[:2]]:
        del expected[int(key)]
    assert state(restore(tmp_path, list(chains.values()), cut=3)) == expected


def test_rows_without_optimizer_state_and_partitions_without_rows(tmp_path):
    segments = (
        SegmentSpec(
            "v",
            2,
            OptimizerSpec(name="sgd", learning_rate=0.1),
            "sum",
            initializer=InitializerSpec(name="uniform", scale=0.1),
        ),
    )
    store = make_store(segments)
    files = write_cut(store, tmp_path, 1, full=False)
    assert [file.num_rows for file in files] == [0] * NUM_PARTITIONS
    train(store, keys_of(1, [3]), 1)
    delta = write_cut(store, tmp_path, 2, full=False)
    assert len(delta) == 1
    assert delta[0].num_rows == 1
    chains = extended(extended({}, files), delta)
    assert state(restore(tmp_path, list(chains.values()), segments=segments)) == state(store)
    assert write_cut(store, tmp_path, 3, full=False) == ()


def corrupt(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), "the file is missing"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "were written"),
        (lambda path: path.write_bytes(path.read_bytes() + b"x"), "were written"),
        (corrupt, "its checksum differs"),
    ],
)
def test_damaged_files_are_named_and_change_nothing(tmp_path, cut, damage, message):
    _, files = cut
    damage(tmp_path / files[2].name)
    other = make_store()
    train(other, EVERYTHING[:7], 9)
    before = state(other)
    with pytest.raises(CheckpointError, match=message) as caught:
        restore_rows(
            other,
            CutStorage.at(tmp_path),
            [[file] for file in files],
            num_partitions=NUM_PARTITIONS,
            cut=1,
        )
    assert caught.value.place == files[2].name
    assert "earlier checkpoint" in caught.value.remedy
    assert state(other) == before
    verify_files(CutStorage.at(tmp_path), files[:2])


def test_files_of_another_make_are_refused(tmp_path, cut):
    _, files = cut
    chains = [[file] for file in files]
    another = (
        SEGMENTS[0],
        SegmentSpec("vector", 3, OptimizerSpec(name="sgd", learning_rate=0.01), "mean"),
    )
    for arguments, difference in (
        ({"seed": 4}, "seed: 3 in the file, 4 configured"),
        ({"segments": another}, r"segments\[1\].optimizer: 'adam' in the file, 'sgd' configured"),
        ({"tables": TABLES[:1]}, "tables: 2 in the file, 1 configured"),
        ({"tables": (TABLES[0], TableSpec("b", 901))}, r"tables\[1\].num_ids: 900 in the file"),
    ):
        with pytest.raises(CheckpointError, match=difference):
            restore(tmp_path, chains, **arguments)
    store = make_store()
    with pytest.raises(CheckpointError, match="num_partitions: 4 in the file, 5 configured"):
        restore_rows(store, CutStorage.at(tmp_path), chains, num_partitions=5, cut=1)


def replaced(folder, file, **changes):
    """A file with a changed description or columns, and its new entry."""
    import dataclasses

    from ctr_pipeline.durable import crc32_of

    table = read_table(folder, file)
    about = json.loads(table.schema.metadata[b"ctrpipe.row_log"]) | changes.pop("about", {})
    for name, column in changes.items():
        index = table.column_names.index(name)
        changed = pa.array(column(table[name].to_numpy()))
        table = table.set_column(index, table.schema.field(name), changed)
    table = table.replace_schema_metadata({"ctrpipe.row_log": json.dumps(about)})
    path = folder / file.name
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)
    return dataclasses.replace(file, num_bytes=path.stat().st_size, crc32=crc32_of(path))


def test_files_whose_rows_cannot_be_are_refused(tmp_path, cut):
    _, files = cut
    original = (tmp_path / files[1].name).read_bytes()
    for changes, message in (
        ({"about": {"format": 2}}, "format: 2 in the file, 1 configured"),
        ({"about": {"partition": 0}}, "partition: 0 in the file, 1 configured"),
        ({"about": {"kind": "delta"}}, "kind: 'delta' in the file"),
        ({"table": lambda column: column + 2}, "an id that its table has not"),
        ({"table": lambda column: column - 1}, "an id that its table has not"),
        ({"id": lambda column: column + 900}, "an id that its table has not"),
        ({"id": lambda column: -column}, "an id that its table has not"),
        ({"id": lambda column: column // 2}, "a row of another partition"),
        ({"table": np.ones_like, "id": lambda column: column * 0 + column[-1]}, "stands twice"),
    ):
        changed = replaced(tmp_path, files[1], **changes)
        store = make_store()
        chains = [[file] for file in (files[0], changed)]
        with pytest.raises(CheckpointError, match=message) as caught:
            restore_rows(
                store, CutStorage.at(tmp_path), chains, num_partitions=NUM_PARTITIONS, cut=1
            )
        assert caught.value.place == files[1].name
        assert store.num_rows == 0
        (tmp_path / files[1].name).write_bytes(original)


def test_another_files_bytes_are_no_row_log(tmp_path, cut):
    import dataclasses

    from ctr_pipeline.durable import crc32_of

    _, files = cut
    path = tmp_path / files[0].name
    path.write_bytes(b"ARROW1 or what begins like it" * 9)
    entry = dataclasses.replace(files[0], num_bytes=path.stat().st_size, crc32=crc32_of(path))
    with pytest.raises(CheckpointError, match="cannot be read"):
        restore(tmp_path, [[entry]])
    table = pa.table({"id": [1, 2]})
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)
    entry = dataclasses.replace(files[0], num_bytes=path.stat().st_size, crc32=crc32_of(path))
    with pytest.raises(CheckpointError, match="none of the row log"):
        restore(tmp_path, [[entry]])


def test_a_chain_without_its_base_is_refused(tmp_path, cut):
    store, _ = cut
    train(store, EVERYTHING, 2)
    delta = write_cut(store, tmp_path, 2, full=False)
    with pytest.raises(CheckpointError, match="a base and deltas after it"):
        restore(tmp_path, [[file] for file in delta])


def test_the_number_of_rows_must_agree_with_the_manifest(tmp_path, cut):
    import dataclasses

    _, files = cut
    entry = dataclasses.replace(files[0], num_rows=files[0].num_rows + 1)
    with pytest.raises(CheckpointError, match="were written"):
        restore(tmp_path, [[entry]])


@pytest.mark.slow
def test_a_server_loads_pyarrow_with_its_first_cut_and_never_pandas(tmp_path):
    code = """
import sys
import numpy as np
from ctr_pipeline.embeddings import dense_log, snapshot
from ctr_pipeline.embeddings.cut_storage import CutStorage
from ctr_pipeline.embeddings.row_log import restore_rows
from ctr_pipeline.specs.optimizer import OptimizerSpec
from ctr_pipeline.specs.segment import SegmentSpec
from ctr_pipeline.specs.table import TableSpec
from ctr_pipeline.embeddings.store import EmbeddingStore
segment = SegmentSpec("v", 2, OptimizerSpec(name="adam", learning_rate=0.1), "sum")
store = EmbeddingStore([TableSpec("t", 100)], [segment], seed=1, threads=1)
store.read_rows(np.arange(100), create=True)
print("pyarrow" in sys.modules)
snapshot = snapshot.RowSnapshot(store, cut=1)
snapshot.begin(full=True)
files = snapshot.write(CutStorage.at(sys.argv[1]), num_partitions=2, partitions=[0, 1])
restore_rows(store, CutStorage.at(sys.argv[1]), [[file] for file in files], num_partitions=2, cut=1)
print("pyarrow" in sys.modules, "pandas" in sys.modules, store.num_rows)
"""
    output = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert output.stdout.split() == ["False", "True", "False", "100"]


def rewritten(folder, file, content):
    """A file with other contents, and an entry that fits them."""
    (folder / file.name).write_bytes(content)
    return replace(file, num_bytes=len(content), crc32=zlib.crc32(content))


@pytest.mark.parametrize("seed", range(6))
def test_made_up_files_whose_checksums_fit_are_refused_or_read(tmp_path, cut, seed):
    _, files = cut
    content = (tmp_path / files[1].name).read_bytes()
    dice = random.Random(seed)
    refused = 0
    for _ in range(60):
        mutant = bytearray(content)
        for _ in range(dice.choice([1, 1, 4, 30])):
            # Most of a file is values, and what may go wrong is around them.
            place = dice.choice([dice.randrange(2500), -dice.randrange(1, 1500)])
            mutant[place] = dice.randrange(256)
        if dice.random() < 0.2:
            del mutant[dice.randrange(len(mutant)) :]
        chain = [rewritten(tmp_path, files[1], bytes(mutant))]
        try:
            restore(tmp_path, [chain])
        except CheckpointError:
            refused += 1
    assert 10 < refused <= 60


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.drop_columns(["slots"]), "other columns"),
        (lambda table: table.append_column("more", table["count"]), "other columns"),
        (lambda table: pa.concat_tables([table, table]), "more rows"),
        (lambda table: table.slice(1), "were written"),
    ],
)
def test_whole_files_of_other_contents_are_refused(tmp_path, cut, change, message):
    _, files = cut
    table = change(read_table(tmp_path, files[0]))
    path = tmp_path / "other.arrow"
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)
    file = rewritten(tmp_path, files[0], path.read_bytes())
    with pytest.raises(CheckpointError, match=message):
        restore(tmp_path, [[file]])


def test_values_that_are_not_finite_are_neither_written_nor_read(tmp_path, monkeypatch):
    store = make_store()
    train(store, EVERYTHING, 1)
    store.rows.records_NR[3, HEADER_WORDS + 1] = np.nan
    with pytest.raises(TrainingError, match="not finite"):
        write_cut(store, tmp_path, 1, full=True)
    assert not list(tmp_path.iterdir())
    # As an earlier version may have written them.
    monkeypatch.setattr("ctr_pipeline.embeddings.row_log.require_finite", lambda *_: None)
    files = write_cut(store, tmp_path, 2, full=True)
    with pytest.raises(CheckpointError, match="not finite"):
        restore(tmp_path, [[file] for file in files])


def test_a_file_that_cannot_be_read_for_now_is_no_damaged_one(tmp_path, cut, monkeypatch):
    _, files = cut
    chains = [[file] for file in files]

    for number, call in itertools.product((errno.EIO, errno.EMFILE), ("open", "stat")):
        said = os.strerror(number)

        def fail(path, *_mode, number=number, said=said):
            raise OSError(number, said, str(path))

        with monkeypatch.context() as broken:
            broken.setattr(Path, call, fail)
            with pytest.raises(StorageError, match=said):
                restore(tmp_path, chains)

    class Failing(io.BytesIO):
        def read(self, _size=-1):
            raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(Path, "open", lambda _path, _mode: Failing())
        with pytest.raises(StorageError, match=r"cannot be read \(Input/output error\)"):
            restore(tmp_path, chains)
    assert len(restore(tmp_path, chains).rows.keys_N)
