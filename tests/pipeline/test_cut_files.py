"""Parameters written as the first cut of a job, and what its servers make of them."""

import json
from dataclasses import replace

import numpy as np
import pytest
from job_specs import job_spec

from ctr_pipeline.distributed.coordination.ledger import Ledger
from ctr_pipeline.distributed.coordination.rounds import BatchId
from ctr_pipeline.distributed.master.manifests import Cuts, cut_file_name
from ctr_pipeline.distributed.ps.merging import RowGradients
from ctr_pipeline.distributed.ps.server_state import ServerGradients, ServerState
from ctr_pipeline.embeddings.cut_storage import CutStorage
from ctr_pipeline.embeddings.dense import DenseParameters
from ctr_pipeline.embeddings.partition import partitions_of
from ctr_pipeline.embeddings.store import EmbeddingStore
from ctr_pipeline.errors import CheckpointError
from ctr_pipeline.pipeline.job.cut_files import (
    FIRST_CUT,
    find_cuts,
    last_of_epoch,
    open_cut,
    restore_cut,
    write_first_cut,
)
from ctr_pipeline.pipeline.model.parameters import Parameters
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.specs.course import UpdateRule
from ctr_pipeline.specs.initializer import InitializerSpec
from ctr_pipeline.specs.optimizer import OptimizerSpec
from ctr_pipeline.specs.segment import SegmentSpec
from ctr_pipeline.specs.table import ID_BITS, TableSpec

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


def test_the_first_cut_is_read_back_bit_for_bit(tmp_path):
    spec = spec_of(tmp_path)
    written = parameters(trained=True)
    write_first_cut(spec, written)
    (manifest,), damages = Cuts(CutStorage.at(tmp_path / "checkpoints"), "test").sound(read=True)
    assert not damages
    again = parameters(trained=False)
    restore_cut(again, CutStorage.at(tmp_path / "checkpoints"), manifest)
    assert records_of(again.rows) == records_of(written.rows)
    assert again.dense.values.tobytes() == written.dense.values.tobytes()
    assert again.dense.slots.tobytes() == written.dense.slots.tobytes()
    # Nothing is counted yet, and the cut is one that a job may go back to.
    frozen = json.loads(json.dumps(manifest.frozen))
    ledger = Ledger.thaw(frozen, lambda _: pytest.fail("no epoch is open"))
    assert (ledger.epoch, ledger.batches, ledger.history, ledger.best_cut) == (0, 0, [], 0)
    assert frozen["cut"]["cut"] == manifest.facts.cut == FIRST_CUT


@pytest.mark.parametrize("num_servers", [1, 3, 5])
def test_servers_hold_their_parts_and_go_on_with_the_steps_of_all_runs(tmp_path, num_servers):
    """An update of the first batch equals the seventh of one process."""
    written = parameters(trained=True)
    store, dense = written.rows, written.dense
    write_first_cut(spec_of(tmp_path), written)
    spec = spec_of(tmp_path, num_parameter_servers=num_servers, earlier_steps=6)
    folder = Cuts(CutStorage.at(tmp_path / "checkpoints"), "test")
    request = folder.load(FIRST_CUT).restore_request(1, None)
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


def test_a_model_without_tables_has_a_first_cut(tmp_path):
    spec = spec_of(tmp_path, tables=())
    no_rows = EmbeddingStore((), spec.segments, seed=3, threads=1)
    dense = parameters(trained=True).dense
    write_first_cut(spec, Parameters(no_rows, dense))
    folder = Cuts(CutStorage.at(tmp_path / "checkpoints"), "test")
    manifest = folder.load(FIRST_CUT)
    again = Parameters(no_rows, parameters(trained=False).dense)
    restore_cut(again, CutStorage.at(tmp_path / "checkpoints"), manifest)
    assert again.dense.values.tobytes() == dense.values.tobytes()
    rows = open_cut(again, CutStorage.at(tmp_path / "checkpoints"), manifest, tmp_path)
    assert (rows.num_rows, list(rows.iterate_rows(8))) == (0, [])
    rows.release()
    server = ServerState(spec, 0, threads=1)
    server.restore(folder.load(FIRST_CUT).restore_request(1, None))
    low, high = server.range
    assert np.array_equal(server.dense_values(), dense.values[low:high])


def test_a_damaged_first_cut_is_refused(tmp_path):
    write_first_cut(spec_of(tmp_path), parameters(trained=True))
    folder = Cuts(CutStorage.at(tmp_path / "checkpoints"), "test")
    manifest = folder.load(FIRST_CUT)
    path = next(file for file in (tmp_path / "checkpoints").iterdir() if file.suffix == ".arrow")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(CheckpointError):
        restore_cut(parameters(trained=False), CutStorage.at(tmp_path / "checkpoints"), manifest)


class Told(SilentProgress):
    def __init__(self):
        self.messages = []

    def log(self, message):
        self.messages.append(message)


def test_the_last_whole_cut_of_an_epoch_is_found_and_damaged_ones_are_told(tmp_path):
    write_first_cut(spec_of(tmp_path), parameters(trained=True))
    folder = Cuts(CutStorage.at(tmp_path / "checkpoints"), "test")
    first = folder.load(FIRST_CUT)
    for cut, epoch in ((2, 0), (3, 1), (4, 1), (5, 2), (6, 2)):
        folder.save(replace(first, facts=replace(first.facts, cut=cut, epoch=epoch)))
    for cut in (4, 5, 6):
        path = tmp_path / "checkpoints" / cut_file_name(cut)
        path.write_bytes(path.read_bytes()[:-9])
    progress = Told()
    cuts = find_cuts(folder, progress)
    assert [cut.facts.cut for cut in cuts] == [3, 2, 1]
    assert len(progress.messages) == 3
    assert all(said.startswith("Skipping a checkpoint: ") for said in progress.messages)
    found = [last_of_epoch(cuts, epoch) for epoch in range(3)]
    assert [cut and cut.facts.cut for cut in found] == [2, 3, None]
