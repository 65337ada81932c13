"""The statistics artefact: what is known about the training rows, on disk and in memory.

`analysis` computes it by SQL; `preprocessing`, `pipeline` and `reporting` read it. A statistic that
is missing is an error, never a default.

Semantics: NULL, an empty text and NaN are *missing* and counted in `num_missing`; every other
statistic is over the values present. Infinite numbers are counted in `num_infinite` and left out of
mean, deviation, skew, minimum, maximum, quantiles and histogram. Deviation and skew are those of
the population (divide by n). Where rows have weights, mean, deviation and skew weigh them; all else
counts rows: minimum, maximum, quantiles, frequencies, distinct values. Quantile i/n is the smallest
value that at least that share of the values does not exceed (numpy's `inverted_cdf`). Ties between
equally frequent values are broken by the value itself: texts in ascending order of their UTF-8
bytes, numbers ascending.

The same rows have the same statistics to the bit on this machine, whatever the number of threads.
Other engines give the same counts, and numbers within a relative 1e-9; a mean of values that cancel
is that near by the size of the largest value.
"""

import json
import math
import zlib
from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict
from pydantic_core import to_json

from ctr_pipeline.durable import write_text
from ctr_pipeline.errors import StatisticsError
from ctr_pipeline.specs.columns import ColumnType

T = TypeVar("T")

