"""Starting, signalling and reaping processes of this machine."""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ctr_pipeline.distributed.launchers.processes import parent_death

_EXIT_UNKNOWN = 255
_PARENT_DEATH = str(Path(parent_death.__file__).resolve())


def spawn(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    output: int,
    errors: int | None = None,
    standard_input: int | None = None,
) -> int:
    """Starts a process that is killed when the calling *thread* ends.

    It leads a session of its own: Ctrl-C on the terminal reaches the launcher alone.

    Args:
        command: An absolute path and its arguments.
        output: Descriptor that becomes its stdout.
        errors: Descriptor that becomes its stderr; None: `output`.
        standard_input: Descriptor that becomes its stdin; None: nothing to read.

    Returns:
        Its pid.
    """
    arguments = [sys.executable, "-I", "-S", _PARENT_DEATH, str(os.getpid()), *command]
    source: tuple[int, ...] | tuple[int, int, str, int, int] = (
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
        if standard_input is None
        else (os.POSIX_SPAWN_DUP2, standard_input, 0)
    )
    actions = [
        source,
        (os.POSIX_SPAWN_DUP2, output, 1),
        (os.POSIX_SPAWN_DUP2, output if errors is None else errors, 2),
    ]
    return os.posix_spawn(
        sys.executable,
        arguments,
        dict(environment),
        file_actions=actions,
        setsid=True,
        setsigmask=(),
        setsigdef=(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE),
    )


class ProcessHandle:
    """A child of this process that cannot be mistaken for a later one with the same pid."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)
        self._exit_code: int | None = None

    def fileno(self) -> int:
        """A descriptor that is readable once the process has ended."""
        return self._descriptor

    def send(self, number: signal.Signals) -> None:
        """Sends a signal; nothing happens if it has ended."""
        if self._exit_code is None:
            try:
                signal.pidfd_send_signal(self._descriptor, number)
            except ProcessLookupError:
                return

    def reap(self) -> int | None:
        """The exit code once it has ended; negative: minus the signal."""
        if self._exit_code is None:
            try:
                found = os.waitid(os.P_PIDFD, self._descriptor, os.WEXITED | os.WNOHANG)
            except ChildProcessError:
                # Whoever started us ignores ends of children, and the system forgets their codes.
                self._exit_code = _EXIT_UNKNOWN
                return self._exit_code
            if found is not None:
                by_itself = found.si_code == os.CLD_EXITED
                self._exit_code = found.si_status if by_itself else -found.si_status
        return self._exit_code

    def close(self) -> None:
        """Lets go of it."""
        os.close(self._descriptor)
