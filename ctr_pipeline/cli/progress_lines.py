"""Progress as plain lines, for logs and pipes: after a moment, every ten seconds, at the end."""

import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self, TextIO

from ctr_pipeline.machine import is_refused_thread
from ctr_pipeline.reporting.formats import visible_text

_LOGGER = logging.getLogger(__name__)
INTERVAL_SECONDS = 10.0
QUIET_SECONDS = 2.0
"""Work that is done sooner has no line: of many short epochs, a log would be full of them."""


class LineProgress:
    """A `Progress` that writes lines.

    Args:
        stream: Where lines go; None is stderr.
        clock: Seconds, monotonic.
        heartbeat: A thread writes the periodic lines; otherwise the caller calls `beat`.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        heartbeat: bool = True,
    ) -> None:
        self._stream = stream
        self._clock = clock
        self._heartbeat = heartbeat
        self._lock = threading.Lock()
        self._open: list[LineTask] = []
        self._stop = threading.Event()
        self._is_beating = False

    def task(self, name: str, *, total: int | None, unit: str = "rows") -> "LineTask":
        """Starts a task; a line announces it once it has taken longer than a moment."""
        task = LineTask(self, name, total=total, unit=unit, clock=self._clock)
        with self._lock:
            self._open.append(task)
            if self._heartbeat and not self._is_beating:
                self._start_beating()
        return task

    def log(self, text: str) -> None:
        """One line."""
        stream = self._stream or sys.stderr
        stream.write(visible_text(text) + "\n")
        stream.flush()

    def board(self, lines: Sequence[str]) -> None:
        """Does nothing: a log cannot replace lines."""

    def beat(self) -> None:
        """Writes a line for the innermost task, if one is due."""
        with self._lock:
            task = self._open[-1] if self._open else None
        if task is not None:
            task.beat()

    def close(self, task: "LineTask") -> None:
        """Forgets a task that has ended."""
        with self._lock:
            self._open = [other for other in self._open if other is not task]
            if not self._open:
                self._stop.set()
                self._is_beating = False

    def _start_beating(self) -> None:
        """Starts the thread of the periodic lines; if no thread is left, the next task tries."""
        stop = threading.Event()
        try:
            threading.Thread(target=self._beat_until, args=(stop,), daemon=True).start()
        except RuntimeError as error:
            if not is_refused_thread(error):
                raise
            _LOGGER.warning("The system allows no more threads: there are fewer lines of progress")
        else:
            self._stop, self._is_beating = stop, True

    def _beat_until(self, stop: threading.Event) -> None:
        while not stop.wait(1.0):
            self.beat()


class LineTask:
    """One task of a `LineProgress`."""

    def __init__(
        self,
        progress: LineProgress,
        name: str,
        *,
        total: int | None,
        unit: str,
        clock: Callable[[], float],
    ) -> None:
        self._progress = progress
        self._name = name
        self._total = total
        self._unit = unit
        self._clock = clock
        self._done = 0
        self._note = ""
        self._is_announced = False
        self._start = self._last = clock()

    def advance(self, amount: int) -> None:
        """`amount` more units are done."""
        self._done += amount

    def note(self, text: str) -> None:
        """Shows `text` in the next line."""
        self._note = text

    def beat(self) -> None:
        """Writes a line once the task has taken a moment, and then once per interval."""
        now = self._clock()
        if not self._is_announced and now - self._start >= QUIET_SECONDS:
            self._is_announced = True
            if now - self._start < INTERVAL_SECONDS:
                known = self._total is not None
                amount = f" ({format_amount(self._total or 0, self._unit)})" if known else ""
                self._progress.log(f"{self._name}: started{amount}")
        if now - self._last < INTERVAL_SECONDS:
            return
        self._last = now
        self._progress.log(f"{self._name}: {self._state(now)}")

    def _state(self, now: float) -> str:
        seconds = now - self._start
        parts = []
        if self._total:
            parts.append(f"{self._done / self._total:.0%}")
        if self._done:
            parts.append(f"{format_amount(self._done, self._unit)}, {self._rate(seconds)}")
        parts.append(f"{format_seconds(seconds)} so far")
        if self._total and 0 < self._done < self._total:
            left = (self._total - self._done) * seconds / self._done
            parts.append(f"about {format_seconds(left)} left")
        return ", ".join([*parts, *([self._note] if self._note else [])])

    def _rate(self, seconds: float) -> str:
        if self._unit == "bytes":
            return f"{format_amount(self._done / seconds, 'bytes')}/s"
        return f"{self._done / seconds:,.0f}/s"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.close(self)
        seconds = self._clock() - self._start
        if kind is None and seconds < QUIET_SECONDS:
            return
        ending = "done in" if kind is None else "stopped after"
        parts = [f"{ending} {format_seconds(seconds)}"]
        if self._done:
            rate = f", {self._rate(seconds)}" if seconds > 0 else ""
            parts.append(f"{format_amount(self._done, self._unit)}{rate}")
        if self._note:
            parts.append(self._note)
        self._progress.log(f"{self._name}: {', '.join(parts)}")


def format_amount(amount: float, unit: str) -> str:
    """An amount of work: `12,300 rows`, `4.9 MB`."""
    if unit != "bytes":
        return f"{amount:,.0f} {unit}"
    for name in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {name}" if amount >= 10 or name == "B" else f"{amount:.1f} {name}"
        amount /= 1000
    return f"{amount:,.1f} TB"


def format_seconds(seconds: float) -> str:
    """A duration for people: `0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
