"""The command line as a process of its own, and how that ends.

Python takes itself apart when a process ends: it empties every module and looks for cycles in what
is left. With TensorFlow and DuckDB loaded that takes a second, for memory that the system takes
back at once.
"""

import atexit
import os
import sys
from typing import NoReturn


def run_process() -> NoReturn:
    """Runs the command of the system's arguments and ends the process with its exit code.

    Threads are waited for, what was registered with `atexit` runs, and the standard streams are
    flushed, as ever; then the process is over.
    """
    _replace_closed_streams()
    codes: list[int] = []
    # Functions run in the reverse order of their registration: this one is to be the last.
    atexit.register(_end, codes)
    from ctr_pipeline.cli.main import main

    codes.append(main())
    sys.exit(codes[0])


def _replace_closed_streams() -> None:
    """Leads standard streams nowhere that were closed when the process began, as by `2>&-`.

    Python has None in their place, and the next file that is opened takes the number of one.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(nowhere, "r" if number == 0 else "w", encoding="utf-8"))


def _end(codes: list[int]) -> None:
    try:
        for stream in (sys.stdout, sys.stderr):
            # As Python does, which asks nothing of a stream that is absent or closed.
            if stream is not None and not stream.closed:
                stream.flush()
    except OSError:
        # Nobody takes what is left to say: Python has its own words and exit code for that.
        return
    if codes:
        os._exit(codes[0])
