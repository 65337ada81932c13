"""How long work reports its progress, without knowing what displays it.

The command line shows bars or plain lines; notebooks and tests pass `SilentProgress`.
"""

from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self


class ProgressTask(Protocol):
    """One piece of long work; a context manager that ends its display."""

    def advance(self, amount: int) -> None:
        """`amount` more units are done."""

    def note(self, text: str) -> None:
        """Shows `text` beside the bar, for example `loss 0.4512`."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class Progress(Protocol):
    """Opens a display for each piece of long work."""

    def task(self, name: str, *, total: int | None, unit: str = "rows") -> ProgressTask:
        """Starts the display of one piece of work; `total` is None when it is not known."""

    def log(self, text: str) -> None:
        """Prints one line for a person."""

    def board(self, lines: Sequence[str]) -> None:
        """Shows lines below everything else, in place of those before, where that is possible."""


class SilentTask:
    """A `ProgressTask` that shows nothing."""

    def advance(self, amount: int) -> None:
        """Shows nothing."""

    def note(self, text: str) -> None:
        """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class SilentProgress:
    """A `Progress` that shows nothing."""

    def task(self, name: str, *, total: int | None, unit: str = "rows") -> ProgressTask:
        """Shows nothing."""
        return SilentTask()

    def log(self, text: str) -> None:
        """Shows nothing."""

    def board(self, lines: Sequence[str]) -> None:
        """Shows nothing."""
