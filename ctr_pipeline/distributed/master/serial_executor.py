"""Threads that do one thing after another."""

import queue
import threading
from collections.abc import Callable


class SerialExecutor:
    """One thread and the work that waits for it, in order.

    Args:
        on_error: Given what escapes a piece of work; the executor goes on with the next one.
    """

    def __init__(self, name: str, on_error: Callable[[Exception], None]) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._on_error = on_error
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, work: Callable[[], None]) -> None:
        """Has work done after all that was put before."""
        self._work.put(work)

    def close(self, wait_seconds: float) -> None:
        """Takes no more; waits for what is under way, but not for ever."""
        self._work.put(None)
        self._thread.join(wait_seconds)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except Exception as error:  # noqa: BLE001  whoever owns the executor has to know of it
                self._on_error(error)
