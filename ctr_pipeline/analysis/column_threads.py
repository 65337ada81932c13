"""Several columns at a time, for engines whose queries wait for something else."""

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ctr_pipeline.analysis.engine_protocol import Session
from ctr_pipeline.analysis.statistics_plan import ColumnPlan

_Result = TypeVar("_Result")


def map_columns(
    work: Callable[[Session, ColumnPlan], _Result],
    columns: Sequence[ColumnPlan],
    *,
    open_session: Callable[[], Session],
    stop: Callable[[], None],
    at_a_time: int,
    name: str,
) -> Generator[_Result, None, None]:
    """As `Engine.map`.

    Args:
        work: On one column.
        columns: In this order the results come.
        open_session: Makes the session of a column.
        stop: Ends all queries that run, so that no thread goes on after a failure.
        at_a_time: Columns.
    """
    pool = ThreadPoolExecutor(at_a_time, thread_name_prefix=name)
    futures = [pool.submit(work, open_session(), column) for column in columns]
    try:
        for future in futures:
            yield future.result()
    except BaseException:
        stop()
        raise
    finally:
        for future in futures:
            future.cancel()
        pool.shutdown()
