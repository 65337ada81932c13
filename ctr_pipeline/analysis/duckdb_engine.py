"""DuckDB: the only module that talks to it.

Everything lives in memory up to the limit and spills into a folder beyond it.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self, TypeVar

import duckdb
import pyarrow as pa

from ctr_pipeline.analysis.sql import Query
from ctr_pipeline.errors import DataError, StatisticsError

ROWS_PER_BATCH = 65_536

_Result = TypeVar("_Result")
_Item = TypeVar("_Item")


class DuckDbSession:
    """One connection; its queries run in the thread that asks.

    Args:
        connection: The connection.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection

    def execute(self, query: Query) -> None:
        """Runs a query that has no result.

        Raises:
            DataError: The files cannot be read.
            StatisticsError: Memory and disk do not suffice.
        """
        self.rows(query)

    def rows(
        self, query: Query, parameters: Mapping[str, float | str] | None = None
    ) -> list[tuple[Any, ...]]:
        """All rows of a small result.

        Raises:
            DataError: The files cannot be read.
            StatisticsError: Memory and disk do not suffice.
        """
        text = query.render("duckdb")

        def fetch() -> list[tuple[Any, ...]]:
            found: list[tuple[Any, ...]] = self._connection.execute(
                text, dict(parameters or {})
            ).fetchall()
            return found

        return self._run(fetch)

    def batches(self, query: Query) -> Iterator[pa.RecordBatch]:
        """The rows of a large result, a bounded number at a time.

        Raises:
            DataError: The files cannot be read.
            StatisticsError: Memory and disk do not suffice.
        """
        text = query.render("duckdb")
        reader = self._run(lambda: self._connection.sql(text).to_arrow_reader(ROWS_PER_BATCH))
        while (batch := self._run(lambda: next(reader, None))) is not None:
            yield batch

    def offer(self, table: str, rows: pa.RecordBatchReader) -> None:
        """Lets the next query read these rows, once, as a table of this name."""
        self._connection.register(table, rows)

    def interrupt(self) -> None:
        """Ends the query that runs now, if there is one."""
        self._connection.interrupt()

    def _run(self, work: Callable[[], _Result]) -> _Result:
        try:
            return work()
        except (duckdb.Error, pa.ArrowException) as error:
            raise _explain(error) from error


class DuckDbEngine(DuckDbSession):
    """One in-memory database; a context manager.

    Args:
        spill_folder: Where intermediate results go that do not fit in memory.
        threads: Queries at a time.
        memory_limit_gb: Memory for intermediate results, in 10^9 bytes.
    """

    def __init__(self, *, spill_folder: Path, threads: int, memory_limit_gb: float) -> None:
        connection = duckdb.connect(
            ":memory:",
            config={
                # A query has one thread, the one that asks: queries of several columns at a time
                # use all cores, and threads that share each of them cost a fifth more.
                "threads": 1,
                "memory_limit": f"{max(1, round(memory_limit_gb * 1000))}MB",
                "temp_directory": str(spill_folder),
                "preserve_insertion_order": False,
            },
        )
        super().__init__(connection)
        self._threads = threads
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="duckdb")

    def map(
        self, work: Callable[[DuckDbSession, _Item], _Result], items: Sequence[_Item]
    ) -> Generator[_Result, None, None]:
        """Results of `work` in the order of the items, as many at a time as there are threads.

        Each thread has a session of its own, so temporary tables of one are unknown to the others.

        Raises:
            DataError: As a session's queries do; no further item is begun then.
            StatisticsError: The same.
        """
        sessions: SimpleQueue[DuckDbSession] = SimpleQueue()
        opened = [DuckDbSession(self._connection.cursor()) for _ in range(self._threads)]
        for session in opened:
            sessions.put(session)

        def work_in_session(item: _Item) -> _Result:
            session = sessions.get()
            try:
                return work(session, item)
            finally:
                sessions.put(session)

        pool = ThreadPoolExecutor(self._threads, thread_name_prefix="duckdb")
        futures = [pool.submit(work_in_session, item) for item in items]
        try:
            for future in futures:
                yield future.result()
        finally:
            for future in futures:
                future.cancel()
            _interrupt_until_done(opened, futures)
            pool.shutdown()

    def _run(self, work: Callable[[], _Result]) -> _Result:
        """The result of `work`; a signal ends it at once.

        DuckDB lets no signal handler run before a query is done, so it works in a thread of its
        own while this one waits for either.
        """
        future = self._worker.submit(super()._run, work)
        try:
            return future.result()
        finally:
            _interrupt_until_done([self], [future])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.shutdown()
        self._connection.close()


def _interrupt_until_done(
    sessions: Sequence[DuckDbSession], futures: Sequence[Future[Any]]
) -> None:
    """Ends running queries again and again: an interrupt before one has started is forgotten."""
    while not all(future.done() for future in futures):
        for session in sessions:
            session.interrupt()
        wait(futures, timeout=0.1)


def _explain(error: Exception) -> DataError | StatisticsError:
    # DuckDB's first line says what happened; the others quote the query or DuckDB's settings.
    reason = str(error).strip().partition("\n")[0]
    if isinstance(error, duckdb.OutOfMemoryException):
        return StatisticsError(
            f"the statistics do not fit in memory and on disk ({reason})",
            remedy="Raise runtime.memory_limit_gb, lower runtime.threads, or free disk space",
        )
    if isinstance(error, duckdb.IOException | duckdb.InvalidInputException):
        return DataError(
            f"the training rows cannot be read ({reason})",
            remedy="Run the pipeline again with a new output folder",
        )
    return StatisticsError(
        f"the statistics cannot be computed ({reason.rstrip(' :')})",
        remedy="If the rows that were read may be damaged, delete the folder 'cache' of the run "
        "folder and run again",
    )
