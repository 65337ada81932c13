"""Runs the command line as a process and ends the process quickly.

When a process ends, Python empties every module and looks for cycles. With TensorFlow and DuckDB
loaded, that takes a second, although the system frees all memory at once anyway.
"""

import atexit
import os
import sys
from typing import NoReturn


def run_process() -> NoReturn:
    """Runs the command of the system's arguments and ends the process with its exit code.

    As always, Python first waits for threads, calls what was registered with `atexit` and flushes
    the standard streams.
    """
    _replace_closed_streams()
    codes: list[int] = []
    # Functions are called in the reverse order of registration, so this one is the last.
    atexit.register(_end, codes)
    from ctr_pipeline.cli.main import main

    codes.append(main())
    sys.exit(codes[0])


def _replace_closed_streams() -> None:
    """Opens /dev/null in place of standard streams that the caller closed, as by `2>&-`.

    Python has None in their place, and the next file that is opened would get their number.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(nowhere, "r" if number == 0 else "w", encoding="utf-8"))


def _end(codes: list[int]) -> None:
    try:
        for stream in (sys.stdout, sys.stderr):
            # Like Python, skip streams that are absent or closed.
            if stream is not None and not stream.closed:
                stream.flush()
    except OSError:
        # The output has no reader: Python has a message and an exit code for that.
        return
    if codes:
        os._exit(codes[0])
