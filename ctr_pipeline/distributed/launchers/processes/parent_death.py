"""Ties a process to its parent: the system kills it when the parent is gone.

Run as a script it becomes the command that it is given; it imports nothing of the package, so that
it costs milliseconds.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(parent_pid: int) -> bool:
    """Asks the system to kill this process when the thread that started it ends.

    Returns:
        Whether `parent_pid` is still the parent; if not, it is gone already and nobody would ever
        kill this process.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent_pid


def adopt_orphans(wanted: bool) -> None:
    """Makes this process the parent of descendants whose own parent ends, or no longer."""
    _prctl(_PR_SET_CHILD_SUBREAPER, int(wanted))


def _prctl(option: int, value: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    # Files that libraries of the launcher left inheritable are not the member's.
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    if not die_with_parent(int(sys.argv[1])):
        sys.exit("the launcher has ended")
    os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606  becoming the member is the purpose
