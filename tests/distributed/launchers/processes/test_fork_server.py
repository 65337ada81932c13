import os
import signal
import textwrap
from pathlib import Path

import pytest

from ctr_pipeline.distributed.coordination.launching import LauncherContext
from ctr_pipeline.distributed.launchers.processes.launcher import ProcessLauncher
from ctr_pipeline.distributed.launchers.processes.spawning import spawn
from tests.distributed.launchers.launched import Scripts, is_alive
from tests.distributed.waiting import wait_until

FORK_SERVER = """
import os, sys, time
from ctr_pipeline.distributed.launchers.processes.fork_server import serve_forks

loaded = []

def preload():
    {preload}

def run(arguments):
    {run}

serve_forks(preload, run)
"""

WAIT = "print('loaded', loaded, arguments, flush=True); time.sleep(600)"


def fork_server(*, preload="loaded.append(os.getpid())", run=WAIT):
    return FORK_SERVER.format(
        preload=textwrap.dedent(preload).replace("\n", "\n    "),
        run=textwrap.dedent(run).replace("\n", "\n    "),
    )


@pytest.fixture
def pids():
    """Of what the launcher started itself, in order: the fork server first."""
    return []


@pytest.fixture
def launch(tmp_path, pids):
    open_ones = []

    def spawn_and_note(*arguments, **options):
        pids.append(spawn(*arguments, **options))
        return pids[-1]

    def start(scripts, **options):
        launcher = ProcessLauncher(
            LauncherContext(scripts, tmp_path / "logs", closing_seconds=0.0),
            spawn=spawn_and_note,
            **options,
        )
        open_ones.append(launcher)
        return launcher

    yield start
    for launcher in open_ones:
        launcher.close()


def spawned(launcher, index=0):
    """The worker once it runs."""

    def look():
        found = [one for one in launcher.observe() if (one.role, one.index) == ("worker", index)]
        return found[0] if found and found[0].pid else None

    return wait_until(look)


class TestBirth:
    def test_a_worker_has_what_the_fork_server_imported(self, launch, tmp_path, pids):
        launcher = launch(Scripts(fork_server=fork_server()))
        launcher.start("worker", 4)
        state = spawned(launcher, 4)
        log = tmp_path / "logs" / "worker-4.log"
        wait_until(lambda: log.exists() and log.read_text().endswith("\n"))
        expected = f"loaded {pids} ['worker', '4', '{state.incarnation}']\n"
        assert log.read_text() == expected

    def test_worker_is_a_child_of_the_launcher_in_a_session_of_its_own(self, launch):
        launcher = launch(Scripts(fork_server=fork_server()))
        launcher.start("worker", 0)
        pid = spawned(launcher).pid
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        assert int(fields[1]) == os.getpid()
        wait_until(lambda: os.getsid(pid) == pid)

    @pytest.mark.parametrize(
        ("run", "reason", "exit_code"),
        [
            ("return 0", "completed", 0),
            ("return 5", "error", 5),
            ("os.kill(os.getpid(), 9)", "killed", -9),
            ("raise ValueError('unexpected')", "error", 70),
        ],
    )
    def test_worker_end_is_told_as_any_other(self, launch, run, reason, exit_code):
        launcher = launch(Scripts(fork_server=fork_server(run=run)))
        launcher.start("worker", 0)
        state = wait_until(lambda: next((x for x in launcher.observe() if not x.running), None))
        assert (state.reason, state.exit_code) == (reason, exit_code)
        if exit_code == 70:
            assert state.traceback.endswith("ValueError: unexpected")

    def test_siblings_draw_different_random_numbers(self, launch, tmp_path):
        run = "import random; print(random.random(), flush=True); time.sleep(600)"
        launcher = launch(Scripts(fork_server=fork_server(preload="import random", run=run)))
        for index in range(2):
            launcher.start("worker", index)
        logs = [tmp_path / "logs" / f"worker-{index}.log" for index in range(2)]
        wait_until(lambda: all(log.exists() and "\n" in log.read_text() for log in logs))
        assert logs[0].read_text() != logs[1].read_text()

    def test_stop_reaches_it(self, launch):
        launcher = launch(Scripts(fork_server=fork_server()))
        launcher.start("worker", 0)
        pid = spawned(launcher).pid
        launcher.stop("worker", 0, launcher.observe()[0].incarnation, grace_seconds=10)
        wait_until(lambda: not is_alive(pid))


