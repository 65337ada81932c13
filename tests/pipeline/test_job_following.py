from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from followed_jobs import Told, view

from ctr_pipeline.distributed.coordination.launching import ProcessState
from ctr_pipeline.errors import Interrupted, TrainingError
from ctr_pipeline.pipeline.job import following as job_following
from ctr_pipeline.pipeline.job.following import follow_job


@dataclass
class Launcher:
    """A launcher of a master alone, which is seen in one state after the other."""

    reasons: list
    said: str = ""
    asked: int = 0

    def failure(self):
        return self.said

    def observe(self):
        reason = self.reasons[min(self.asked, len(self.reasons) - 1)]
        self.asked += 1
        return (
            ProcessState("ps", 0, "p", 2, False, 0, "completed", "", 0),
            ProcessState("master", 0, "m", 1, reason is None, None, reason, "", 0),
        )


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run whose master serves nowhere; looks follow each other at once."""
    (tmp_path / "job").mkdir()
    monkeypatch.setattr(job_following, "LOOK_SECONDS", 0.0)
    return SimpleNamespace(path=tmp_path, logs=tmp_path / "logs")


def ledger_says(monkeypatch, state, **changes):
    monkeypatch.setattr(job_following, "read_status", lambda job: view(state, **changes))


def test_a_master_that_stopped_between_two_looks_is_known_by_its_ledger(run, monkeypatch):
    ledger_says(monkeypatch, "stopped")
    # On its way back, killed and started again, and gone.
    launcher, told = Launcher([None, "killed", None, "completed"]), Told()
    with pytest.raises(Interrupted):
        follow_job(run, launcher, told, resumable=True)
    assert launcher.asked == 4
    assert told.said[-1] == "Stopped; --resume goes on from the last checkpoint"


def test_so_is_one_whose_job_failed(run, monkeypatch):
    ledger_says(monkeypatch, "failed", reason="no space left")
    # A master whose job has failed ends with an error, of which the launcher knows the last lines.
    launcher = Launcher(["error"], said="master-0 ended with an error")
    with pytest.raises(TrainingError, match="no space left"):
        follow_job(run, launcher, Told(), resumable=True)


@pytest.mark.parametrize("state", ["training", None])
def test_a_master_that_ended_before_its_job_cannot_go_on(run, monkeypatch, state):
    if state is not None:
        ledger_says(monkeypatch, state)
    launcher = Launcher(["error"], said="master-0 crashed 5 times in a row")
    with pytest.raises(TrainingError, match="the master cannot go on"):
        follow_job(run, launcher, Told(), resumable=True)
