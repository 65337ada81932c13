"""Real runs survive real faults; `benchmarks/chaos.py` has all of them, and larger runs.

Plain kills of a worker, a server and the master are in `test_exactly_once`.
"""

import dataclasses

import pytest
from chaos import ALL_FAULTS, QUICK, plan_runs, run_case, sample
from chaos_faults import real_etcd

from ctr_pipeline.training.history import load_history
from tests.etcd.etcd_server import find_etcd
from tests.storage.store_servers import BUCKET, find_program, serve, variables_of

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(600)]

CORE = [fault for fault in ALL_FAULTS if fault.is_core]
# These runs are too short for their models to have settled, and a machine that runs tests may be
# busy: the benchmark has the strict bounds.
MOST_AUC_APART = 0.015
MOST_STALL_SECONDS = 60.0
# Several faults strike one run, one after another: most of its time goes into its start.
RUNS = plan_runs(CORE, together=2, seed=1)
# One run is kept in a store, as on machines that share no disk.
STORED = next(faults for faults in RUNS if not any(one.is_of_disk for one in faults))


def size_for(num_faults):
    """Each fault has three epochs to strike in and the run to recover in."""
    return dataclasses.replace(QUICK, epochs=max(QUICK.epochs, 3 * num_faults))


LARGEST = size_for(max(len(faults) for faults in RUNS))


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return sample(tmp_path_factory.mktemp("chaos"), LARGEST)


def epochs_of(folder):
    (history,) = folder.rglob("history.csv")
    return load_history(history)


@pytest.fixture(scope="module")
def undisturbed(rows, tmp_path_factory):
    """Epochs of a run without a fault."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (outcome,) = run_case((), rows, LARGEST, seed=1, folder=folder, command="train")
    assert outcome.problems == []
    return epochs_of(folder)


@pytest.fixture
def stored_at(faults, tmp_path_factory, monkeypatch):
    if faults is not STORED:
        yield None
        return
    if find_program("weed") is None:
        pytest.skip("no S3 server here: 'make stores' installs one")
    with serve("seaweedfs", tmp_path_factory.mktemp("store")) as address:
        for name, value in variables_of(address).items():
            monkeypatch.setenv(name, value)
        yield f"s3://{BUCKET}/chaos"


@pytest.mark.parametrize("faults", RUNS, ids=lambda faults: "+".join(one.name for one in faults))
def test_a_run_survives(faults, rows, undisturbed, tmp_path, stored_at):
    lenient = [dataclasses.replace(one, most_stall_seconds=MOST_STALL_SECONDS) for one in faults]
    needs_etcd = any(one.surroundings is real_etcd for one in faults)
    if needs_etcd and find_etcd() is None:
        pytest.skip("no etcd here: 'make etcd' obtains one")
    size = size_for(len(faults))
    outcomes = run_case(
        lenient,
        rows,
        size,
        seed=1,
        folder=tmp_path,
        command="train",
        stored_at=stored_at,
        paced=True,
    )
    for fault, outcome in zip(faults, outcomes, strict=True):
        assert outcome.problems == [], outcome
        assert outcome.strikes
        if fault.ends == 0:
            assert outcome.trained == outcome.expected == size.epochs * size.rows * 8 // 10
            found, expected = epochs_of(tmp_path), undisturbed[: size.epochs]
            assert [one.epoch for one in found] == [one.epoch for one in expected]
            assert found[-1].valid_auc == pytest.approx(expected[-1].valid_auc, abs=MOST_AUC_APART)
