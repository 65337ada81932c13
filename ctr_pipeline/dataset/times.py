"""The time of each row, where rows are divided by time.

A time is a number, or a text in a format of `datetime_formats`. Both become float64, in which whole
seconds are exact, and only their order counts. A row without a time is a bad row.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ctr_pipeline.config.models import DataConfig
from ctr_pipeline.datetime_formats import EPOCH_DIVISORS, ISO
from ctr_pipeline.errors import DataError
from ctr_pipeline.kernels.text_buffers import text_buffers
from ctr_pipeline.kernels.time_parsing import NO_TIME, parse_seconds
from ctr_pipeline.specs.columns import ColumnType

NUMBER = "number"
"""The format of times that are numbers, greater ones later."""

_NUMBER_TEXT = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
MERGE_ABOVE = 1 << 20
_LEAST_TIMES = 5
"""Different times, below which a split of whole ones is far from its share."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class TimeColumn:
    """The column that tells the time of a row.

    Attributes:
        name: The column.
        format: `number`, or a format of `datetime_formats`.
    """

    name: str
    format: str


def find_time_column(
    data: DataConfig, head: pa.Table, column_types: Mapping[str, ColumnType]
) -> TimeColumn | None:
    """The column that rows are divided by; None where they are divided in another way.

    Without a format, times are numbers if the column is read as one, or if all of the first rows
    have one; else they are dates of ISO 8601.

    Args:
        data: The config's section.
        head: The first rows.
        column_types: How columns are read.

    Raises:
        DataError: The format is one of texts, and the column is a feature that is read as numbers.
    """
    name = data.split.column
    if data.split.by != "time" or name is None:
        return None
    is_number = column_types.get(name) is ColumnType.NUMBER
    format = data.split.time_format
    if format is None:
        first = _plain(head.column(name).drop_null())
        if pa.types.is_string(first.type):
            is_number |= len(first) > 0 and bool(pc.all(_is_number(first)).as_py())
        else:
            is_number |= not pa.types.is_temporal(first.type)
        return TimeColumn(name, NUMBER if is_number else ISO)
    if is_number and format not in EPOCH_DIVISORS:
        raise DataError(
            f"the column '{name}' is also a feature that is read as numbers, and '{format}' is a "
            "format of texts",
            place="data.split.time_format",
            remedy="Leave time_format out, or leave the column out of features",
        )
    return TimeColumn(name, NUMBER if is_number else format)


def find_unordered_time(head: pa.Table, formats: Mapping[str, str]) -> str | None:
    """The column of times by which rows are to be divided, as their own order is another one.

    None where the rows ascend by one of the columns, and where too few tell a time: a row without
    one cannot be divided. Of several columns the one with the most different times is meant: what
    happens has more of them than what was published or signed up for.

    Args:
        head: The first rows.
        formats: Columns of times, and the format of each among those of `datetime_formats`.
    """
    found: dict[str, int] = {}
    for name, format in formats.items():
        values = _plain(head.column(name)).combine_chunks()
        if pa.types.is_string(values.type):
            seconds = parse_seconds(text_buffers(values), format)
            values = pa.array(seconds, mask=seconds == NO_TIME)
        if values.null_count:
            continue
        if pa.types.is_temporal(values.type):
            values = values.cast(pa.int32() if pa.types.is_date32(values.type) else pa.int64())
        times = values.to_numpy(zero_copy_only=False)
        if (times[1:] >= times[:-1]).all():
            return None
        found[name] = len(np.unique(times))
    most = max(found, key=lambda name: found[name], default=None)
    return most if most is not None and found[most] >= _LEAST_TIMES else None


def _plain(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Texts of any kind as strings, and no dictionary."""
    kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    return values.cast(pa.string() if pa.types.is_large_string(kind) else kind)


def points_in_time(values: pa.Array, format: str) -> npt.NDArray[np.float64]:
    """float64 [N], later ones greater; NaN where a value is missing or tells no time.

    Args:
        values: string or float64 [N].
        format: As in `TimeColumn`.
    """
    if format == NUMBER:
        numbers = values
        if not pa.types.is_floating(values.type):
            texts = pc.utf8_trim_whitespace(values)
            texts = pc.if_else(_is_number(texts), texts, pa.scalar(None, pa.string()))
            numbers = texts.cast(pa.float64())
        found = pc.fill_null(numbers, float("nan")).to_numpy(zero_copy_only=False)
        return np.where(np.isfinite(found), found, np.nan)
    seconds = parse_seconds(text_buffers(values), format)
    return np.where(seconds == NO_TIME, np.nan, seconds)


def _is_number(texts: Any) -> Any:
    return pc.fill_null(
        pc.match_substring_regex(pc.utf8_trim_whitespace(texts), _NUMBER_TEXT), False
    )


def show_time(point: float, format: str) -> str:
    """A point in time for people: a date and a time of UTC, or the number that it is."""
    if format == NUMBER:
        return f"{point:.15g}"
    return (_EPOCH + timedelta(seconds=int(point))).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class TimeCounts:
    """How many rows there are of each time, in memory that grows with the different times."""

    _times: npt.NDArray[np.float64] = field(default_factory=lambda: np.empty(0, np.float64))
    _counts: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    _fresh: list[tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]] = field(
        default_factory=list
    )
    _num_fresh: int = 0

    def add(self, points: npt.NDArray[np.float64]) -> None:
        """Counts more rows."""
        times, counts = np.unique(points, return_counts=True)
        self._fresh.append((times, counts))
        self._num_fresh += len(times)
        if self._num_fresh > max(MERGE_ABOVE, len(self._times)):
            self._merge()

    def totals(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """The different times, ascending, and the rows of each."""
        self._merge()
        return self._times, self._counts

    def _merge(self) -> None:
        times = np.concatenate([self._times, *(times for times, _ in self._fresh)])
        counts = np.concatenate([self._counts, *(counts for _, counts in self._fresh)])
        self._times, places = np.unique(times, return_inverse=True)
        merged = np.zeros(len(self._times), np.int64)
        np.add.at(merged, places, counts)
        self._counts, self._fresh, self._num_fresh = merged, [], 0
