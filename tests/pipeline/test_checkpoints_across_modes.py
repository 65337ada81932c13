"""Parameters that one process has, what servers make of them, and the way back."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ctr_pipeline.distributed.coordination.messages import SnapshotReply, SnapshotRequest
from ctr_pipeline.distributed.coordination.rounds import BatchId
from ctr_pipeline.distributed.master.cuts import require_same_job
from ctr_pipeline.distributed.master.manifests import (
    CutManifest,
    Cuts,
    chain_files,
    describe_training,
)
from ctr_pipeline.distributed.ps.merging import RowGradients
from ctr_pipeline.distributed.ps.server_state import ServerGradients, ServerState
from ctr_pipeline.embeddings.cut_storage import CutStorage
from ctr_pipeline.embeddings.dense import DenseParameters
from ctr_pipeline.embeddings.partition import partitions_of
from ctr_pipeline.embeddings.store import EmbeddingStore
from ctr_pipeline.errors import CheckpointError
from ctr_pipeline.pipeline.model.parameters import Parameters
from ctr_pipeline.specs.course import UpdateRule
from ctr_pipeline.specs.initializer import InitializerSpec
from ctr_pipeline.specs.optimizer import OptimizerSpec
from ctr_pipeline.specs.segment import SegmentSpec
from ctr_pipeline.specs.table import ID_BITS, TableSpec
from ctr_pipeline.storage.opening import open_storage
from ctr_pipeline.training.checkpoint import Checkpoints
from ctr_pipeline.training.parameters import load_dense, load_rows, open_rows
from tests.distributed.job_specs import frozen_before_training, job_spec

NUM_DENSE = 11
SIZES = {"item": 40, "user": 90}


def spec_of(folder, **changes):
    adam = OptimizerSpec(name="adam", learning_rate=0.1)
    facts = {
        "job": "test",
        "seed": 3,
        "tables": tuple(TableSpec(name, size) for name, size in SIZES.items()),
        "segments": (SegmentSpec("vector", 3, adam, "sum", 0.0, 1, InitializerSpec(scale=0.5)),),
        "num_dense": NUM_DENSE,
        "dense_optimizer": adam,
        "num_parameter_servers": 3,
        "update_rule": UpdateRule(),
        "batch_size": 32,
        "checkpoints_folder": str(folder / "checkpoints"),
    }
    return job_spec(**{**facts, **changes})


def parameters(*, trained, steps=6):
    """A store and dense parameters, fresh or after some steps."""
    adam = OptimizerSpec(name="adam", learning_rate=0.1)
    segments = [
        SegmentSpec(
            "vector", 3, adam, "sum", initializer=InitializerSpec(name="uniform", scale=0.5)
        )
    ]
    tables = [TableSpec(name, size) for name, size in SIZES.items()]
    store = EmbeddingStore(tables, segments, seed=3, threads=1)
    dense = DenseParameters(np.zeros(NUM_DENSE, np.float32), adam)
    chance = np.random.default_rng(0)
    for step in range(1, steps + 1) if trained else ():
        ids = np.stack([chance.integers(0, size, 30) for size in SIZES.values()], axis=1)
        prepared = store.prepare(ids, 30)
        store.locate(prepared, create=True)
        gradients = chance.normal(size=(30, 2, 3)).astype(np.float32)
        store.update(prepared, gradients, step=step, learning_rate_factor=1.0, num_examples=30)
        dense.update(chance.normal(size=NUM_DENSE).astype(np.float32), step=step)
    return Parameters(store, dense)


def records_of(store):
    rows = store.rows
    return {
        int(key): rows.records_NR[row].tobytes()
        for row, key in enumerate(rows.keys_N[: store.num_rows])
    }


def newest(folder, log=pytest.fail):
    return Checkpoints(open_storage(str(folder / "checkpoints"))).load_newest(log)


def restored(folder, into=None):
    """What one process has of the newest checkpoint."""
    found = into or parameters(trained=False)
    load_rows(newest(folder), found.rows)
    load_dense(newest(folder), found.dense)
    return found


def cut_of_servers(cuts, spec, request):
    """Has servers restore a cut and write the next one, which one process reads bit for bit."""
    before = restored(Path(spec.checkpoints_folder).parent)
    prefix, replies = cuts.begin(), []
    asked = SnapshotRequest(1, 2, 0, full=True, prefix=prefix)
    for server in range(spec.num_parameter_servers):
        state = ServerState(spec, server, threads=1)
        state.restore(request)
        cut = state.begin_cut(asked, state.prepare_cut(asked.cut))
        replies.append(SnapshotReply("", state.write_cut(asked, cut), (), 0, 0.0))
    facts = replace(cuts.load(1).facts, cut=asked.cut, num_parameter_servers=len(replies))
    frozen = frozen_before_training(asked.cut)
    files = chain_files(facts, None, replies, frozen)
    cuts.save(CutManifest(facts, files, frozen, describe_training(spec, facts, files, frozen)))
    after = restored(Path(spec.checkpoints_folder).parent)
    assert records_of(after.rows) == records_of(before.rows)
    assert after.dense.values.tobytes() == before.dense.values.tobytes()
    assert after.dense.slots.tobytes() == before.dense.slots.tobytes()


def write_checkpoint(spec, written, **state):
    """As one process, or the first of several replicas, writes them."""
    known = {
        "step": 6,
        "position": {"epoch": 0, "task": 0, "batch": 0},
        "done": [],
        "epoch_rows": 0,
        "epoch_loss_sum": 0.0,
        "history": [],
        "best_step": None,
        "rows_fingerprint": spec.rows_fingerprint,
        "plan_fingerprint": spec.plan_fingerprint,
    }
    return Checkpoints(open_storage(spec.checkpoints_folder)).save(
        known | state,
        rows=written.rows.save,
        dense=written.dense.save,
        num_dense=len(written.dense.values),
    )


@pytest.mark.parametrize("num_servers", [1, 3, 5])
def test_servers_hold_their_parts_and_go_on_with_the_steps_of_all_runs(tmp_path, num_servers):
    """An update of the first batch equals the seventh of one process."""
    written = parameters(trained=True)
    store, dense = written.rows, written.dense
    write_checkpoint(spec_of(tmp_path), written)
    spec = spec_of(tmp_path, num_parameter_servers=num_servers, earlier_steps=6)
    folder = Cuts(CutStorage.at(tmp_path / "checkpoints"), spec)
    manifest = folder.load(1)
    folder.check_files(manifest, read=True)
    require_same_job(manifest, spec)
    request = manifest.restore_request(1, None)
    cut_of_servers(folder, spec, request)
    keys = np.sort(store.rows.keys_N[: store.num_rows])
    partitions = partitions_of(keys, spec.num_partitions)
    chance = np.random.default_rng(1)
    sums = chance.normal(size=(len(keys), 3)).astype(np.float32)
    gradient = chance.normal(size=NUM_DENSE).astype(np.float32)
    occurrences = np.ones(len(keys), np.int32)
    found, dense_values = {}, np.empty(NUM_DENSE, np.float32)
    for server in range(num_servers):
        state = ServerState(spec, server, threads=1)
        state.restore(request)
        own = partitions % num_servers == server
        low, high = state.range
        rows = RowGradients(keys[own], occurrences[own], sums[own])
        batch = BatchId(0, 0, 1, 0)
        state.apply([ServerGradients(batch, 1, 1.0, 30, rows, gradient[low:high])])
        values = state.read_rows(keys[own], create=False)
        found |= {int(key): row.tobytes() for key, row in zip(keys[own], values, strict=True)}
        dense_values[low:high] = state.dense_values()
    store.apply_gradients(
        keys, sums, occurrences, step=7, learning_rate_factor=1.0, num_examples=30
    )
    dense.update(gradient, step=7)
    expected = store.read_rows(keys)
    assert found == {int(key): row.tobytes() for key, row in zip(keys, expected, strict=True)}
    assert dense_values.tobytes() == dense.values.tobytes()
    assert len({int(key) >> ID_BITS for key in keys}) == 2


def test_a_model_without_tables_has_a_checkpoint(tmp_path):
    spec = spec_of(tmp_path, tables=())
    no_rows = EmbeddingStore((), spec.segments, seed=3, threads=1)
    dense = parameters(trained=True).dense
    write_checkpoint(spec, Parameters(no_rows, dense))
    folder = Cuts(CutStorage.at(tmp_path / "checkpoints"), spec)
    again = restored(tmp_path, Parameters(no_rows, parameters(trained=False).dense))
    assert again.dense.values.tobytes() == dense.values.tobytes()
    rows = open_rows(newest(tmp_path), again.rows, tmp_path)
    assert (rows.num_rows, list(rows.iterate_rows(8))) == (0, [])
    rows.release()
    server = ServerState(spec, 0, threads=1)
    server.restore(folder.load(1).restore_request(1, None))
    low, high = server.range
    assert np.array_equal(server.dense_values(), dense.values[low:high])


def test_a_damaged_checkpoint_is_refused(tmp_path):
    write_checkpoint(spec_of(tmp_path), parameters(trained=True))
    found = newest(tmp_path)
    path = tmp_path / "checkpoints" / found.files.chains[0][0].name
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(CheckpointError):
        load_rows(found, parameters(trained=False).rows)
    with pytest.raises(CheckpointError, match="all checkpoints are damaged"):
        newest(tmp_path, log=str)


def test_a_checkpoint_of_one_process_is_no_cut_where_the_job_is_not_known(tmp_path):
    spec = spec_of(tmp_path)
    write_checkpoint(spec, parameters(trained=True))
    with pytest.raises(CheckpointError, match="is no checkpoint of a job"):
        Cuts(CutStorage.at(spec.checkpoints_folder)).load(1)
