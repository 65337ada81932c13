"""Work by several threads whose results come in the order of what is worked on."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Executor, Future
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def map_in_order(
    pool: Executor, work: Callable[[_Item], _Result], items: Iterable[_Item], *, ahead: int
) -> Generator[_Result, None, None]:
    """The result of `work` on each item, in order.

    Items are drawn and handed to the pool while earlier ones are worked on, so that memory holds
    `ahead` + 1 of them at most. Whoever stops before the end closes the generator: work that has
    not begun is then cancelled.

    Args:
        pool: Works on them.
        work: Called with each item, in a thread of the pool.
        items: Drawn in the calling thread.
        ahead: Items under way beside the one whose result is waited for.

    Raises:
        Exception: What `work` or `items` raise, once the results before it are given out.
    """
    pending: deque[Future[_Result]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(work, item))
            if len(pending) > ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()
