"""Seconds a stage."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class StageTimes:
    """Seconds spent in each stage of a run, in the order of their first start."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Counts the time inside; the same stage may be entered again."""
        started = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - started
            self.seconds[name] = self.seconds.get(name, 0.0) + spent
