"""Statistics of ingested rows on this machine: parts are counted once, DuckDB does the rest."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr_pipeline.analysis.comparison import compare_column
from ctr_pipeline.analysis.duckdb_engine import DuckDbEngine, DuckDbSession
from ctr_pipeline.analysis.engine_protocol import LabelCounts, Session
from ctr_pipeline.analysis.measure import MeasuredColumn
from ctr_pipeline.analysis.part_counts import PartCounts, read_samples
from ctr_pipeline.analysis.small_counts import MOST_VALUES, SmallCounts, add_up
from ctr_pipeline.analysis.sql import OTHER_COUNTS, PART_COUNTS, Query
from ctr_pipeline.analysis.statistics_plan import ColumnPlan, StatisticsPlan
from ctr_pipeline.analysis.value_counts import drop_query, value_counts_query
from ctr_pipeline.dataset.parts import (
    ColumnCounts,
    column_names,
    count_values,
    counts_in_parts,
    read_batches,
)
from ctr_pipeline.dataset.weights import WeightSums
from ctr_pipeline.statistics import ColumnDrift

_Result = TypeVar("_Result")
_COUNTS = pa.schema([("value", pa.string()), ("num_rows", pa.int64()), ("num_clicks", pa.int64())])


class PartEngine:
    """Computes on the parts of the training rows; a context manager.

    Args:
        files: Parts of the training rows.
        spill_folder: Where intermediate results go that do not fit in memory.
        threads: Queries at a time.
        memory_limit_gb: Memory for intermediate results, in 10^9 bytes.
        others: Parts of other rows, by name, which columns are compared with.
    """

    def __init__(
        self,
        files: Sequence[Path],
        *,
        spill_folder: Path,
        threads: int,
        memory_limit_gb: float,
        others: Mapping[str, Sequence[Path]] | None = None,
    ) -> None:
        self._files = files
        self._label: str | None = None
        self._weight: str | None = None
        self._others = dict(others or {})
        self._counted: set[str] = set()
        self._labels: LabelCounts | None = None
        self._counts = PartCounts(spill_folder / "part_counts.arrow")
        self._other_counts = {
            name: PartCounts(spill_folder / f"other_counts_{number}.arrow")
            for number, name in enumerate(self._others)
        }
        self._database = DuckDbEngine(
            spill_folder=spill_folder, threads=threads, memory_limit_gb=memory_limit_gb
        )

    def count_labels(self, plan: StatisticsPlan) -> LabelCounts:
        """Reads the parts, all columns of one at once, and those of other rows.

        Columns that an earlier plan had are not read again.
        """
        self._require_columns(plan)
        columns = [one.column for one in plan.columns if one.column not in self._counted]
        if self._labels is not None and not columns:
            return self._labels
        for name, files in self._others.items():
            found = self._count(columns, plan.label, files, self._other_counts[name])
            if not found.num_rows:
                raise ValueError(f"there are no {name} rows")
        self._label, self._weight = plan.label, plan.weight
        self._labels = self._count(
            columns, plan.label, self._files, self._counts, weight=plan.weight
        )
        self._counted |= set(columns)
        return self._labels

    def _count(
        self,
        columns: Sequence[str],
        label: str,
        files: Sequence[Path],
        counts: PartCounts,
        *,
        weight: str | None = None,
    ) -> LabelCounts:
        names = [label, *columns, *([] if weight is None else [weight])]

        def count(_session: DuckDbSession, part: int) -> LabelCounts:
            labels = LabelCounts()
            for batch in read_batches([files[part]], names):
                values = pc.fill_null(batch.column(label), -1).to_numpy()
                is_click = values == 1
                num_clicks = int(np.count_nonzero(is_click))
                num_wrong = len(values) - num_clicks - int(np.count_nonzero(values == 0))
                weights = None if weight is None else batch.column(weight).to_numpy()
                sums = None if weights is None else WeightSums.of(weights, is_click)
                labels += LabelCounts(len(values), num_clicks, num_wrong, sums)
                for column in columns:
                    counts.add(column, part, count_values(batch, column, is_click, weights))
            return labels

        with closing(self._database.map(count, range(len(files)))) as results:
            found = list(results)
        weights = WeightSums.of_all(labels.weights for labels in found)
        return replace(sum(found, LabelCounts()), weights=weights)

    def map(
        self, work: Callable[[Session, ColumnPlan], _Result], columns: Sequence[ColumnPlan]
    ) -> Generator[_Result, None, None]:
        """As `Engine.map`, in as many threads as were asked for."""

        def work_on_counts(session: DuckDbSession, column: ColumnPlan) -> _Result:
            session_of_parts = _PartSession(
                session,
                self._counts,
                self._other_counts,
                weighted=self._weight is not None,
            )
            return work(session_of_parts, column)

        return self._database.map(work_on_counts, columns)

    def counts_of(self, column: str, split: str) -> Iterator[ColumnCounts]:
        """As `Engine.counts_of`."""
        if split == "train":
            return counts_in_parts(self._files, column, self._label, self._weight)
        return counts_in_parts(self._others[split], column, self._label)

    def _require_columns(self, plan: StatisticsPlan) -> None:
        if not self._files:
            raise ValueError("there are no training rows")
        names = column_names(self._files)
        weight = [] if plan.weight is None else [plan.weight]
        for column in (plan.label, *weight, *(column.column for column in plan.columns)):
            if column not in names:
                raise ValueError(
                    f"{self._files[0]}: column '{column}' is missing from the training rows"
                )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._database.__exit__(kind, error, trace)
        for counts in (self._counts, *self._other_counts.values()):
            counts.__exit__(kind, error, trace)


class _PartSession:
    """Asks the database, and where a column is small and `small_counts` has the answer, nobody."""

    def __init__(
        self,
        session: DuckDbSession,
        counts: PartCounts,
        other_counts: Mapping[str, PartCounts],
        *,
        weighted: bool,
    ) -> None:
        self._weighted = weighted
        self._session = session
        self._counts = counts
        self._other_counts = other_counts
        self._small: SmallCounts | None = None
        self._missing_table: ColumnPlan | None = None

    @contextmanager
    def value_counts(self, column: ColumnPlan) -> Iterator[None]:
        self._small = self._read_small(column)
        self._missing_table = column
        yield
        if self._missing_table is None:
            self._session.execute(drop_query())
        self._small = self._missing_table = None

    def rows(
        self, query: Query, parameters: Mapping[str, float | str] | None = None
    ) -> list[tuple[Any, ...]]:
        if self._small is not None and query.answer is not None:
            return query.answer(self._small, parameters or {})
        self._make_table()
        return self._session.rows(query, parameters)

    def batches(self, query: Query) -> Iterator[pa.RecordBatch]:
        if self._small is not None and query.answer is not None:
            rows = query.answer(self._small, {})
            if rows:
                arrays = map(pa.array, zip(*rows, strict=True), _COUNTS.types)
                yield pa.record_batch(list(arrays), schema=_COUNTS)
            return
        self._make_table()
        yield from self._session.batches(query)

    def compare(self, measured: MeasuredColumn) -> Mapping[str, ColumnDrift]:
        if not self._other_counts:
            return {}
        samples = list(self._other_counts.values())
        if self._small is None:
            rows = read_samples(samples, measured.statistics.column)
            self._session.offer(OTHER_COUNTS, rows)
        found = compare_column(self.rows, measured, len(samples))
        return dict(zip(self._other_counts, found, strict=True))

    def _read_small(self, column: ColumnPlan) -> SmallCounts | None:
        """The counts of a column of few values, all of which are whole; None of any other."""
        all_counts = (self._counts, *self._other_counts.values())
        num_values = sum(counts.num_values(column.column) for counts in all_counts)
        is_list = column.sequence is not None or column.vector is not None
        if self._weighted or is_list or num_values > MOST_VALUES:
            return None
        first, *others = (counts.read(column.column) for counts in all_counts)
        return add_up(
            column.column_type,
            first,
            tuple(add_up(column.column_type, other) for other in others),
        )

    def _make_table(self) -> None:
        """The table of value counts, once it is asked for."""
        if self._missing_table is not None:
            column = self._missing_table
            self._session.offer(PART_COUNTS, self._counts.read(column.column))
            made = value_counts_query(column.column_type, weighted=self._weighted)
            self._session.execute(made)
            self._missing_table = None
