"""Why a process ended."""

import signal
from pathlib import Path

from ctr_pipeline.distributed.coordination.exit_codes import (
    BY_SOMEBODY,
    EXIT_CUT_OFF,
    EXIT_OUT_OF_MEMORY,
    signal_of,
)
from ctr_pipeline.distributed.coordination.launching import ExitReason
from ctr_pipeline.machine import EXIT_NO_THREAD


def classify_exit(exit_code: int, *, stopped: bool, oom_kills: int) -> ExitReason:
    """The reason of an exit.

    Args:
        exit_code: Negative: minus the signal.
        stopped: The launcher had stopped it.
        oom_kills: Processes that the system killed for memory while it ran.
    """
    if exit_code == 0:
        return "completed"
    number = signal_of(exit_code)
    if stopped and number in BY_SOMEBODY:
        return "killed"
    if exit_code == EXIT_NO_THREAD:
        return "not_started"
    if exit_code == EXIT_OUT_OF_MEMORY or (exit_code == -signal.SIGKILL and oom_kills > 0):
        return "out_of_memory"
    # Where the network is at fault, the program is not.
    by_others = number in BY_SOMEBODY or exit_code == EXIT_CUT_OFF
    return "killed" if by_others else "error"


def count_oom_kills(
    proc: Path = Path("/proc"),
    cgroups: Path = Path("/sys/fs/cgroup"),
) -> int:
    """How many processes the system has killed for memory so far, in our control group.

    Where the control group cannot be read, those of the whole machine; 0 where neither can.
    """
    for path in (*_cgroup_files(proc / "self" / "cgroup", cgroups), proc / "vmstat"):
        try:
            lines = path.read_text(encoding="ascii").splitlines()
        except OSError:
            continue
        for line in lines:
            name, _, value = line.partition(" ")
            if name == "oom_kill" and value.isdigit():
                return int(value)
    return 0


def _cgroup_files(listing: Path, cgroups: Path) -> list[Path]:
    """Where version 1 and version 2 of control groups count."""
    try:
        lines = listing.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        folder = path.lstrip("/")
        if "memory" in controllers.split(","):
            found.append(cgroups / "memory" / folder / "memory.oom_control")
        elif controllers == "":
            found.append(cgroups / folder / "memory.events")
    return found