STATISTICS_VERSION = 3
CONCEALED = "(concealed)"
"""What stands in the place of a value of a sensitive column."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


LONGEST_KEPT_VALUE = 1000
"""Characters of a value that are kept for people to see; its rows are counted by all of them."""


def _short(value: str) -> str:
    return value if len(value) <= LONGEST_KEPT_VALUE else f"{value[:LONGEST_KEPT_VALUE]}…"


class ValueCount(_Frozen):
    """One value of a column, how often it occurs, and the click rate of its rows."""

    value: str
    count: int
    label_rate: float


class HistogramBin(_Frozen):
    """Rows whose value lies in [left, right), the last bin closed; and their click rate."""

    left: float
    right: float
    count: int
    label_rate: float | None


class Moments(_Frozen):
    """Moments of a column, or of a column after a chain of transforms.

    Attributes:
        count: Finite values present.
        mean: None if count is 0, as are all others.
        minimum: Smallest finite value.
        maximum: Largest finite value.
        weight: What the rows with finite values weigh, if mean and deviation weigh rows; 0: those
            weigh nothing, and all count alike. None: rows have no weights.
    """

    count: int
    mean: float | None
    standard_deviation: float | None
    minimum: float | None
    maximum: float | None
    weight: float | None = None


class LabelInformation(_Frozen):
    """What a column alone says about the click, judged on rows left out (`analysis.information`).

    Attributes:
        information_value: At least 0, without bound; 0.02 is hardly anything, 0.1 some, 0.3 much.
        mutual_information: Nats a row, from 0 to the entropy of the label.
        smoothing: Rows of the overall click rate that each group's rate was mixed with; None if no
            strength made the column say anything.
        num_groups: Values of a text column, intervals of a number column; missing is one more.
    """

    information_value: float
    mutual_information: float
    smoothing: float | None
    num_groups: int

    def share_explained(self, label_rate: float) -> float:
        """Share of the entropy of a label with this rate that the column explains, 0 to 1."""
        parts = (label_rate, 1.0 - label_rate)
        entropy = -sum(part * math.log(part) for part in parts if part > 0.0)
        return self.mutual_information / entropy if entropy else 0.0


class LengthStatistics(_Frozen):
    """How many elements the rows of a sequence have, rows without any among them.

    Attributes:
        mean: Elements a row.
        median: Half of the rows have no more.
        most_of_95_percent: 95 % of the rows have no more.
        maximum: The longest row's.
        num_truncated: Rows of which not all elements count, being more than `max_length`.
    """

    num_elements: int
    mean: float
    median: int
    most_of_95_percent: int
    maximum: int
    num_truncated: int

    @classmethod
    def of(cls, rows_by_length: Mapping[int, int], num_truncated: int) -> "LengthStatistics":
        """Everything but what `max_length` decides, from the rows of each length."""
        lengths = sorted(rows_by_length.items())
        num_rows = sum(rows for _, rows in lengths)
        num_elements = sum(length * rows for length, rows in lengths)

        def most_of(share: float) -> int:
            upto = 0
            for length, rows in lengths:
                upto += rows
                if upto >= share * num_rows:
                    return length
            return 0

        return cls(
            num_elements=num_elements,
            mean=num_elements / max(num_rows, 1),
            median=most_of(0.5),
            most_of_95_percent=most_of(0.95),
            maximum=max(rows_by_length, default=0),
            num_truncated=num_truncated,
        )


class ColumnStatistics(_Frozen):
    """Everything known about one column of the training rows.

    Attributes:
        column: The column's name.
        column_type: How it was read.
        count: Rows, missing ones included.
        num_missing: NULL, empty text or NaN.
        num_infinite: Infinite values of a number column.
        num_distinct: Distinct values present, exact.
        moments: Moments of a number column.
        summary: By name, what `summary_statistics` says of a column; of lists of numbers, all
            numbers together.
        quantiles: The 5, 25, 50, 75 and 95 % quantiles of a number column, by "0.05" and so on.
        missing_label_rate: Click rate of the rows without a value; None if there are none.
        top_values: The most frequent values, most frequent first.
        histogram: Histogram of a number column.
        label_information: None if the rows have one label only.
        lengths: Lengths of sequences; their missing rows are those without an element, and distinct
            and frequent values are those of elements, counted as often as they occur, also where
            rows are too long for all of them to count.
        vector_length: Numbers per row of vectors. Missing rows are those without a vector; moments,
            quantiles, histogram and distinct values are of all numbers together.
    """

    column: str
    column_type: ColumnType
    count: int
    num_missing: int
    num_infinite: int = 0
    num_distinct: int
    moments: Moments | None = None
    summary: dict[str, float | int] = {}
    quantiles: dict[str, float] = {}
    missing_label_rate: float | None = None
    top_values: tuple[ValueCount, ...] = ()
    histogram: tuple[HistogramBin, ...] = ()
    label_information: LabelInformation | None = None
    lengths: LengthStatistics | None = None
    vector_length: int | None = None

    def with_short_values(self) -> "ColumnStatistics":
        """The same with no more of each value than people want to see."""
        top = tuple(one.model_copy(update={"value": _short(one.value)}) for one in self.top_values)
        return self.model_copy(update={"top_values": top})

    @property
    def is_missing(self) -> bool:
        """Whether no row has a value."""
        return self.num_missing == self.count

    @property
    def num_values(self) -> int:
        """Occurrences of values: rows that have one, or elements of all rows."""
        if self.lengths is not None:
            return self.lengths.num_elements
        return (self.count - self.num_missing) * (self.vector_length or 1)


class DriftCell(_Frozen):
    """Rows that are alike in a column, among the training rows and among others.

    Attributes:
        kind: `interval` of numbers, one `value`, the `rest` of the values, or `missing`.
        left: The left end, outside the interval; None if it has none.
        right: The right end, inside the interval; None if it has none.
        old_count: Training rows.
        new_count: Other rows.
    """

    kind: Literal["interval", "value", "rest", "missing"]
    value: str | None = None
    left: float | None = None
    right: float | None = None
    old_count: int
    new_count: int


class DriftLevel(StrEnum):
    """What the difference between training rows and others calls for."""

    STABLE = "stable"
    MODERATE = "moderate"
    LARGE = "large"


MODERATE_PSI = 0.1
LARGE_PSI = 0.25
"""Below the first nothing has changed, from the second on the model should be looked at (Siddiqi,
Credit Risk Scorecards (2006), chapter 9)."""
UNEXPECTED_UNSEEN = 0.1
"""More rows with values that training never saw than its own rare values foretell, as a share."""


class ColumnDrift(_Frozen):
    """How far a column of other rows is from that of the training rows; see `analysis.stability`.

    Attributes:
        column: The column's name.
        column_type: How it was read.
        psi: Population stability index over the cells.
        noise: If nothing changed, `psi` stays below this in 99 of 100 cases.
        old_missing_rate: Share of the training rows.
        new_missing_rate: Share of the other rows.
        unseen_rate: Share of the other rows with a text that training never saw.
        expected_unseen_rate: `unseen_rate` if nothing changed.
        cells: With rows on either side.
    """

    column: str
    column_type: ColumnType
    psi: float
    noise: float
    old_missing_rate: float
    new_missing_rate: float
    unseen_rate: float | None = None
    expected_unseen_rate: float | None = None
    cells: tuple[DriftCell, ...]

    def with_short_values(self) -> "ColumnDrift":
        """The same with no more of each value than people want to see."""
        cells = tuple(
            cell if cell.value is None else cell.model_copy(update={"value": _short(cell.value)})
            for cell in self.cells
        )
        return self.model_copy(update={"cells": cells})

    @property
    def level(self) -> DriftLevel:
        """What the difference calls for; one that sampling explains calls for nothing."""
        if self.exceeds(LARGE_PSI):
            return DriftLevel.LARGE
        if self.exceeds(MODERATE_PSI) or self.has_unexpected_values:
            return DriftLevel.MODERATE
        return DriftLevel.STABLE

    def exceeds(self, psi: float) -> bool:
        """Whether the index is above `psi`, and above what sampling explains."""
        return self.psi > max(psi, self.noise)

    @property
    def has_unexpected_values(self) -> bool:
        """Whether far more rows than expected have values that training never saw."""
        if self.unseen_rate is None or self.expected_unseen_rate is None:
            return False
        return self.unseen_rate - self.expected_unseen_rate > UNEXPECTED_UNSEEN


class RowsDrift(_Frozen):
    """How far other rows are from the training rows.

    Attributes:
        num_rows: Other rows.
        columns: By column name, the largest difference first.
    """

    num_rows: int
    columns: dict[str, ColumnDrift]

    def without_cells(self, names: Collection[str]) -> "RowsDrift":
        """The same; of some columns nothing tells in which values they differ."""
        columns = {
            name: one.model_copy(update={"cells": ()}) if name in names else one
            for name, one in self.columns.items()
        }
        return self.model_copy(update={"columns": columns})

    def to_metrics(self) -> dict[str, Any]:
        """Figures without any value of the data, for `metrics.json` and programs."""
        return {
            "num_rows": self.num_rows,
            "num_drifted": sum(one.level is not DriftLevel.STABLE for one in self.columns.values()),
            "columns": [
                {"level": one.level.value, **one.model_dump(mode="json", exclude={"cells"})}
                for one in self.columns.values()
            ],
        }


class VocabularyStatistics(_Frozen):
    """One vocabulary: where its values are and what was left out.

    Attributes:
        column: The column's name.
        min_count: Values rarer than this were left out.
        max_size: Bound on the size, or None.
        file: Path below the run folder, a Parquet file of (value: string, count: int64,
            label_sum: int64), most frequent first, ties by ascending UTF-8 bytes.
        size: Values kept.
        num_excluded_values: Distinct values left out.
        num_excluded_rows: Rows that hold a value left out; of a sequence, elements left out.
        columns: The columns whose values were counted together, `column` among them, where there
            are several; None: `column` alone. The values left out are those of `column`.
    """

    column: str
    min_count: int
    max_size: int | None
    file: str
    size: int
    num_excluded_values: int
    num_excluded_rows: int
    columns: tuple[str, ...] | None = None


class ValueWeights(_Frozen):
    """What the rows of a column weigh whose values have a table.

    Attributes:
        column: The column of weights.
        total: All rows.
        clicks: Rows of label 1.
        missing: Rows without a value.
        missing_clicks: Rows of label 1 without a value.
    """

    column: str
    total: float
    clicks: float
    missing: float
    missing_clicks: float


class Statistics(_Frozen):
    """All statistics of one set of training rows.

    Attributes:
        fingerprint: Fingerprint of data and plan; equal fingerprints mean equal statistics.
        num_rows: Training rows.
        label_rate: Mean of the label, all rows alike.
        weighted_label_rate: Mean of the label by the rows' weights; None without weights.
        columns: By column name.
        derived_moments: Moments of transformed columns, by `expression_key(column, chain)`.
        boundaries: Cut points of `bucketize: {quantiles: n}`: by expression key of the chain before
            it, then by n as text; unique, ascending and above the smallest value.
        vocabularies: By column name.
        value_tables: By column name, values with their counts for encodings by count or click rate;
            with weights, the files say what the rows of each value weigh as well.
        value_weights: By column name, for those tables; None without weights.
        drift: Drift of other rows that were compared, by their name, such as `valid` and `test`.
        notes: Sentences for the report.
        sensitive: Columns whose values are concealed.
    """

    version: int = STATISTICS_VERSION
    fingerprint: str
    num_rows: int
    label_rate: float
    weighted_label_rate: float | None = None
    columns: dict[str, ColumnStatistics]
    derived_moments: dict[str, Moments] = {}
    boundaries: dict[str, dict[str, tuple[float, ...]]] = {}
    vocabularies: dict[str, VocabularyStatistics] = {}
    value_tables: dict[str, VocabularyStatistics] = {}
    value_weights: dict[str, ValueWeights] | None = None
    drift: dict[str, RowsDrift] = {}
    notes: tuple[str, ...] = ()
    sensitive: tuple[str, ...] = ()

    @property
    def base_rate(self) -> float:
        """What a model predicts that knows nothing of a row; weighted if rows have weights."""
        return self.label_rate if self.weighted_label_rate is None else self.weighted_label_rate

    def column(self, name: str) -> ColumnStatistics:
        """The statistics of one column.

        Raises:
            ValueError: There are none for it: they are those of other features.
        """
        if name not in self.columns:
            raise ValueError(f"no statistics for column '{name}'")
        return self.columns[name]

    def concealing(self, names: Iterable[str]) -> "Statistics":
        """The same without the frequent values of some columns; how frequent they are stays.

        Extremes and quantiles stay as well: transforms of numbers rest on them.
        """
        sensitive = tuple(sorted(names))
        columns = dict(self.columns)
        for name in sensitive:
            tops = (top.model_copy(update={"value": CONCEALED}) for top in columns[name].top_values)
            columns[name] = columns[name].model_copy(update={"top_values": tuple(tops)})
        drift = {rows: found.without_cells(sensitive) for rows, found in self.drift.items()}
        return self.model_copy(update={"columns": columns, "drift": drift, "sensitive": sensitive})

    def shown(self) -> "Statistics":
        """The same for a terminal or a program: of sensitive columns counts and rates alone."""
        columns = dict(self.columns)
        nothing: dict[str, Any] = {"quantiles": {}, "histogram": (), "moments": None}
        for name in self.sensitive:
            summary = columns[name].summary.items()
            counts = {key: value for key, value in summary if isinstance(value, int)}
            columns[name] = columns[name].model_copy(update=nothing | {"summary": counts})
        return self.model_copy(
            update={
                "columns": columns,
                "derived_moments": self._of_others(self.derived_moments),
                "boundaries": self._of_others(self.boundaries),
            }
        )

    def _of_others(self, by_expression: Mapping[str, T]) -> dict[str, T]:
        """What is not of sensitive columns; see `expression_key`."""
        return {
            key: value
            for key, value in by_expression.items()
            if not any(key == name or key.startswith(f"{name} | ") for name in self.sensitive)
        }


def save_statistics(path: Path, statistics: Statistics) -> None:
    """Writes `statistics.json`, with a checksum: a model rests on it, so an edit must show.

    Raises:
        RunFolderError: The disk is full or the folder cannot be written.
    """
    values = statistics.model_dump(mode="json")
    content = values | {"crc32": _crc32_of(statistics)}
    # Not json.dumps, which indents in Python: a tenth of a second a hundred columns.
    text = to_json(content, indent=2, inf_nan_mode="constants").decode("utf-8")
    write_text(path, text + "\n")


def load_statistics(path: Path) -> Statistics:
    """Reads `statistics.json`.

    Raises:
        StatisticsError: The file is missing, damaged, edited or of another version.
    """
    remedy = "Run 'ctrpipe analyze', which computes it again"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        version = content.pop("version")
        crc32 = content.pop("crc32", None)
    except OSError as error:
        raise StatisticsError(
            f"cannot be read ({error.strerror})", place=str(path), remedy=remedy
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StatisticsError("is damaged", place=str(path), remedy=remedy) from error
    if version != STATISTICS_VERSION:
        raise StatisticsError(
            f"has version {version}, this program reads {STATISTICS_VERSION}",
            place=str(path),
            remedy=remedy,
        )
    try:
        statistics = Statistics.model_validate_json(json.dumps(content))
    except ValueError as error:
        raise StatisticsError("is damaged", place=str(path), remedy=remedy) from error
    if crc32 != _crc32_of(statistics):
        raise StatisticsError(
            "is not as it was written (CRC differs)", place=str(path), remedy=remedy
        )
    return statistics


def _crc32_of(statistics: Statistics) -> int:
    """CRC-32 of the values, whatever the layout of the file."""
    content = statistics.model_dump_json()
    return zlib.crc32(content.encode("utf-8"))
