"""What a run's folder tells of the commands that worked on it, and the list of runs."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from ctr_pipeline.apps.live import read_whole
from ctr_pipeline.apps.runs import decide_state, format_state, list_runs, read_run_status
from ctr_pipeline.cli.main import main
from ctr_pipeline.errors import DataError, Interrupted, RunFolderError
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.pipeline.sessions import RunSession, SessionLog, decide_alive, load_sessions
from ctr_pipeline.pipeline.stages.report_facts import rewrite_report, session_notes
from ctr_pipeline.pipeline.timing import StageTimes, start_of_process
from tests.pipeline.fake_runs import scored_rows, write_run

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


class Hands:
    """Two clocks that go on together when told."""

    def __init__(self):
        self.now = 0.0

    def seconds(self):
        return self.now

    def day(self):
        return NOON + timedelta(seconds=self.now)


def work(path, hands, *, resumes, stages, error=None):
    """A session that spends seconds on stages; the last one ends by an error, if there is one."""
    times = StageTimes(clock=hands.seconds)
    log = SessionLog(path, times, command="run", resumes=resumes, clock=hands.day)
    try:
        with log:
            for name, seconds in stages:
                with times.stage(name):
                    hands.now += seconds
                    if error is not None and name == stages[-1][0]:
                        raise error
    except (Interrupted, DataError):
        pass
    return times


def a_session(**changes):
    return RunSession(command="run", resumed=False, process=7, started=NOON, seen=NOON).model_copy(
        update=changes
    )


def test_times_are_those_of_all_sessions(tmp_path):
    path, hands = tmp_path / "sessions.json", Hands()
    stop = Interrupted(signal.SIGTERM)
    work(path, hands, resumes=False, stages=[("ingest", 2), ("training", 30)], error=stop)
    times = work(path, hands, resumes=True, stages=[("training", 5), ("report", 1)])
    assert times.of_all_sessions() == {"ingest": 2, "training": 35, "report": 1}
    first, second = load_sessions(path)
    assert (first.ended, first.stage, first.resumed) == ("stopped", "training", False)
    assert (second.ended, second.stage, second.resumed) == ("finished", "report", True)
    assert second.seconds == {"training": 5, "report": 1}
    assert (second.started, second.seen) == (NOON + timedelta(seconds=32), hands.day())


def test_a_run_that_begins_anew_forgets_the_one_before(tmp_path):
    path, hands = tmp_path / "sessions.json", Hands()
    work(path, hands, resumes=False, stages=[("training", 30)])
    times = work(path, hands, resumes=False, stages=[("training", 5)])
    assert times.of_all_sessions() == {"training": 5}
    assert len(load_sessions(path)) == 1


def test_session_is_known_to_others_while_it_runs_and_after_a_kill(tmp_path):
    path, hands = tmp_path / "sessions.json", Hands()
    times = StageTimes(clock=hands.seconds)
    log = SessionLog(path, times, command="run", resumes=False, clock=hands.day)
    log.__enter__()
    try:
        with times.stage("training"):
            (only,) = load_sessions(path)
            assert (only.stage, only.ended, only.process) == ("training", None, os.getpid())
            hands.now += 40
            assert times.seconds_so_far() == {"training": 40}
    finally:
        log.__exit__(None, None, None)


def test_the_error_that_ends_a_session_is_kept(tmp_path):
    path = tmp_path / "sessions.json"
    work(path, Hands(), resumes=False, stages=[("ingest", 1)], error=DataError("is empty"))
    (only,) = load_sessions(path)
    assert (only.ended, only.reason) == ("failed", "is empty")


def test_a_damaged_file_is_named(tmp_path):
    path = tmp_path / "sessions.json"
    path.write_text("{")
    with pytest.raises(RunFolderError, match=r"sessions\.json: is damaged"):
        load_sessions(path)


@pytest.mark.parametrize(
    ("sessions", "alive", "is_finished", "state"),
    [
        ([], False, False, "not trained"),
        ([], False, True, "finished"),
        ([a_session(ended="finished")], False, True, "finished"),
        ([a_session(ended="finished", command="train")], False, False, "trained"),
        ([a_session(ended="finished", command="prepare")], False, False, "prepared"),
        ([a_session(stage="training")], True, False, "running: training"),
        ([a_session(stage="training")], False, False, "killed: training"),
        ([a_session(stage="training")], None, False, "silent: training"),
        ([a_session(ended="stopped", stage="ingest")], False, False, "stopped: ingest"),
        # Resumed after it had been finished.
        ([a_session(ended="finished"), a_session(ended="failed")], False, True, "failed"),
    ],
)
def test_the_state_of_a_run(sessions, alive, is_finished, state):
    word = decide_state(sessions, alive=alive, is_finished=is_finished)
    assert format_state(word, sessions) == state


OWN_START = start_of_process(os.getpid())


@pytest.mark.parametrize(
    ("changes", "lock_holder", "silent_seconds", "alive"),
    [
        ({"ended": "finished", "process": os.getpid()}, os.getpid(), 0, False),
        ({"process": 7}, 7, 0, True),
        ({"process": 7}, 0, 0, True),
        # The lock is that of an evaluation; the number is that of another process by now.
        ({"process": os.getpid(), "process_start": 1}, 8, 0, False),
        ({"process": os.getpid(), "process_start": OWN_START}, None, 0, True),
        ({"process": 2**22 + 1, "process_start": OWN_START}, None, 0, False),
        ({"process": 7, "host": "there"}, None, 20, True),
        ({"process": 7, "host": "there"}, None, 61, None),
    ],
    # Not of the values: each process that collects the tests has a number of its own.
    ids=[
        "ended",
        "holds_the_lock",
        "lock_of_an_unnamed_process",
        "number_taken_by_another",
        "same_process",
        "no_such_process",
        "elsewhere_and_fresh",
        "elsewhere_and_silent",
    ],
)
def test_whether_a_session_lives(changes, lock_holder, silent_seconds, alive):
    session = a_session(**{"host": "here", **changes})
    now = NOON + timedelta(seconds=silent_seconds)
    assert decide_alive(session, lock_holder=lock_holder, host="here", now=now) is alive


def status_of(capsys, folder):
    assert main(["status", str(folder)]) == 0
    text = capsys.readouterr().out
    assert main(["status", str(folder), "--json"]) == 0
    return text, json.loads(capsys.readouterr().out)


def test_status_of_a_run_that_goes_on(tmp_path, capsys):
    run, hands, times = RunFolder(tmp_path / "run"), Hands(), StageTimes()
    with (
        run.locked(),
        SessionLog(run.sessions, times, command="run", resumes=False, clock=hands.day),
        times.stage("ingest"),
    ):
        text, payload = status_of(capsys, run.path)
    assert (payload["state"], payload["alive"]) == ("running", True)
    assert (payload["session"]["stage"], payload["session"]["process"]) == ("ingest", os.getpid())
    assert payload["resume"] is None
    assert re.search(r"state +running", text)
    assert re.search(r"stage +ingest, since ", text)
    assert f"{os.getpid()} on {socket.gethostname()}" in text


def test_status_of_a_run_that_was_killed_says_how_to_go_on(tmp_path, capsys):
    folder = write_run(tmp_path / "run", *scored_rows())
    (folder / "metrics.json").unlink()
    (folder / "checkpoints").mkdir()
    code = (
        "import sys, os; from pathlib import Path\n"
        "from ctr_pipeline.pipeline.sessions import SessionLog\n"
        "from ctr_pipeline.pipeline.timing import StageTimes\n"
        "times = StageTimes()\n"
        "path = Path(sys.argv[1])\n"
        "with SessionLog(path, times, command='train', resumes=False), times.stage('training'):\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(folder / "sessions.json")], check=False)
    text, payload = status_of(capsys, folder)
    (session,) = load_sessions(folder / "sessions.json")
    assert (payload["state"], payload["alive"]) == ("killed", False)
    assert payload["resume"] == f"ctrpipe train {folder} --resume"
    assert payload["resume"] in " ".join(text.split())
    assert f"{session.process} on {session.host}; it is gone" in text
    assert "training, the last one" in text
    num_epochs = len((folder / "history.csv").read_text().splitlines()) - 1
    assert f"{num_epochs} of {payload['epochs']} done" in text
    assert [record["epoch"] for record in payload["history"]] == [*range(1, num_epochs + 1)]


@pytest.mark.parametrize(
    ("error", "state", "why"),
    [
        (None, "trained", ""),
        (DataError("is empty"), "failed", "is empty"),
        (Interrupted(signal.SIGTERM), "stopped", "stopped by signal 15"),
    ],
)
def test_status_of_a_run_that_ended(tmp_path, capsys, error, state, why):
    run = RunFolder(tmp_path / "run")
    with run.locked():
        pass
    for _ in range(2):
        log = SessionLog(run.sessions, StageTimes(), command="train", resumes=True)
        with contextlib.suppress(DataError, Interrupted), log:
            if error is not None:
                raise error
    text, payload = status_of(capsys, run.path)
    assert (payload["state"], payload["num_sessions"]) == (state, 2)
    assert payload["resume"] == (None if error is None else "ctrpipe train CONFIG --resume")
    assert "session 2" in text
    assert "it ended" in text
    assert "the last one" not in text
    assert why in text


def test_a_prepared_job_is_resumed_as_one(tmp_path):
    run = RunFolder(write_run(tmp_path / "run", *scored_rows()))
    (run.path / "metrics.json").unlink()
    log = SessionLog(run.sessions, StageTimes(), command="prepare", resumes=False)
    with pytest.raises(DataError), log:
        raise DataError("is empty")
    status = read_run_status(run)
    assert status.resume == f"ctrpipe train {run.path} --prepare-only --resume"


def test_a_run_whose_job_is_being_prepared_is_shown_without_it(tmp_path):
    run = RunFolder(write_run(tmp_path / "run", *scored_rows()))
    (run.path / "metrics.json").unlink()
    run.job.mkdir()
    with run.locked(), SessionLog(run.sessions, StageTimes(), command="run", resumes=False):
        status = read_whole(run)
    assert status.job is None
    assert status.run.state == "running"
    # Nobody prepares it any more.
    with pytest.raises(RunFolderError, match="no job was prepared"):
        read_whole(run)


def test_a_resumption_is_told():
    assert session_notes([a_session()]) == ()
    later = NOON + timedelta(minutes=5)
    (note,) = session_notes([a_session(stage="training"), a_session(started=later)])
    assert "2 sessions" in note
    assert "at 2026-01-02 12:05:00 UTC, after one that was killed in the stage 'training'" in note


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder / "first", *scored_rows(), name="one", model__name="dcn")
    write_run(folder / "deep" / "er" / "second", *scored_rows(), name="two")
    # Models and trials inside a run are part of it; other folders are none.
    write_run(folder / "first" / "trials" / "001", *scored_rows())
    (folder / "data").mkdir()
    (folder / "data" / "rows.csv").write_text("a,b\n")
    (folder / "broken").mkdir()
    (folder / "broken" / "config.resolved.yaml").write_text("model: [")
    stopped = folder / "stopped"
    with RunFolder(stopped).locked():
        stop = Interrupted(signal.SIGTERM)
        work(stopped / "sessions.json", Hands(), resumes=False, stages=[("ingest", 2)], error=stop)
    return folder


def test_runs_are_listed_wherever_they_lie(runs):
    found = {run.folder.relative_to(runs).as_posix(): run for run in list_runs(runs)}
    assert set(found) == {"first", "deep/er/second", "broken", "stopped"}
    metrics = json.loads((runs / "first" / "metrics.json").read_text())
    first = found["first"]
    assert (first.name, first.model, first.num_training_rows) == ("one", "dcn", 16_000)
    assert (first.auc, first.logloss) == (metrics["test"]["auc"], metrics["test"]["logloss"])
    assert (first.training_seconds, first.state) == (75.0, "finished")
    assert found["broken"].state == "damaged"
    assert (found["stopped"].state, found["stopped"].when) == (
        "stopped: ingest",
        NOON + timedelta(seconds=2),
    )


def test_the_list_as_a_table_and_as_json(runs, capsys):
    assert main(["runs", str(runs)]) == 0
    shown = capsys.readouterr().out
    assert "dcn" in shown
    assert "stopped: ingest" in shown
    assert main(["runs", str(runs), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["runs"]
    assert {run["state"] for run in listed} == {"finished", "damaged", "stopped: ingest"}
    assert all(run["folder"].startswith(str(runs)) for run in listed)


def test_a_folder_without_runs_and_one_that_is_none(tmp_path, capsys):
    assert main(["runs", str(tmp_path)]) == 0
    assert "There are no runs in" in capsys.readouterr().out
    assert main(["runs", str(tmp_path / "absent")]) == 1
    assert "there is no such folder" in capsys.readouterr().err


def test_a_run_in_use_is_told_from_one_that_was_killed(tmp_path):
    run = RunFolder(tmp_path / "run")
    assert run.user_process() is None
    with run.locked():
        assert run.user_process() == os.getpid()
    assert run.user_process() is None


def test_a_page_of_a_run_that_is_not_finished_shows_what_there_is(tmp_path, capsys):
    folder = write_run(tmp_path / "run", *scored_rows())
    (folder / "metrics.json").unlink()
    (folder / "checkpoints").mkdir()
    page, missing = rewrite_report(RunFolder(folder))
    text = page.read_text(encoding="utf-8")
    assert missing.startswith("This run is not finished: test metrics, importance")
    assert "This run is not finished" in text
    assert "nothing has measured it yet" in text
    assert "held-out rows" not in text
    assert "were held out" not in text
    assert "Validation AUC by epoch" in text
    assert main(["report", str(folder)]) == 0
    assert "is not finished" in capsys.readouterr().out


def test_a_folder_that_was_never_trained_has_no_page(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    assert main(["report", str(tmp_path / "run")]) == 1
    assert "there is nothing to report" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "absent")]) == 1
    assert "there is no such run folder" in capsys.readouterr().err
