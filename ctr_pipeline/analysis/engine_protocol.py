"""What an engine of the statistics does, whatever computes: DuckDB, MaxCompute or Spark.

An engine leaves the value counts of one column in a table and answers queries on it; what is asked,
in which order, and what becomes of the answers is the same for all (`collect`, `measure`).
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from ctr_pipeline.analysis.measure import MeasuredColumn
from ctr_pipeline.analysis.sql import Query
from ctr_pipeline.analysis.statistics_plan import ColumnPlan, StatisticsPlan
from ctr_pipeline.statistics import ColumnDrift

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class LabelCounts:
    """Training rows, those of label 1, and those of another label than 0 and 1."""

    num_rows: int = 0
    num_clicks: int = 0
    num_wrong: int = 0

    def __add__(self, other: "LabelCounts") -> "LabelCounts":
        return LabelCounts(
            self.num_rows + other.num_rows,
            self.num_clicks + other.num_clicks,
            self.num_wrong + other.num_wrong,
        )


class Session(Protocol):
    """Answers queries on one column at a time."""

    def value_counts(self, column: ColumnPlan) -> AbstractContextManager[None]:
        """While it lasts, queries read the value counts of this column."""

    def rows(
        self, query: Query, parameters: Mapping[str, float | str] | None = None
    ) -> list[tuple[Any, ...]]:
        """All rows of a small result."""

    def batches(self, query: Query) -> Iterator[pa.RecordBatch]:
        """The rows of a large result, a bounded number at a time."""

    def compare(self, measured: MeasuredColumn) -> Mapping[str, ColumnDrift]:
        """How far the column of other rows is from its value counts, by name of those rows.

        Empty where the engine knows of no other rows.
        """


class Engine(Protocol):
    """Computes on one set of training rows."""

    def count_labels(self, plan: StatisticsPlan) -> LabelCounts:
        """Counts the rows; comes before any `map`.

        Raises:
            DataError: The rows cannot be read.
            StatisticsError: The engine refuses or fails.
        """

    def map(
        self, work: Callable[[Session, ColumnPlan], _Result], columns: Sequence[ColumnPlan]
    ) -> Generator[_Result, None, None]:
        """Results of `work` in the order of the columns, several at a time.

        Raises:
            DataError: The rows cannot be read; no further column is begun then.
            StatisticsError: The engine refuses or fails; the same.
        """
