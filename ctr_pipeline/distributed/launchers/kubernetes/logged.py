"""Runs the program of a member in its pod and keeps what it writes.

    python -m ctr_pipeline.distributed.launchers.kubernetes.logged LOG TERMINATION_LOG COMMAND …

What the program writes goes to the output of the pod and into LOG, a file of bounded size on the
job's volume, where it outlives the pod; its last lines go to TERMINATION_LOG, from where Kubernetes
gives them to the launcher. As the first process of the container, it passes SIGTERM on.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from ctr_pipeline.distributed.coordination.exit_codes import EXIT_OUT_OF_MEMORY
from ctr_pipeline.distributed.launchers.exits import count_oom_kills
from ctr_pipeline.distributed.launchers.processes.log_file import LogFile

_READ_BYTES = 1 << 16
_MESSAGE_BYTES = 4000
"""Kubernetes keeps 4096 bytes of a termination message."""


def run_logged(log_path: Path, termination_log: Path, command: Sequence[str]) -> int:
    """Runs a program to its end; returns its exit code, 128 + the signal that ended it."""
    log, oom_kills = LogFile(log_path), count_oom_kills()
    with subprocess.Popen(  # noqa: S603  the command of the member
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as program:

        def pass_on(number: int, _frame: FrameType | None) -> None:
            program.send_signal(number)

        signal.signal(signal.SIGTERM, pass_on)
        output = program.stdout
        while output is not None and (data := os.read(output.fileno(), _READ_BYTES)):
            log.write(data)
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        exit_code = program.wait()
    tail = log.tail().encode()[-_MESSAGE_BYTES:]
    log.close()
    termination_log.write_bytes(tail)
    if exit_code == -signal.SIGKILL and count_oom_kills() > oom_kills:
        return EXIT_OUT_OF_MEMORY
    return exit_code if exit_code >= 0 else 128 - exit_code


if __name__ == "__main__":
    sys.exit(run_logged(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
