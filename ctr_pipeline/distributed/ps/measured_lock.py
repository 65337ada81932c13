"""A lock that knows for how long it was held."""

import threading
import time
from collections.abc import Callable


class MeasuredLock:
    """A lock for `with`, which notes for how long it was held.

    Args:
        clock: Seconds, monotonic.

    Attributes:
        longest_seconds: At most, at a time.
        held_seconds: In all.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.longest_seconds = 0.0
        self.held_seconds = 0.0
        self._lock = threading.Lock()
        self._since = 0.0

    def take_longest(self) -> float:
        """The longest time so far in seconds, which is forgotten."""
        longest, self.longest_seconds = self.longest_seconds, 0.0
        return longest

    def __enter__(self) -> None:
        self._lock.acquire()
        self._since = self._clock()

    def __exit__(self, *_: object) -> None:
        seconds = self._clock() - self._since
        self.longest_seconds = max(self.longest_seconds, seconds)
        self.held_seconds += seconds
        self._lock.release()
