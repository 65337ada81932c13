"""A run goes on from an earlier one, whichever of both trains in several processes."""

import pytest
from watched_run import WatchedRun

from ctr_pipeline.training.history import load_history
from tests.pipeline.days import settings_of, write_day

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(900)]

MEMBERS = {
    "mode": "processes",
    "workers": {"min": 1, "max": 1},
    "parameter_servers": 2,
    "partitions": 7,
}


def train(folder, data, *, init_from=None, runtime=None):
    """Trains in a folder of its own; returns the folder of the run, and what it said."""
    folder.mkdir()
    config = settings_of(data, folder / "unused", init_from=init_from, epochs=2, deterministic=True)
    config["runtime"] = runtime or {"mode": "local"}
    with WatchedRun(folder, config) as run:
        run.start("train")
        assert run.wait(400) == 0, run.tail(40)
        return run.output, run.tail(400)


def history_of(output):
    return [
        (record.epoch, record.step, record.valid_logloss)
        for record in load_history(output / "history.csv")
    ]


def test_earlier_and_later_runs_in_processes_end_as_in_one(tmp_path):
    day1 = write_day(tmp_path / "day1.csv", 1500, seed=1, last=120)
    day2 = write_day(tmp_path / "day2.csv", 700, seed=2)
    first, _ = train(tmp_path / "one", day1)
    expected, _ = train(tmp_path / "two", day2, init_from=first)
    together, said = train(tmp_path / "together", day2, init_from=first, runtime=MEMBERS)
    assert "Training begins from" in said
    of_job, _ = train(tmp_path / "job", day1, runtime=MEMBERS)
    alone, _ = train(tmp_path / "alone", day2, init_from=of_job)
    for found in (together, alone):
        for one, other in zip(history_of(found), history_of(expected), strict=True):
            assert one[:2] == other[:2]
            assert one[2] == pytest.approx(other[2], abs=1e-5)
