import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from ctr_pipeline.distributed.coordination.launching import (
    CannotLaunchError,
    LauncherBusyError,
    LauncherContext,
)
from ctr_pipeline.distributed.launchers.processes.launcher import ProcessLauncher
from ctr_pipeline.distributed.launchers.processes.spawning import ProcessHandle, spawn
from tests.distributed.launchers.launched import SLEEP, Scripts, is_alive
from tests.distributed.waiting import wait_until


@pytest.fixture
def launch(tmp_path):
    open_ones = []

    def start(scripts, **options):
        context = LauncherContext(scripts, tmp_path / "logs", closing_seconds=0.0)
        launcher = ProcessLauncher(context, **options)
        open_ones.append(launcher)
        return launcher

    yield start
    for launcher in open_ones:
        launcher.close()


def state_of(launcher, role, index=0):
    return next(one for one in launcher.observe() if (one.role, one.index) == (role, index))


def stop(launcher, role, *, grace_seconds):
    """Stops the process that fills the place now."""
    incarnation = state_of(launcher, role).incarnation
    launcher.stop(role, 0, incarnation, grace_seconds=grace_seconds)


def ended(launcher, role, index=0):
    def look():
        state = state_of(launcher, role, index)
        return None if state.running else state

    return wait_until(look)


class TestStart:
    def test_members_lead_sessions_of_their_own(self, launch):
        # Otherwise Ctrl-C on the terminal would reach them before the launcher can act.
        launcher = launch(Scripts(ps=SLEEP))
        launcher.start("ps", 0)
        pid = state_of(launcher, "ps").pid
        wait_until(lambda: os.getsid(pid) == pid)

    def test_no_file_of_the_launcher_is_open_in_a_member(self, launch, tmp_path):
        text = "import os; print(sorted(os.listdir('/proc/self/fd')), flush=True)"
        with (tmp_path / "secret").open("w") as file:
            os.set_inheritable(file.fileno(), True)
            launcher = launch(Scripts(ps=text))
            launcher.start("ps", 0)
            # 3 is the listing itself.
            assert ended(launcher, "ps").traceback == "['0', '1', '2', '3']"


class TestOutput:
    def test_a_megabyte_at_the_end_is_not_lost(self, launch, tmp_path):
        launcher = launch(Scripts(ps="import sys; sys.stdout.write('x' * 10**6 + '\\nend\\n')"))
        launcher.start("ps", 0)
        assert ended(launcher, "ps").traceback.endswith("end")
        assert (tmp_path / "logs" / "ps-0.log").stat().st_size == 10**6 + 5

    def test_a_grandchild_that_holds_the_output_open_delays_nothing(self, launch):
        text = (
            "import subprocess, sys\n"
            "one = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(5)'])\n"
            "print('done')"
        )
        launcher = launch(Scripts(ps=text))
        launcher.start("ps", 0)
        assert ended(launcher, "ps").traceback.startswith("done")


class TestStop:
    def test_a_stopped_process_is_killed_too(self, launch, tmp_path):
        text = "import signal, time; signal.signal(15, print); print('ready', flush=True)\n"
        launcher = launch(Scripts(ps=f"{text}{SLEEP}"))
        launcher.start("ps", 0)
        log = tmp_path / "logs" / "ps-0.log"
        wait_until(lambda: log.exists() and "ready" in log.read_text())
        os.kill(state_of(launcher, "ps").pid, signal.SIGSTOP)
        stop(launcher, "ps", grace_seconds=0.05)
        assert ended(launcher, "ps").exit_code == -9


