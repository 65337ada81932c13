from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from ctr_pipeline import interruption
from ctr_pipeline.distributed.coordination.launching import ProcessState
from ctr_pipeline.distributed.rpc.failures import PeerUnavailable
from ctr_pipeline.errors import HandedOver, Interrupted, TrainingError
from ctr_pipeline.pipeline.job import following as job_following
from ctr_pipeline.pipeline.job.control import MasterConnection
from ctr_pipeline.pipeline.job.following import LEFT_TO_NEXT, follow_job
from tests.pipeline.followed_jobs import Told, member, view


@dataclass
class Launcher:
    """A launcher of a master alone, which is seen in one state after the other."""

    reasons: list
    said: str = ""
    asked: int = 0
    followed: bool = False

    def is_followed(self):
        return self.followed

    def publish(self, news):
        pass

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


def test_master_is_known_by_its_ledger_when_its_job_failed(run, monkeypatch):
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


@pytest.fixture
def master(monkeypatch):
    """A master that answers with one view after the other, and then is gone; what it was asked."""
    asked, views = [], []

    def ask(_self, method, message, reply):
        asked.append(method)
        if not views:
            raise PeerUnavailable("gone")
        return views.pop(0)

    monkeypatch.setattr(MasterConnection, "ask", ask)
    monkeypatch.setattr(job_following, "_LEAVING_SECONDS", 0.0)
    monkeypatch.setattr(interruption, "requested", lambda: True)
    return SimpleNamespace(asked=asked, views=views)


def test_members_are_left_to_a_driver_that_follows_once_no_server_leaves(run, master):
    leaving, there = (
        view("training", members=(member("ps", state=state),)) for state in ("leaving", "running")
    )
    master.views += [leaving, leaving, there, there]
    with pytest.raises(HandedOver):
        follow_job(run, Launcher([None], followed=True), told := Told(), resumable=True)
    assert master.views == [there]
    assert set(master.asked) == {"Status"}
    assert told.said == [LEFT_TO_NEXT]


def test_members_are_left_though_the_master_has_ended(run, master):
    with pytest.raises(HandedOver):
        follow_job(run, Launcher([None], followed=True), Told(), resumable=True)
