"""DuckDB: the only module that talks to a database.

Everything lives in memory up to the limit and spills into a folder beyond it.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import duckdb
import pyarrow as pa

from ctr_pipeline.analysis.sql import Query, everything_query, parquet_source
from ctr_pipeline.errors import DataError, StatisticsError

ROWS_PER_BATCH = 65_536

_Result = TypeVar("_Result")


class DuckDbEngine:
    """One in-memory database over the Parquet files of the training rows; a context manager.

    Args:
        files: Parquet files of equal columns.
        spill_folder: Where intermediate results go that do not fit in memory.
        threads: Threads of queries.
        memory_limit_gb: Memory for intermediate results, in 10^9 bytes.
    """

    def __init__(
        self, files: Sequence[Path], *, spill_folder: Path, threads: int, memory_limit_gb: float
    ) -> None:
        self.source = parquet_source([_escape_glob(str(file)) for file in files])
        self._connection = duckdb.connect(
            ":memory:",
            config={
                "threads": threads,
                "memory_limit": f"{max(1, round(memory_limit_gb * 1000))}MB",
                "temp_directory": str(spill_folder),
                "preserve_insertion_order": False,
            },
        )
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="duckdb")
        # Files are opened once for each column; their footers need not be read again.
        self._connection.execute("SET parquet_metadata_cache = true")

    def column_names(self) -> tuple[str, ...]:
        """The names that DuckDB gives the columns, in the order of the files.

        DuckDB's names ignore case: of `Price` and `price` it renames the second.

        Raises:
            DataError: The files cannot be read.
        """
        text = everything_query(self.source).render("duckdb")
        names: list[str] = self._interruptibly(lambda: self._connection.sql(text).columns)
        return tuple(names)

    def execute(self, query: Query) -> None:
        """Runs a query that has no result.

        Raises:
            DataError: The files cannot be read.
            StatisticsError: Memory and disk do not suffice.
        """
        self.rows(query)

    def rows(
        self, query: Query, parameters: Mapping[str, float] | None = None
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

        return self._interruptibly(fetch)

    def batches(self, query: Query) -> Iterator[pa.RecordBatch]:
        """The rows of a large result, a bounded number at a time.

        Raises:
            DataError: The files cannot be read.
            StatisticsError: Memory and disk do not suffice.
        """
        text = query.render("duckdb")
        reader = self._interruptibly(
            lambda: self._connection.sql(text).to_arrow_reader(ROWS_PER_BATCH)
        )
        while (batch := self._interruptibly(lambda: next(reader, None))) is not None:
            yield batch

    def _interruptibly(self, work: Callable[[], _Result]) -> _Result:
        """The result of `work`; a signal ends it at once.

        DuckDB lets no signal handler run before a query is done, so it works in a thread of its
        own while this one waits for either.
        """
        future = self._worker.submit(work)
        try:
            return future.result()
        except (duckdb.Error, pa.ArrowException) as error:
            raise _explain(error) from error
        finally:
            # Again and again, since an interrupt before the query has started is forgotten.
            while not future.done():
                self._connection.interrupt()
                wait([future], timeout=0.1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._worker.shutdown()
        self._connection.close()


def _escape_glob(path: str) -> str:
    """A path that names itself alone where DuckDB expects a pattern."""
    return re.sub(r"([*?\[])", r"[\1]", path)


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
    return StatisticsError(f"the statistics cannot be computed ({reason})")
