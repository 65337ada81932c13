"""What an unexpected exception may tell of itself.

The text of a foreign exception may quote a value of the data. Where a config has sensitive columns
only types and places in the code are told. It holds for the whole process: exceptions surface in
threads, in handlers of calls and in logs, far from any config.
"""

import logging
import traceback
from types import TracebackType

from ctr_pipeline.errors import CtrPipelineError, printable

_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class _Concealment:
    wanted = False


def conceal_values(wanted: bool) -> None:
    """Says whether texts of foreign exceptions are left out from now on."""
    _Concealment.wanted = wanted


def summarize(error: BaseException) -> str:
    """The exception's type, and its text if that may be told."""
    name = type(error).__name__
    # Our own messages leave values of sensitive columns out themselves.
    if _Concealment.wanted and not isinstance(error, CtrPipelineError):
        return name
    return f"{name}: {error}"


def render_traceback(error: BaseException) -> str:
    """The exception and those it came from, as Python prints them; texts only if they may be."""
    if not _Concealment.wanted:
        return "".join(traceback.format_exception(error))
    told: list[str] = []
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        frames = "".join(traceback.format_tb(one.__traceback__))
        told.append(f"Traceback (most recent call last):\n{frames}{summarize(one)}\n")
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
    return "\nwhich led to:\n\n".join(reversed(told))


class LogFormatter(logging.Formatter):
    """Formats exceptions as `render_traceback` does; no terminal obeys what a line holds."""

    def format(self, record: logging.LogRecord) -> str:
        """The record's lines."""
        return "\n".join(map(printable, super().format(record).split("\n")))

    def formatException(self, ei: _ExcInfo) -> str:  # noqa: N802  the name of logging
        """The traceback without the last line end."""
        return "" if ei[1] is None else render_traceback(ei[1]).rstrip("\n")
