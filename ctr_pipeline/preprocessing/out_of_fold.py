"""Training rows by `target_encode`, none of which sees its own label.

A row of fold k is encoded from the rows of the other folds, where the fold is a hash of the row's
number; or from the rows before it. The base rate alone is that of all rows: one number for all of
them, of which nothing about a single label can be learned.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ctr_pipeline.kernels.arrow_values import TextColumn, text_column
from ctr_pipeline.kernels.compilation import kernel
from ctr_pipeline.preprocessing.plan import PreprocessingPlan
from ctr_pipeline.splitmix import GOLDEN, mix
from ctr_pipeline.transforms import AnyTextStep
from ctr_pipeline.transforms.shared.value_tables import ValueTable
from ctr_pipeline.transforms.target_encode import TargetEncodeStep

RowNumbers = Mapping[tuple[str, AnyTextStep], np.ndarray]
"""The number of each row, float64 [N], by column and the step that begins a chain."""


class Counts(NamedTuple):
    """Rows and those of label 1; a named tuple, since Numba takes those.

    Attributes:
        num_rows: Whole numbers; with weights, float64: what the rows weigh.
        num_clicks: int64; the same.
    """

    num_rows: np.ndarray
    num_clicks: np.ndarray


class OutOfFold:
    """The encodings of one plan's training rows.

    Args:
        plan: The plan; its chains may begin with `target_encode`.
        folder: The run folder.

    Raises:
        PreprocessingError: A table of counts is missing or not the one the plan was fitted with.
    """

    def __init__(self, plan: PreprocessingPlan, folder: Path) -> None:
        self._columns: dict[tuple[str, AnyTextStep], _FoldColumn | _TimeColumn] = {
            (name, step): _TimeColumn(name, step, folder)
            if step.folds is None
            else _FoldColumn(name, step, step.folds, folder)
            for name, step in plan.text_steps
            if isinstance(step, TargetEncodeStep)
        }

    @property
    def columns(self) -> list[str]:
        """Columns that the batches must have."""
        weights = [
            step.weights.column
            for _, step in self._columns
            if isinstance(step, TargetEncodeStep) and step.weights is not None
        ]
        return list(dict.fromkeys([*(column for column, _ in self._columns), *weights]))

    @property
    def needs_counting(self) -> bool:
        """Whether all training rows must be counted before any is encoded."""
        return any(isinstance(column, _FoldColumn) for column in self._columns.values())

    def count(self, batches: Iterable[pa.RecordBatch], label: str) -> None:
        """Counts all training rows, in their order."""
        first_row = 0
        for batch in batches:
            labels = _labels(batch, label)
            for column in self._columns.values():
                if isinstance(column, _FoldColumn):
                    column.count(batch, labels, first_row)
            first_row += batch.num_rows

    def encoder(self, label: str) -> Callable[[pa.RecordBatch], RowNumbers]:
        """A function to be called with all training rows once, in their order.

        It gives float64 [N] for each column and step, for `ColumnEncoder.encode`.
        """
        first_row = 0

        def encode(batch: pa.RecordBatch) -> RowNumbers:
            nonlocal first_row
            labels = _labels(batch, label)
            numbers = {
                key: column.encode(batch, labels, first_row)
                for key, column in self._columns.items()
            }
            first_row += batch.num_rows
            return numbers

        return encode


class _FoldColumn:
    """One column, by folds."""

    def __init__(self, name: str, step: TargetEncodeStep, num_folds: int, folder: Path) -> None:
        self._name, self._step, self._num_folds = name, step, num_folds
        self._table = step.open_table(folder)
        # Axes: K folds, V values and those of other and missing texts.
        shape = num_folds, len(self._table.numbers)
        # Rows of one fold fit into 32 bits.
        kind = np.int32 if step.weights is None else np.float64
        self._counts_KV = Counts(np.zeros(shape, kind), np.zeros(shape, kind))

    def count(self, batch: pa.RecordBatch, labels: np.ndarray, first_row: int) -> None:
        ids, folds = self._ids_and_folds(batch, first_row)
        sizes = _sizes_of_rows(batch, self._step, len(ids))
        _count_folds(ids, folds, sizes, sizes * labels, self._counts_KV)

    def encode(self, batch: pa.RecordBatch, _labels: np.ndarray, first_row: int) -> np.ndarray:
        ids, folds = self._ids_and_folds(batch, first_row)
        others = _counts(np.empty, len(ids), self._step)
        _count_other_folds(ids, folds, self._counts_KV, others)
        return _rates(self._table, self._step, ids, others)

    def _ids_and_folds(
        self, batch: pa.RecordBatch, first_row: int
    ) -> tuple[np.ndarray, np.ndarray]:
        rows = np.arange(first_row, first_row + batch.num_rows, dtype=np.uint64)
        folds = (mix(rows * GOLDEN) % np.uint64(self._num_folds)).astype(np.int64)
        return _ids(self._table, batch, self._name), folds


class _TimeColumn:
    """One column, by the rows before."""

    def __init__(self, name: str, step: TargetEncodeStep, folder: Path) -> None:
        self._name, self._step = name, step
        self._table = step.open_table(folder)
        size = len(self._table.numbers)
        self._counts_V = _counts(np.zeros, size, step)

    def encode(self, batch: pa.RecordBatch, labels: np.ndarray, _first_row: int) -> np.ndarray:
        ids = _ids(self._table, batch, self._name)
        before = _counts(np.empty, len(ids), self._step)
        sizes = _sizes_of_rows(batch, self._step, len(ids))
        _count_before(ids, sizes, sizes * labels, self._counts_V, before)
        return _rates(self._table, self._step, ids, before)


def _rates(
    table: ValueTable, step: TargetEncodeStep, ids: np.ndarray, counts: Counts
) -> np.ndarray:
    # Rarer texts than min_count, and missing ones if those are as rare, have the base rate.
    is_other = ids == len(table.values)
    if step.missing_rows < step.min_count:
        is_other |= ids == len(table.values) + 1
    rates = step.smoothed_rates(counts.num_clicks, counts.num_rows)
    return np.where(is_other, step.base, rates)


def _ids(table: ValueTable, batch: pa.RecordBatch, name: str) -> np.ndarray:
    text = text_column(batch.column(name), column=name)
    ids = table.ids_of(TextColumn(text.values, text.num_values, None))
    spread: np.ndarray = ids if text.indices is None else ids[text.indices]
    return spread


def _labels(batch: pa.RecordBatch, label: str) -> np.ndarray:
    return np.asarray(batch.column(label).to_numpy(zero_copy_only=False), np.int64)


def _counts(make: Callable[..., np.ndarray], size: int, step: TargetEncodeStep) -> Counts:
    kind = np.int64 if step.weights is None else np.float64
    return Counts(make(size, kind), make(size, kind))


def _sizes_of_rows(batch: pa.RecordBatch, step: TargetEncodeStep, num_rows: int) -> np.ndarray:
    """How much each row counts: 1, int64 [N], or its weight, float64 [N]."""
    if step.weights is None:
        return np.ones(num_rows, np.int64)
    weights: np.ndarray = batch.column(step.weights.column).to_numpy(zero_copy_only=False)
    return weights


@kernel
def _count_folds(
    ids: np.ndarray, folds: np.ndarray, sizes: np.ndarray, clicks: np.ndarray, counts_KV: Counts
) -> None:
    for n in range(len(ids)):
        counts_KV.num_rows[folds[n], ids[n]] += sizes[n]
        counts_KV.num_clicks[folds[n], ids[n]] += clicks[n]


@kernel
def _count_other_folds(
    ids: np.ndarray, folds: np.ndarray, counts_KV: Counts, others: Counts
) -> None:
    for n in range(len(ids)):
        num_rows = num_clicks = 0
        for fold in range(len(counts_KV.num_rows)):
            if fold != folds[n]:
                num_rows += counts_KV.num_rows[fold, ids[n]]
                num_clicks += counts_KV.num_clicks[fold, ids[n]]
        others.num_rows[n] = num_rows
        others.num_clicks[n] = num_clicks


@kernel
def _count_before(
    ids: np.ndarray, sizes: np.ndarray, clicks: np.ndarray, counts_V: Counts, before: Counts
) -> None:
    for n in range(len(ids)):
        value = ids[n]
        before.num_rows[n] = counts_V.num_rows[value]
        before.num_clicks[n] = counts_V.num_clicks[value]
        counts_V.num_rows[value] += sizes[n]
        counts_V.num_clicks[value] += clicks[n]
