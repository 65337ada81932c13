import logging

import pytest

from ctr_pipeline.errors import RunFolderError
from ctr_pipeline.pipeline.job.control import Job
from ctr_pipeline.pipeline.job.waiting import JobProbe, JobSnapshot, await_job

NOBODY = JobSnapshot(None, answering=False, announced=False)
AWAY = JobSnapshot("training", answering=False, announced=True)
THERE = JobSnapshot("training", answering=True, announced=True)


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def pause(self, seconds):
        self.now += seconds


def await_with(tmp_path, *snapshots, wait_seconds=60.0, clock=None):
    """Sees one after the other, and the last one from then on."""
    clock = clock or Clock()
    left = list(snapshots)
    return await_job(
        Job(tmp_path),
        lambda: left.pop(0) if len(left) > 1 else left[0],
        wait_seconds=wait_seconds,
        clock=clock,
        pause=clock.pause,
    )


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.INFO, "ctr_pipeline")
    return lambda: [record.message for record in caplog.records]


def test_a_master_that_answers_is_joined_at_once(tmp_path, said):
    assert await_with(tmp_path, THERE)
    assert said() == []


def test_a_finished_job_wants_nothing(tmp_path, said):
    assert not await_with(tmp_path, JobSnapshot("finished", answering=False, announced=True))
    assert said() == [f"The job in {tmp_path} is finished"]


def test_a_master_that_takes_its_leave_is_not_joined_either(tmp_path):
    assert not await_with(tmp_path, JobSnapshot("finished", answering=True, announced=True))


@pytest.mark.parametrize(
    ("state", "words"), [("stopped", "it was stopped"), ("failed", "it has failed")]
)
def test_a_job_that_ended_otherwise_is_an_error(tmp_path, state, words):
    with pytest.raises(RunFolderError, match=f"the job is over: {words}.*--resume") as raised:
        await_with(tmp_path, JobSnapshot(state, answering=False, announced=True))
    assert raised.value.place == str(tmp_path)


def test_no_master_ever_is_an_error_after_the_patience(tmp_path, said):
    clock = Clock()
    with pytest.raises(RunFolderError, match=r"no master has announced itself within 25 s.*--wait"):
        await_with(tmp_path, NOBODY, wait_seconds=25, clock=clock)
    assert clock.now == 125
    assert said() == [
        f"No master has announced itself yet: waiting for {seconds} s more"
        for seconds in (25, 15, 5)
    ]


def test_a_master_that_was_there_is_waited_for(tmp_path, said):
    clock = Clock()
    assert await_with(tmp_path, *[AWAY] * 500, THERE, wait_seconds=5, clock=clock)
    assert clock.now == 100 + 250
    assert said()[0] == "The master does not answer; waiting, as it may be restarting"


def test_a_job_that_ends_meanwhile_ends_the_waiting(tmp_path):
    assert not await_with(tmp_path, AWAY, AWAY, JobSnapshot("finished", False, True))


def test_master_announcement_may_be_renewed_during_the_wait(tmp_path):
    assert await_with(tmp_path, AWAY, *[NOBODY] * 100, THERE, wait_seconds=5)


class TestProbe:
    @pytest.fixture
    def job(self, tmp_path):
        from ctr_pipeline.distributed.rpc.access import Access

        job = Job(tmp_path)
        job.folder.mkdir()
        Access.create(job.folder, False)
        return job

    @pytest.fixture
    def ledger(self, monkeypatch):
        """Answers with what it says, and counts how often it is read."""
        from ctr_pipeline.distributed.master import reading

        class Ledger:
            phase = "training"
            num_reads = 0

            def read(self, _):
                self.num_reads += 1
                return self.phase

        ledger = Ledger()
        monkeypatch.setattr(reading, "read_phase", ledger.read)
        return ledger

    def test_the_ledger_is_read_now_and_then(self, job, ledger):
        clock = Clock()
        probe = JobProbe(job, clock=clock)
        assert probe() == probe() == JobSnapshot("training", answering=False, announced=False)
        assert ledger.num_reads == 1
        ledger.phase = "finished"
        clock.pause(5)
        assert probe().state == "finished"

    def test_an_address_that_is_given_is_asked_instead_of_the_announced_one(self, job, ledger):
        probe = JobProbe(job, "127.0.0.1:1", clock=Clock())
        assert probe() == JobSnapshot("training", answering=False, announced=False)

    def test_secrets_are_read_first(self, tmp_path):
        (tmp_path / "job").mkdir()
        with pytest.raises(RunFolderError, match="token"):
            JobProbe(Job(tmp_path))