class TestDeathOfTheForkServer:
    def test_workers_live_on_and_it_comes_back(self, launch, pids):
        launcher = launch(Scripts(fork_server=fork_server()))
        launcher.start("worker", 0)
        worker = spawned(launcher).pid
        os.kill(pids[0], signal.SIGKILL)
        wait_until(lambda: len(pids) == 2)
        launcher.start("worker", 1)
        assert spawned(launcher, 1).running
        assert is_alive(worker)

    def test_workers_that_wait_for_it_start_on_their_own(self, launch, tmp_path, pids):
        scripts = Scripts(
            fork_server=fork_server(preload="time.sleep(600)"), worker="print('alone')"
        )
        launcher = launch(scripts)
        launcher.start("worker", 0)
        assert [one.pid for one in launcher.observe()] == [0]
        os.kill(pids[0], signal.SIGKILL)
        log = tmp_path / "logs" / "worker-0.log"
        wait_until(lambda: log.exists() and log.read_text() == "alone\n")

    def test_one_that_cannot_be_forked_says_so_and_is_done_without(self, launch, tmp_path, pids):
        preload = "import threading; threading.Thread(target=time.sleep, args=(600,)).start()"
        launcher = launch(
            Scripts(fork_server=fork_server(preload=preload), worker="print('alone')")
        )
        launcher.start("worker", 0)
        log = tmp_path / "logs" / "fork-server.log"
        wait_until(lambda: log.exists() and "2 threads run" in log.read_text())
        os.kill(pids[0], signal.SIGKILL)
        assert "alone" in wait_until(
            lambda: next((x.traceback for x in launcher.observe() if not x.running), "")
        )

    def test_a_worker_that_still_waits_can_be_stopped(self, launch):
        launcher = launch(Scripts(fork_server=fork_server(preload="time.sleep(600)")))
        launcher.start("worker", 0)
        launcher.stop("worker", 0, launcher.observe()[0].incarnation, grace_seconds=10)
        (state,) = launcher.observe()
        assert (state.running, state.reason) == (False, "killed")

    def test_a_hung_one_is_replaced(self, launch, tmp_path, pids):
        scripts = Scripts(fork_server=fork_server(), worker="print('alone')")
        launcher = launch(scripts, fork_seconds=1.0)
        launcher.start("worker", 0)
        spawned(launcher)
        os.kill(pids[0], signal.SIGSTOP)
        launcher.start("worker", 1)
        log = tmp_path / "logs" / "worker-1.log"
        wait_until(lambda: log.exists() and log.read_text() == "alone\n")
        # The worker that started on its own, and the next fork server.
        wait_until(lambda: len(pids) == 3)
        assert not is_alive(pids[0])


@pytest.mark.slow
class TestWithTensorflow:
    def test_children_train_and_serve(self, launch, tmp_path):
        preload = """
            os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
            os.environ["KERAS_BACKEND"] = "tensorflow"
            import tensorflow, keras, grpc, pyarrow, pandas, numba
        """
        run = """
            import keras, numpy as np, grpc
            from concurrent.futures import ThreadPoolExecutor
            server = grpc.server(ThreadPoolExecutor(2))
            server.add_insecure_port("127.0.0.1:0")
            server.start()
            keras.utils.set_random_seed(1)
            model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1)])
            model.compile("adam", "mse", jit_compile=True)
            loss = model.fit(np.ones((64, 3)), np.ones(64), verbose=0).history["loss"][0]
            print("loss", loss, flush=True)
            server.stop(0)
            return 0
        """
        launcher = launch(Scripts(fork_server=fork_server(preload=preload, run=run)))
        for index in range(2):
            launcher.start("worker", index)
        ends = wait_until(
            lambda: [one for one in launcher.observe() if not one.running][1:], seconds=90
        )
        assert ends
        lines = [one.traceback.splitlines()[-1] for one in launcher.observe()]
        assert lines[0].startswith("loss ")
        assert lines[0] == lines[1]
        assert {one.reason for one in launcher.observe()} == {"completed"}
