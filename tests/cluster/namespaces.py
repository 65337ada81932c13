"""Linux namespaces and control groups of the machines that the test cluster plays.

A `Machine` is an init process in a network, mount and PID namespace of its own. All its programs
die with that process, and their mounts and network devices go with the namespaces, so the process
and the control groups are all there is to clean up.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_CONTROL_GROUPS = Path("/sys/fs/cgroup")
_CLONE_NEWNET = 0x40000000


@dataclass(frozen=True)
class Machine:
    """An init process, known by its id and the time of its start.

    Attributes:
        pid: As this process sees it.
        started: In ticks since the boot of the kernel; tells it from a later process of that id.
    """

    pid: int
    started: int

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return _start_time(self.pid) == self.started

    def command(self, command: Sequence[str], namespaces: str = "net mount pid") -> list[str]:
        """The command that runs a command in the machine's namespaces."""
        flags = [f"--{namespace}" for namespace in namespaces.split()]
        return ["nsenter", "--target", str(self.pid), *flags, "--", *command]

    def run(self, command: Sequence[str]) -> str:
        """Runs a command to its end and returns what it printed.

        Raises:
            RuntimeError: It failed; holds what it wrote to standard error.
        """
        return _run(self.command(command))

    def start_program(self, command: Sequence[str], log: Path) -> int:
        """Starts a program that outlives this process; returns its id inside the machine."""
        script = 'log=$0; setsid "$@" >>"$log" 2>&1 </dev/null & echo $!'
        return int(self.run(["sh", "-c", script, str(log), *command]))

    def send_signal(self, pid: int, number: signal.Signals) -> None:
        """Sends a signal to a program by its id inside the machine; one that has ended is none."""
        command = self.command(["sh", "-c", f"kill -{number.value} {pid}"])
        subprocess.run(command, capture_output=True, check=False)

    def kill(self) -> None:
        """`kill -9` of everything inside; returns when the init process is gone."""
        if self.alive:
            os.kill(self.pid, signal.SIGKILL)
            deadline = time.monotonic() + 30
            while self.alive and time.monotonic() < deadline:
                time.sleep(0.02)

    @contextlib.contextmanager
    def network(self) -> Iterator[None]:
        """The calling thread, and threads and processes it starts, use the machine's network."""
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        inside = os.open(f"/proc/{self.pid}/ns/net", os.O_RDONLY)
        try:
            _enter_network(inside)
            yield
        finally:
            _enter_network(before)
            os.close(inside)
            os.close(before)


def this_process() -> Machine:
    """The process that calls, as the owner of what it starts."""
    return Machine(os.getpid(), _start_time(os.getpid()))


def start_machine(init: Path, log: Path) -> Machine:
    """Starts an init process in new namespaces; it outlives this process."""
    unshare = "unshare --net --mount --propagation private --pid --fork --mount-proc"
    script = f'setsid {unshare} "$0" >>"$1" 2>&1 </dev/null & echo $!'
    parent = _run(["sh", "-c", script, str(init), str(log)]).strip()
    children = Path(f"/proc/{parent}/task/{parent}/children")
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if pids := children.read_text().split():
                pid = int(pids[0])
                # 'unshare' mounts /proc in the child before that becomes the init program.
                if Path(f"/proc/{pid}/exe").resolve() == init.resolve():
                    return Machine(pid, _start_time(pid))
        time.sleep(0.01)
    raise RuntimeError(f"no namespaces can be made: {log.read_text().strip()}")


def make_control_groups(name: str) -> None:
    """Makes an empty control group of that name in each hierarchy, for a kubelet's pods."""
    for folder in _control_group_folders(name):
        folder.mkdir(exist_ok=True)
        # In version 1 a group has no processors and no memory nodes until it is given some.
        if folder.parent.name == "cpuset":
            for limit in ("cpuset.cpus", "cpuset.mems"):
                (folder / limit).write_text((folder.parent / limit).read_text())


def remove_control_groups(name: str) -> None:
    """Removes the control groups of that name and those inside; their processes must be dead."""
    deadline = time.monotonic() + 10
    while left := [path for path in _control_group_folders(name) if path.exists()]:
        for folder in left:
            inner = sorted(folder.rglob("*/"), reverse=True)
            for group in [*(path for path in inner if path.is_dir()), folder]:
                # A group is busy until the kernel has reaped its last process.
                with contextlib.suppress(OSError):
                    group.rmdir()
        if time.monotonic() > deadline:
            raise RuntimeError(f"control groups are still in use: {left}")
        time.sleep(0.05)


def missing_rights() -> str | None:
    """Why no machine can be started here, in one sentence; None if it can."""
    if os.geteuid() != 0:
        return "it needs root"
    for tool in ("ip", "nsenter", "unshare"):
        if shutil.which(tool) is None:
            return f"'{tool}' is not installed"
    try:
        _run(["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "true"])
    except RuntimeError as error:
        return f"namespaces cannot be made ({error})"
    probe = f"ctrpipe-probe-{os.getpid()}"
    try:
        make_control_groups(probe)
        remove_control_groups(probe)
    except (OSError, RuntimeError) as error:
        return f"control groups cannot be made ({error})"
    return None


def _is_version_2() -> bool:
    return (_CONTROL_GROUPS / "cgroup.controllers").exists()


def _control_group_folders(name: str) -> list[Path]:
    if _is_version_2():
        return [_CONTROL_GROUPS / name]
    return sorted(path.parent / name for path in _CONTROL_GROUPS.glob("*/cgroup.procs"))


def _enter_network(descriptor: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "setns")


def _start_time(pid: int) -> int:
    """In ticks since boot; -1 where there is no such process, or only a zombie of it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return -1
    return -1 if fields[0] in "ZX" else int(fields[19])


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"'{' '.join(command)}' failed: {done.stderr.strip()}")
    return done.stdout
