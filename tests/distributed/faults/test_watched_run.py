"""The watch over real runs that chaos and speed rest on counts and finds what it says."""

import contextlib
import dataclasses
import itertools
import json
import os
import random
import signal
import sys
import time
from types import SimpleNamespace

import psutil
import pytest
from chaos import (
    FULL,
    QUICK,
    Outcome,
    judge_against_undisturbed,
    load_outcomes,
    make_config,
    natural_error,
    plan_runs,
    tabulate,
    window_of,
)
from chaos_faults import FAULTS, Disturbance
from chaos_network import NETWORK_FAULTS
from job_watch import MissedError, Moment, OverdueError
from watched_run import WatchedRun, command_lines, wait_until_gone, with_word

from ctr_pipeline.config.loader import config_from_mapping

PARENT_OF_ORPHANS = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", '''
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(120)
    os._exit(0)
os._exit(0)
'''])
time.sleep(120)
"""


@pytest.fixture
def run(tmp_path):
    return WatchedRun(tmp_path, {}, program=[sys.executable, "-c", PARENT_OF_ORPHANS])


def history(run, *moments):
    """Looks at (second, state, trained)."""
    run.moments = [Moment(at, state, trained, 0, 0.0) for at, state, trained in moments]


def test_pauses_lie_between_counts(run):
    history(
        run,
        *[(10.0, "training", 100), (10.2, "training", 200), (10.4, "training", 200)],
        *[(13.2, "training", 300), (13.4, "training", 400)],
    )
    assert run.progress_seconds(10.1, 99.0) == pytest.approx([3.0, 0.2, 0.1])
    # Of a pause, what lies between the two.
    assert run.progress_seconds(10.3, 99.0)[0] == pytest.approx(2.9)
    assert run.progress_seconds(10.3, 11.3) == pytest.approx([1.0])
    assert run.progress_seconds(0.0, 10.15) == pytest.approx([0.15])


def test_a_rollback_is_no_progress(run):
    history(
        run,
        *[(10.0, "training", 900), (10.2, "training", 1000), (12.0, "restoring", 600)],
        *[(14.2, "training", 650)],
    )
    assert run.progress_seconds(10.1, 99.0)[0] == pytest.approx(4.0)


def test_an_unreachable_master_is_a_pause_of_counts(run):
    history(
        run, (10.0, "training", 100), (10.1, "training", 200), (11.0, "", 200),
        (12.1, "training", 900),
    )  # fmt: skip
    assert run.progress_seconds(10.05, 99.0)[0] == pytest.approx(2.0)


def test_validation_is_no_pause(run):
    validating = [(10.5 + 0.1 * look, "validating", 200) for look in range(1, 41)]
    history(
        run,
        *[(10.0, "training", 100), (10.5, "training", 200), *validating],
        *[(14.6, "training", 200), (15.0, "training", 300)],
    )
    # From 10.5 to 15.0, less four seconds of validation.
    assert run.progress_seconds(10.3, 99.0)[0] == pytest.approx(0.5)
    assert run.progress_seconds(14.7, 99.0) == pytest.approx([0.3])
    assert run.progress_seconds(10.5, 12.5) == pytest.approx([0.0])


def test_training_seconds_end_with_the_last_record(run):
    history(
        run, (5.0, "waiting", 0), (10.0, "training", 100), (11.0, "training", 200),
        (12.0, "validating", 200), (13.0, "training", 300), (20.0, "scoring", 300),
    )  # fmt: skip
    assert run.training_seconds() == pytest.approx(2.0)


@pytest.mark.slow
def test_every_process_is_found_whoever_its_parent_is_and_none_is_left(run):
    with run:
        run.start()

        def orphans():
            others = [one for one in run.processes() if one.pid != run.pid]
            with contextlib.suppress(psutil.Error):  # those between have ended meanwhile
                return [one for one in others if run.pid not in {p.pid for p in one.parents()}]
            return []

        run.wait_for("the orphan", orphans, 20.0)
        pids = [one.pid for one in run.processes()]
    assert wait_until_gone(pids, 20.0)
    assert run.processes() == []


@pytest.mark.slow
def test_signals_reach_only_processes_of_the_run(run):
    with run:
        run.start()
        run.send(run.pid, signal.SIGKILL)
        assert run.wait(60.0) == -signal.SIGKILL
        with pytest.raises(MissedError, match="was gone"):
            run.send(run.pid, signal.SIGKILL)
    with pytest.raises(MissedError, match="none of this run"):
        run.send(os.getpid(), signal.SIGKILL)


WORKER = """
import pathlib, sys, time
time.sleep(0.3)
pathlib.Path("begun").touch()
time.sleep(0.5)
pathlib.Path("done").touch()
time.sleep(120)
"""


@pytest.mark.slow
def test_a_worker_stands_still_as_soon_as_something_is_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with WatchedRun(tmp_path, {}, program=[sys.executable, "-c", WORKER, "--units"]) as run:
        run.start()
        begun, done = tmp_path / "begun", tmp_path / "done"
        (worker,) = run.hold_workers_when("work", begun.exists, "--units", 20.0)
        assert worker.pid == run.pid
        run.wait_for("its standing still", lambda: is_stopped(run), 20.0)
        assert not done.exists()
        worker.resume()
        run.wait_for("its end", done.exists, 20.0)
        with pytest.raises(OverdueError, match="never came: more"):
            run.hold_workers_when("more", lambda: False, "--units", 0.1)
    assert run.leaves_none()


def is_stopped(run):
    return psutil.Process(run.pid).status() == psutil.STATUS_STOPPED


@pytest.mark.slow
def test_workers_are_slow_while_more_is_done_than_may_be(run):
    with run:
        run.start()
        training(run)
        run.view.members[0].pid = run.pid
        most = [0.1]
        with run.paced(lambda: most[0]):
            run.wait_for("its standing still", lambda: is_stopped(run), 20.0)
            run.wait_for("its going on", lambda: not is_stopped(run), 20.0)
            run.wait_for("its standing still again", lambda: is_stopped(run), 20.0)
            most[0] = 0.5
        run.wait_for("its going on", lambda: not is_stopped(run), 20.0)


@pytest.mark.slow
def test_command_lines_are_those_of_processes_that_live(run):
    with run:
        run.start()
        process = psutil.Process(run.pid)
        run.wait_for("its command line", lambda: with_word([process], "run") == [process], 20.0)
        assert sys.executable in command_lines([process])[0]
        run.send(run.pid, signal.SIGKILL)
        run.wait(60.0)
        assert command_lines([process]) == with_word([process], "run") == []


@pytest.mark.slow
def test_waiting_ends_with_the_run(run):
    with run:
        run.start()
        run.send(run.pid, signal.SIGKILL)
        run.wait(60.0)
        with pytest.raises(OverdueError, match="the run ended before"):
            run.wait_for("something", lambda: False, 60.0)


@pytest.mark.slow
def test_waiting_ends_in_time(run):
    with run:
        run.start()
        with pytest.raises(OverdueError, match="not within 0 s"):
            run.wait_for("something", lambda: False, 0.1)
        with pytest.raises(OverdueError, match="goes on after"):
            run.wait(0.1)


def training(run, *, running=True, leases=1):
    now = time.monotonic()
    trained = [100, 200] if running else [100, 100]
    history(run, (now - 0.5, "training", trained[0]), (now, "training", trained[1]))
    worker = SimpleNamespace(role="worker", index=0, pid=1, state="running", leases=leases)
    run.view = SimpleNamespace(
        members=(worker,),
        records=SimpleNamespace(trained=200, total=1000),
        tasks_total=100,
        tasks_done=20,
    )


def test_a_worker_at_work_is_hit(run):
    training(run)
    assert (
        Disturbance(run, random.Random(0), at_work_seconds=0.05).require_at_work("worker", 0).pid
        == 1
    )


@pytest.mark.parametrize(
    ("state", "said"),
    [({"running": False}, "no steps"), ({"leases": 0}, "holds no task")],
)
def test_an_idle_target_is_a_miss(run, state, said):
    training(run, **state)
    with pytest.raises(MissedError, match=said):
        Disturbance(run, random.Random(0), at_work_seconds=0.05).require_at_work("worker", 0)


def test_an_unknown_target_is_a_miss(run):
    training(run)
    with pytest.raises(MissedError, match="no worker 7"):
        Disturbance(run, random.Random(0), at_work_seconds=0.05).require_at_work("worker", 7)


def test_names_of_faults_are_unique_and_their_configs_valid(tmp_path):
    faults = (*FAULTS, *NETWORK_FAULTS)
    assert len({fault.name for fault in faults}) == len(faults)
    for fault in faults:
        config = make_config(
            tmp_path / "rows.tsv", FULL, seed=1, runtime=fault.runtime, others=fault.config
        )
        assert config_from_mapping(config).config.runtime.mode == "processes"


def test_faults_that_need_the_same_may_share_a_run():
    faults = (*FAULTS, *NETWORK_FAULTS)
    assert plan_runs(faults, 1, 0) == [
        (fault,)
        for needs in dict.fromkeys(fault.needs for fault in faults)
        for fault in faults
        if fault.needs == needs
    ]
    shared = plan_runs(faults, 4, 0)
    names = [fault.name for run in shared for fault in run]
    assert sorted(names) == sorted(fault.name for fault in faults)
    assert len(shared) < len(faults) / 2
    for run in shared:
        assert 1 <= len(run) <= 4
        assert len({fault.needs for fault in run}) == 1
        assert len(run) == 1 or all(fault.ends == 0 and not fault.config for fault in run)
    assert plan_runs(faults, 4, 0) == shared != plan_runs(faults, 4, 1)


def test_windows_of_shared_runs_leave_time_to_recover():
    windows = [window_of(number, 4) for number in range(4)]
    assert windows[0][0] > 0.05
    assert windows[-1][1] < 0.85
    for (low, high), (following, _) in itertools.pairwise(windows):
        assert following - high == pytest.approx(high - low)


def test_a_fault_of_a_shared_run_strikes_in_its_window(run):
    training(run)
    chaos = Disturbance(run, random.Random(0))
    chaos.window = (0.1, 0.2)
    waited, wait_for = [], run.wait_for
    run.wait_for = lambda what, *rest: (waited.append(what), wait_for(what, *rest))
    # It would like the end of the job.
    chaos.wait_for_moment(0.99, 1.0)
    assert waited[1:] == ["running steps"]
    assert 10 <= int(waited[0].removesuffix("% of the job")) <= 20


def test_results_of_earlier_runs_are_taken_in_if_they_are_of_the_same_size(tmp_path):
    path = tmp_path / "earlier.json"
    outcome = Outcome("ps_killed", 1, stall_seconds=2.0, strikes=["SIGKILL"], auc=0.75)
    results = {"size": dataclasses.asdict(FULL), "outcomes": [dataclasses.asdict(outcome)]}
    path.write_text(json.dumps({"results": results}))
    assert load_outcomes(path, FULL) == [outcome]
    with pytest.raises(SystemExit, match="another size"):
        load_outcomes(path, QUICK)


def test_natural_error_is_four_deviations_or_a_thousandth():
    assert natural_error([0.75, 0.75, 0.75]) == (0.75, 0.001)
    middle, room = natural_error([0.74, 0.75, 0.76])
    assert (middle, room) == pytest.approx((0.75, 0.04))


def test_one_or_two_undisturbed_runs_say_nothing_of_the_natural_error():
    assert natural_error([0.75]) == (0.75, 0.005)
    assert natural_error([0.75, 0.75]) == (0.75, 0.005)


def test_the_table_counts_what_is_as_it_should_be():
    good = Outcome("ps_killed", 0, stall_seconds=2.0, repeated=10, restarts=1, auc=0.75)
    bad = Outcome("ps_killed", 1, stall_seconds=4.0, repeated=30, restarts=1, problems=["x"])
    (row,) = tabulate([good, bad], {"ps_killed": "PS killed"})
    assert row[0] == "PS killed"
    assert row[1].startswith("3.0 ±")
    assert row[-1] == "1 of 2"


def test_outcomes_are_judged_by_the_undisturbed_run_of_their_seed():
    def outcome(fault, seed, auc, seconds):
        return Outcome(fault, seed, auc=auc, training_seconds=seconds)

    found = [
        outcome("undisturbed", 0, 0.75, 100.0),
        outcome("undisturbed", 1, 0.7502, 50.0),
        outcome("worker_killed_every_20s", 0, 0.75, 130.0),
        outcome("worker_killed_every_20s", 1, 0.75, 70.0),
        outcome("ps_killed", 1, 0.745, 500.0),
    ]
    judge_against_undisturbed(found, FAULTS)
    assert [len(one.problems) for one in found] == [0, 0, 0, 1, 1]
    assert found[3].problems == ["goodput 71%, 75% wanted"]
    assert "beyond" in found[4].problems[0]


def test_an_event_of_an_earlier_fault_is_not_taken_for_a_new_one(run):
    event = SimpleNamespace(time=100.0, what="a checkpoint is damaged", done="")
    training(run)
    run.view.events = [event]
    chaos = Disturbance(run, random.Random(0), since=99.0)
    chaos.wait_for_event("checkpoint", timeout_seconds=0.0)
    assert chaos.problems == []
    chaos.since = 101.0
    chaos.wait_for_event("checkpoint", timeout_seconds=0.0)
    assert len(chaos.problems) == 1


def test_restarts_are_counted_through_a_resumption(tmp_path):
    run = WatchedRun(tmp_path, {}, program=[sys.executable, "-c", ""])

    def look(restarts):
        member = SimpleNamespace(role="ps", index=0, restarts=restarts)
        records = SimpleNamespace(trained=0, repeated=0)
        view = SimpleNamespace(
            members=[member], state="training", records=records, samples_per_second=0.0
        )
        run.take_in(view)

    look(2)
    run.start()
    look(1)
    run.wait(60.0)
    assert run.restarts["ps", 0] == 3
