"""What every launcher does, whatever it starts members as: `coordination.launching.Launcher`.

A launcher is tested here by being registered in `specs.launchers`. Members are small programs.
"""

import os
import signal
from contextlib import ExitStack

import pytest

from ctr_pipeline.config.models import RuntimeConfig
from ctr_pipeline.distributed.coordination.launching import LauncherContext
from ctr_pipeline.distributed.launchers.kubernetes.api import KubernetesApi
from ctr_pipeline.distributed.launchers.kubernetes.launcher import KubernetesLauncher
from ctr_pipeline.distributed.launchers.kubernetes.pods import ClusterJob
from ctr_pipeline.pipeline.job.launchers import open_launcher, series_of_drivers
from ctr_pipeline.specs.launchers import LAUNCHERS, LauncherKind
from tests.distributed.launchers.kubernetes_pods import LocalPods
from tests.distributed.launchers.launched import SLEEP, Scripts, is_alive
from tests.distributed.waiting import wait_until

PLAIN = LauncherKind(
    "plain",
    "tests.distributed.launchers.plain_launcher:PlainLauncher",
    "children of this process",
    4,
)

ENDS_WHEN_ASKED = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("ready", flush=True)
time.sleep(600)
"""
DOES_NOT_LISTEN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""


def open_for_test(kind, context, tmp_path):
    """The launcher; one of pods on a namespace whose pods are processes here."""
    if kind.mode != "kubernetes":
        return open_launcher(kind, context)
    job = ClusterJob("job", "namespace", "0a1b")
    return KubernetesLauncher(context, api=LocalPods(tmp_path / "pods"), job=job)


def exit_codes(number):
    """How a signal, given as minus its number, may be told: pods say 128 + the signal."""
    return {number, 128 - number} if number < 0 else {number}


class Opened:
    """A launcher, its members and what they write."""

    def __init__(self, launcher, scripts, logs_folder):
        self.launcher, self.scripts, self.logs_folder = launcher, scripts, logs_folder

    def start(self, role, index=0):
        self.launcher.start(role, index)
        return self.state(role, index)

    def state(self, role, index=0):
        (found,) = (
            one for one in self.launcher.observe() if (one.role, one.index) == (role, index)
        )
        return found

    def ended(self, role, index=0):
        wait_until(lambda: not self.state(role, index).running)
        return self.state(role, index)

    def stop(self, role, *, grace_seconds):
        incarnation = self.state(role).incarnation
        self.launcher.stop(role, 0, incarnation, grace_seconds=grace_seconds)

    def log(self, name):
        path = self.logs_folder / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def wait_ready(self, name):
        wait_until(lambda: "ready" in self.log(name))


# A pod is two interpreters, one that watches the other. `test_kubernetes_launcher.py` starts few.
KINDS = [
    pytest.param(kind, id=kind.mode, marks=[pytest.mark.slow] * (kind.mode == "kubernetes"))
    for kind in (*LAUNCHERS.values(), PLAIN)
]


@pytest.fixture(params=KINDS)
def launch(request, tmp_path):
    with ExitStack() as stack:

        def start(**texts):
            scripts = Scripts(**texts)
            context = LauncherContext(
                scripts, tmp_path / "logs", {"GIVEN_TO_MEMBERS": "seen"}, closing_seconds=0.3
            )
            launcher = stack.enter_context(open_for_test(request.param, context, tmp_path))
            return Opened(launcher, scripts, tmp_path / "logs")

        yield start


@pytest.mark.parametrize(("mode", "series"), [("kubernetes", "0a1b"), ("processes", "")])
def test_drivers_follow_one_another_in_a_cluster_alone(monkeypatch, tmp_path, mode, series):
    for name, value in (("JOB", "job"), ("NAMESPACE", "namespace"), ("OWNER_UID", "0a1b")):
        monkeypatch.setenv(f"CTRPIPE_{name}", value)
    monkeypatch.setattr(KubernetesApi, "in_pod", lambda _namespace: LocalPods(tmp_path))
    assert series_of_drivers(RuntimeConfig(mode=mode)) == series


class TestStart:
    def test_a_member_runs_and_knows_its_name(self, launch):
        opened = launch(ps="import sys, time; print(*sys.argv[1:], flush=True); time.sleep(600)")
        state = opened.start("ps", 3)
        assert (state.role, state.index, state.running, state.restarts) == ("ps", 3, True, 0)
        assert (state.exit_code, state.reason) == (None, None)
        wait_until(lambda: opened.log("ps-3").endswith("\n"))
        assert opened.log("ps-3") == f"ps 3 {state.incarnation}\n"

    def test_asking_twice_starts_once(self, launch):
        opened = launch(ps=SLEEP)
        first = opened.start("ps")
        assert opened.start("ps").incarnation == first.incarnation
        assert len(opened.scripts.starts) == 1

    def test_an_ended_one_stays_so_until_it_is_started_again_under_another_name(self, launch):
        opened = launch(worker="raise SystemExit(3)")
        opened.start("worker")
        first = opened.ended("worker")
        opened.start("worker")
        second = opened.ended("worker")
        assert (first.restarts, second.restarts) == (0, 1)
        assert second.incarnation != first.incarnation
        assert len(opened.launcher.observe()) == 1
        assert len(opened.scripts.starts) == 2

    def test_members_get_the_environment_of_the_job(self, launch):
        opened = launch(ps="import os; print(os.environ['GIVEN_TO_MEMBERS'], 'PATH' in os.environ)")
        opened.start("ps")
        assert opened.ended("ps").traceback == "seen True"


class TestEnd:
    @pytest.mark.parametrize(
        ("text", "reason", "exit_code"),
        [
            ("pass", "completed", 0),
            ("raise SystemExit(3)", "error", 3),
            ("raise SystemExit(71)", "out_of_memory", 71),
            ("raise SystemExit(73)", "not_started", 73),
            ("import os; os.kill(os.getpid(), 9)", "killed", -9),
            ("import os; os.kill(os.getpid(), 15)", "killed", -15),
            ("import os; os.kill(os.getpid(), 11)", "error", -11),
            ("raise SystemExit(143)", "killed", 143),
        ],
    )
    def test_end_of_a_member_tells_its_reason(self, launch, text, reason, exit_code):
        opened = launch(worker=text)
        opened.start("worker")
        state = opened.ended("worker")
        assert state.reason == reason
        assert state.exit_code in exit_codes(exit_code)

    def test_member_output_is_in_its_log_and_its_last_lines_are_told(self, launch):
        text = "print('to stdout', flush=True); raise ValueError('to stderr')"
        opened = launch(worker=text)
        opened.start("worker", 7)
        state = opened.ended("worker", 7)
        assert opened.log("worker-7").startswith("to stdout\n")
        assert state.traceback.splitlines()[-1] == "ValueError: to stderr"

    def test_last_lines_are_those_of_the_last_start(self, launch, tmp_path):
        marker = tmp_path / "marker"
        text = (
            f"import pathlib; marker = pathlib.Path({str(marker)!r})\n"
            "print('second' if marker.exists() else 'first'); marker.touch()"
        )
        opened = launch(ps=text)
        opened.start("ps")
        assert opened.ended("ps").traceback == "first"
        opened.start("ps")
        assert opened.ended("ps").traceback == "second"
        assert opened.log("ps-0") == "first\nsecond\n"


class TestStop:
    def test_stop_asks_first(self, launch):
        opened = launch(ps=ENDS_WHEN_ASKED)
        opened.start("ps")
        opened.wait_ready("ps-0")
        opened.stop("ps", grace_seconds=60)
        state = opened.ended("ps")
        assert (state.exit_code, state.reason) == (0, "completed")

    @pytest.mark.parametrize("grace_seconds", [0, 0.05])
    def test_kills_after_the_grace(self, launch, grace_seconds):
        opened = launch(ps=DOES_NOT_LISTEN)
        opened.start("ps")
        opened.wait_ready("ps-0")
        opened.stop("ps", grace_seconds=grace_seconds)
        state = opened.ended("ps")
        assert state.reason == "killed"
        assert state.exit_code in exit_codes(-9)

    def test_another_process_of_the_place_is_left_alone(self, launch):
        opened = launch(ps=SLEEP)
        first = opened.start("ps")
        opened.stop("ps", grace_seconds=0)
        opened.ended("ps")
        second = opened.start("ps")
        # Asked to end the first one, but late.
        opened.launcher.stop("ps", 0, first.incarnation, grace_seconds=0)
        assert opened.state("ps") == second

    def test_stop_of_what_does_not_run_changes_nothing(self, launch):
        opened = launch(ps="pass")
        opened.launcher.stop("ps", 0, "nobody", grace_seconds=1)
        assert opened.launcher.observe() == ()
        opened.start("ps")
        first = opened.ended("ps")
        opened.stop("ps", grace_seconds=1)
        assert opened.launcher.observe() == (first,)


class TestMaster:
    def test_a_killed_one_is_back_as_often_as_it_takes(self, launch):
        opened = launch(master="import time; print('ready', flush=True); time.sleep(600)")
        seen = {opened.start("master").incarnation}
        for restarts in (1, 2):
            os.kill(opened.state("master").pid, signal.SIGKILL)
            wait_until(lambda restarts=restarts: opened.state("master").restarts == restarts)
            wait_until(lambda: opened.state("master").running)
            seen.add(opened.state("master").incarnation)
        assert len(seen) == 3
        assert opened.launcher.failure() == ""

    def test_the_user_s_error_ends_it_for_good(self, launch):
        text = "import sys; sys.stderr.write('error: the disk is full\\n'); sys.exit(1)"
        opened = launch(master=text)
        opened.start("master")
        found = wait_until(opened.launcher.failure)
        assert found == "master-0 ended with an error\nerror: the disk is full"
        assert len(opened.scripts.starts) == 1

    def test_one_that_completed_stays_ended(self, launch):
        opened = launch(master="pass", ps="pass")
        opened.start("master")
        assert opened.ended("master").reason == "completed"
        # A start later than the master's would have been.
        opened.start("ps")
        opened.ended("ps")
        assert not opened.state("master").running
        assert opened.launcher.failure() == ""

    def test_one_that_is_stopped_stays_ended(self, launch):
        opened = launch(master=SLEEP, ps="pass")
        opened.start("master")
        opened.stop("master", grace_seconds=5)
        assert opened.ended("master").reason == "killed"
        opened.start("ps")
        opened.ended("ps")
        assert not opened.state("master").running
        assert opened.launcher.failure() == ""

    @pytest.mark.slow
    def test_a_crash_loop_is_given_up_with_the_last_lines(self, launch):
        text = "import sys; sys.stderr.write('broken ledger\\n'); sys.exit(3)"
        opened = launch(master=text)
        opened.start("master")
        assert "broken ledger" in wait_until(opened.launcher.failure, seconds=60)
        assert len(opened.scripts.starts) == 5


def test_leaving_it_ends_every_member(launch):
    opened = launch(master=SLEEP, ps=DOES_NOT_LISTEN, worker=SLEEP)
    with opened.launcher:
        states = [opened.start(role) for role in ("master", "ps", "worker")]
        opened.wait_ready("ps-0")
    assert [one.running for one in opened.launcher.observe()] == [False] * 3
    assert not any(is_alive(one.pid) for one in states if one.pid)
