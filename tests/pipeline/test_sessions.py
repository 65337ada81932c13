"""What a run's folder tells of the commands that worked on it, and the list of runs."""

import json
import os
import signal
from datetime import UTC, datetime, timedelta

import pytest
from fake_runs import scored_rows, write_run

from ctr_pipeline.cli.main import main
from ctr_pipeline.errors import DataError, Interrupted, RunFolderError
from ctr_pipeline.pipeline.report_facts import rewrite_report, session_notes
from ctr_pipeline.pipeline.run_list import decide_state, list_runs
from ctr_pipeline.pipeline.sessions import Session, SessionLog, load_sessions
from ctr_pipeline.pipeline.timing import StageTimes
from ctr_pipeline.pipeline.workspace import RunFolder

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
    return Session(command="run", resumed=False, process=7, started=NOON, seen=NOON).model_copy(
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


def test_what_goes_on_is_known_to_others_and_to_those_after_a_kill(tmp_path):
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
    ("sessions", "is_used", "is_finished", "state"),
    [
        ([], False, False, "not trained"),
        ([], False, True, "finished"),
        ([a_session(ended="finished")], False, True, "finished"),
        ([a_session(ended="finished", command="train")], False, False, "trained"),
        ([a_session(ended="finished", command="prepare")], False, False, "prepared"),
        ([a_session(stage="training")], True, False, "running: training"),
        ([a_session(stage="training")], False, False, "killed: training"),
        ([a_session(ended="stopped", stage="ingest")], False, False, "stopped: ingest"),
        # Resumed after it had been finished.
        ([a_session(ended="finished"), a_session(ended="failed")], False, True, "failed"),
    ],
)
def test_the_state_of_a_run(sessions, is_used, is_finished, state):
    assert decide_state(sessions, is_used=is_used, is_finished=is_finished) == state


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
    assert "No run lies in" in capsys.readouterr().out
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
    assert "Validation AUC by epoch" in text
    assert main(["report", str(folder)]) == 0
    assert "is not finished" in capsys.readouterr().out


def test_a_folder_that_was_never_trained_has_no_page(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    assert main(["report", str(tmp_path / "run")]) == 1
    assert "there is nothing to report" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "absent")]) == 1
    assert "there is no such run folder" in capsys.readouterr().err
