"""The drift of points in time, by the parts that a model reads, as no moment comes again."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ctr_pipeline.analysis.stability import drift_of_parts
from ctr_pipeline.dataset.parts import ColumnCounts
from ctr_pipeline.features import FeatureSpec
from ctr_pipeline.kernels.arrow_values import text_column
from ctr_pipeline.kernels.time_parsing import NO_TIME, parse_seconds
from ctr_pipeline.kernels.time_parts import part_ids
from ctr_pipeline.statistics import ColumnDrift, ColumnStatistics, RowsDrift, Statistics
from ctr_pipeline.transforms.base import TimeRead
from ctr_pipeline.transforms.datetime import PART_SIZES

SplitCountsOf = Callable[[str, str], Iterable[ColumnCounts]]
"""Gives the values of a column in a split, in portions."""

_SECONDS_OF_CYCLES: dict[str, int] = {
    "minute": 3_600,
    "hour": 86_400,
    "hour_of_week": 7 * 86_400,
    "weekday": 7 * 86_400,
    "is_weekend": 7 * 86_400,
    "day": 31 * 86_400,
    "month": 366 * 86_400,
}
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def times_read(features: Sequence[FeatureSpec]) -> dict[str, TimeRead]:
    """How features read each column of points in time, by its name."""
    found: dict[str, TimeRead] = {}
    for spec in features:
        for chain in (spec.number, spec.id):
            read = chain[0].time_read if chain else None
            if read is not None and (read.parts or spec.column not in found):
                found[spec.column] = read
    return found


def with_time_drift(
    statistics: Statistics,
    times: Mapping[str, TimeRead],
    counts_of: SplitCountsOf,
) -> Statistics:
    """Replaces the drift of points in time by that of their parts.

    The part with the largest drift counts, of those whose whole cycle (a day for hours, a week for
    weekdays) lies in both sets of rows: rows of one day say nothing about weekdays.

    Args:
        statistics: Statistics with the drift of the other rows.
        times: Columns of points in time.
        counts_of: Gives the values of a column of a split, of `train` or another.
    """
    compared = list(statistics.drift)
    if not times or not compared:
        return statistics
    drift = {name: dict(statistics.drift[name].columns) for name in compared}
    for column, read in times.items():
        if column not in statistics.columns or any(column not in drift[name] for name in compared):
            continue
        old = _count(counts_of(column, "train"), read)
        for name in compared:
            new = _count(counts_of(column, name), read)
            drift[name][column] = _drift_of(statistics.columns[column], read, old, new)
    replaced = {
        name: RowsDrift(
            num_rows=statistics.drift[name].num_rows,
            columns=dict(sorted(columns.items(), key=lambda item: -item[1].psi)),
        )
        for name, columns in drift.items()
    }
    return statistics.model_copy(update={"drift": {**statistics.drift, **replaced}})


@dataclass(frozen=True)
class _TimeCounts:
    """Rows by part, rows without a time last, and the first and last time; None without any."""

    of_parts: Mapping[str, NDArray[np.int64]]
    num_rows: int
    num_missing: int
    first: int | None
    last: int | None

    def covers(self, part: str) -> bool:
        if self.first is None or self.last is None:
            return False
        return self.last - self.first >= 0.9 * _SECONDS_OF_CYCLES[part]


def _count(portions: Iterable[ColumnCounts], read: TimeRead) -> _TimeCounts:
    of_parts = {part: np.zeros(PART_SIZES[part] + 1, np.int64) for part in read.parts}
    num_rows = num_missing = 0
    ends: list[int] = []
    for portion in portions:
        seconds = parse_seconds(text_column(portion.values, column="values").values, read.format)
        counts = portion.num_rows
        is_known = (seconds != NO_TIME) & (counts > 0)
        num_rows += int(counts.sum())
        num_missing += int(counts[seconds == NO_TIME].sum())
        if is_known.any():
            ends += [int(seconds[is_known].min()), int(seconds[is_known].max())]
        for part, found in of_parts.items():
            ids = part_ids(seconds, part, read.utc_offset_minutes, missing_id=PART_SIZES[part])
            np.add.at(found, ids, counts)
    return _TimeCounts(
        of_parts, num_rows, num_missing, min(ends, default=None), max(ends, default=None)
    )


def _drift_of(
    statistics: ColumnStatistics, read: TimeRead, old: _TimeCounts, new: _TimeCounts
) -> ColumnDrift:
    candidates = [
        drift_of_parts(
            statistics,
            [_name_of(part, place) for place in range(PART_SIZES[part])],
            old.of_parts[part].tolist(),
            new.of_parts[part].tolist(),
        )
        for part in read.parts
        if old.covers(part) and new.covers(part)
    ]
    if not candidates:
        present = [
            [counts.num_rows - counts.num_missing, counts.num_missing] for counts in (old, new)
        ]
        return drift_of_parts(statistics, ["any time"], *present)
    return max(candidates, key=lambda one: one.psi - one.noise)


def _name_of(part: str, place: int) -> str:
    if part == "weekday":
        return _WEEKDAYS[place]
    if part == "hour_of_week":
        return f"{_WEEKDAYS[place // 24]}, hour {place % 24}"
    if part == "is_weekend":
        return "weekend" if place else "working day"
    return f"{part} {place + 1 if part in {'day', 'month'} else place}"