class TestNoRoom:
    """The system allows no more processes."""

    class Room:
        is_there = True

        def spawn(self, *arguments, **keywords):
            if not self.is_there:
                raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
            return spawn(*arguments, **keywords)

    def test_start_without_room_is_refused_and_succeeds_when_asked_again(self, launch):
        room = self.Room()
        launcher = launch(Scripts(ps=SLEEP), spawn=room.spawn)
        room.is_there = False
        with pytest.raises(LauncherBusyError, match="Resource temporarily unavailable"):
            launcher.start("ps", 0)
        assert launcher.observe() == ()
        room.is_there = True
        launcher.start("ps", 0)
        assert state_of(launcher, "ps").running

    def test_a_process_that_cannot_be_watched_is_ended(self, launch):
        spawned, can_watch = [], threading.Event()

        def spawn_and_note(*arguments, **keywords):
            spawned.append(spawn(*arguments, **keywords))
            return spawned[-1]

        def watch(pid):
            if not can_watch.is_set():
                raise OSError(errno.EMFILE, "Too many open files")
            return ProcessHandle(pid)

        launcher = launch(Scripts(ps=SLEEP), spawn=spawn_and_note, watch=watch)
        open_files = set(Path("/proc/self/fd").iterdir())
        for _ in range(3):
            with pytest.raises(LauncherBusyError, match="Too many open files"):
                launcher.start("ps", 0)
        assert len(set(Path("/proc/self/fd").iterdir()) - open_files) <= 1
        can_watch.set()
        assert len(spawned) == 3
        assert not any(map(is_alive, spawned))
        assert launcher.observe() == ()
        launcher.start("ps", 0)
        assert is_alive(state_of(launcher, "ps").pid)

    def test_a_master_comes_back_as_soon_as_there_is_some(self, launch):
        room = self.Room()
        launcher = launch(Scripts(master=SLEEP), spawn=room.spawn, retry_seconds=0.02)
        launcher.start("master", 0)
        room.is_there = False
        os.kill(state_of(launcher, "master").pid, signal.SIGKILL)
        assert ended(launcher, "master").reason == "killed"
        room.is_there = True
        wait_until(lambda: state_of(launcher, "master").running)


class TestNoProgram:
    def test_start_without_a_program_is_refused_for_good(self, launch, monkeypatch):
        launcher = launch(Scripts(ps=SLEEP))
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
        with pytest.raises(CannotLaunchError, match="/nowhere/python: No such file or directory"):
            launcher.start("ps", 0)


class TestClose:
    def test_close_changes_nothing_the_second_time(self, launch):
        launcher = launch(Scripts(ps=SLEEP))
        launcher.start("ps", 0)
        launcher.close()
        launcher.close()
        launcher.start("ps", 0)
        assert [one.running for one in launcher.observe()] == [False]


LAUNCHER_PROCESS = textwrap.dedent(
    """
    import sys, time
    from pathlib import Path
    sys.path.insert(0, {root!r})
    from tests.distributed.launchers.launched import SLEEP, Scripts
    from tests.distributed.waiting import wait_until
    from ctr_pipeline.distributed.launchers.processes.launcher import ProcessLauncher
    from ctr_pipeline.distributed.coordination.launching import LauncherContext

    fork_server = '''
    import sys
    from ctr_pipeline.distributed.launchers.processes.fork_server import serve_forks
    def run(arguments):
        import time
        time.sleep(600)
        return 0
    serve_forks(lambda: None, run)
    '''
    import textwrap
    forks = textwrap.dedent(fork_server)
    scripts = Scripts(master=SLEEP, ps=SLEEP, worker=SLEEP, fork_server=forks)
    launcher = ProcessLauncher(LauncherContext(scripts, Path({logs!r})))
    launcher.start("master", 0)
    for index in range(2):
        launcher.start("ps", index)
        launcher.start("worker", index)
    wait_until(lambda: all(one.pid for one in launcher.observe()))
    import psutil
    print(*(one.pid for one in psutil.Process().children(recursive=True)), flush=True)
    time.sleep(600)
    """
)


@pytest.mark.slow
class TestOrphans:
    def test_processes_end_when_the_launcher_is_killed(self, tmp_path):
        text = LAUNCHER_PROCESS.format(
            root=str(Path(__file__).parents[4]), logs=str(tmp_path / "logs")
        )
        with subprocess.Popen(
            [sys.executable, "-c", text], stdout=subprocess.PIPE, text=True
        ) as launcher:
            try:
                pids = [int(word) for word in launcher.stdout.readline().split()]
                assert len(pids) == 6
                assert all(is_alive(pid) for pid in pids)
            finally:
                launcher.kill()
        wait_until(lambda: not any(is_alive(pid) for pid in pids))
