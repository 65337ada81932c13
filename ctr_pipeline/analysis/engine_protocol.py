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
from ctr_pipeline.dataset.parts import ColumnCounts
from ctr_pipeline.dataset.weights import WeightSums
from ctr_pipeline.statistics import ColumnDrift

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class LabelCounts:
    """Rows by their labels.

    Attributes:
        num_rows: All rows.
        num_clicks: Rows of label 1.
        num_wrong: Rows that are bad, such as for a label that is not 0 or 1.
        weights: What good rows weigh; None without weights.
    """

    num_rows: int = 0
    num_clicks: int = 0
    num_wrong: int = 0
    weights: WeightSums | None = None

    @property
    def num_good(self) -> int:
        """Rows that are not bad."""
        return self.num_rows - self.num_wrong

    def __add__(self, other: "LabelCounts") -> "LabelCounts":
        return LabelCounts(
            self.num_rows + other.num_rows,
            self.num_clicks + other.num_clicks,
            self.num_wrong + other.num_wrong,
            WeightSums.of_all([self.weights, other.weights]),
        )


AcceptLabels = Callable[[Mapping[str, LabelCounts]], None]
"""Is given the labels of each split; raises if they are none to go on with."""


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
        """Counts the good training rows; comes before any `map`.

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

    def counts_of(self, column: str, split: str) -> Iterator[ColumnCounts]:
        """The values of a column of text in the rows of a split, in portions.

        A value may be in several portions. What rows weigh is told of the training rows.

        Raises:
            DataError: The rows cannot be read.
            StatisticsError: The engine refuses or fails.
        """
