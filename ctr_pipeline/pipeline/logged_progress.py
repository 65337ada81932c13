"""Progress that is also written into the log of the run."""

import logging
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from ctr_pipeline.progress import Progress, ProgressTask

_LOGGER = logging.getLogger(__name__)


class LoggedProgress:
    """A `Progress` that passes everything on and logs what is said, and each task with its time.

    Args:
        inner: The display.
    """

    def __init__(self, inner: Progress) -> None:
        self._inner = inner

    def task(self, name: str, *, total: int | None, unit: str = "rows") -> ProgressTask:
        """A task that logs its end."""
        return _LoggedTask(self._inner.task(name, total=total, unit=unit), name, unit)

    def log(self, text: str) -> None:
        """One plain line for a person and for the log."""
        _LOGGER.info("%s", text)
        self._inner.log(text)

    def board(self, lines: Sequence[str]) -> None:
        """Lines for a person alone."""
        self._inner.board(lines)


class _LoggedTask:
    def __init__(self, inner: ProgressTask, name: str, unit: str) -> None:
        self._inner = inner
        self._name = name
        self._unit = unit
        self._amount = 0
        self._started = time.perf_counter()

    def advance(self, amount: int) -> None:
        self._amount += amount
        self._inner.advance(amount)

    def note(self, text: str) -> None:
        self._inner.note(text)

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._inner.__exit__(kind, error, trace)
        seconds = time.perf_counter() - self._started
        ended = "done" if kind is None else "stopped"
        _LOGGER.info(
            "%s: %s, %s %s in %.2f s", self._name, ended, f"{self._amount:,}", self._unit, seconds
        )
