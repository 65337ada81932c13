"""Work on ranges of rows by several threads.

Each item is worked on by one thread alone and items share no sums, so the number of threads never
changes a result.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")

_SMALLEST_RANGE = 512


class RangeRunner:
    """Runs a function on consecutive ranges, one a thread.

    Args:
        threads: Threads, the calling one included.
    """

    def __init__(self, threads: int) -> None:
        if threads < 1:
            raise ValueError(f"threads {threads} is below 1")
        self.threads = threads
        self._pool = (
            ThreadPoolExecutor(threads - 1, thread_name_prefix="embedding-rows")
            if threads > 1
            else None
        )

    def run(
        self, work: Callable[[int, int], T], size: int, bounds: Sequence[int] | None = None
    ) -> list[T]:
        """Calls `work(first, last)` for ranges that cover 0 … size.

        Args:
            work: Releases the GIL where it takes long.
            size: Number of items.
            bounds: Inner bounds between the ranges, ascending; None for ranges of equal length.
        """
        if self._pool is None or size < 2 * _SMALLEST_RANGE:
            return [work(0, size)]
        if bounds is None:
            bounds = [size * i // self.threads for i in range(1, self.threads)]
        edges = [0, *bounds, size]
        futures = [self._pool.submit(work, first, last) for first, last in pairwise(edges[1:])]
        try:
            results = [work(edges[0], edges[1])]
        finally:
            # Never leave a thread at work on arrays that the caller believes to be its own again.
            rest = [future.exception() for future in futures]
        for error in rest:
            if error is not None:
                raise error
        return [*results, *(future.result() for future in futures)]
