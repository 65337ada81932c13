"""How a process ended, as a person says it."""

import signal

BY_SOMEBODY = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""Signals that come from outside; others, such as SIGSEGV, are the program's own fault."""


EXIT_OUT_OF_MEMORY = 71
"""Exit code of a member that ran into its own memory limit and could still say so."""

EXIT_HALF_UPDATED = 72
"""Exit code of a parameter server that failed in the middle of an update."""

EXIT_CUT_OFF = 74
"""Exit code of a replica that is left out, because it and another one cannot reach each other."""


def signal_of(exit_code: int) -> int | None:
    """The signal that ended a process; None: it ended by itself."""
    if exit_code < 0:
        return -exit_code
    # Programs that catch a signal and end in order say 128 + its number.
    return exit_code - 128 if exit_code - 128 in BY_SOMEBODY else None


def format_exit(exit_code: int) -> str:
    """An end in words: `killed (SIGKILL)`, `ended by SIGTERM`, `exit code 3`."""
    number = signal_of(exit_code)
    if number is None:
        return f"exit code {exit_code}"
    if number == signal.SIGKILL:
        return "killed (SIGKILL)"
    name = _name_of(number)
    return f"ended by {name}" if number in BY_SOMEBODY else f"crashed ({name})"


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
