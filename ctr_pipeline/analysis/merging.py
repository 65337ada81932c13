"""Statistics of two sets of rows as those of both together: yesterday's and today's.

Exact: rows, missing and infinite ones, the click rate, lengths of sequences, minimum, maximum, and,
up to rounding, mean, deviation and skew (Chan, Golub and LeVeque, Updating Formulae and a Pairwise
Algorithm for Computing Sample Variances (1979); the third moment by Pébay, SAND2008-6212 (2008),
equation 2.1).
Where both sets name all values of a column, that is where it has no more than the top values, or
has a vocabulary that left nothing out, everything else is exact as well.

Elsewhere the rest is said to be approximate in `Statistics.approximate`: distinct values are at
least as many as given, the counts of top values and vocabularies may be too low by what the other
set did not name, quantiles lie between those of the two sets, and histograms spread their rows
evenly within a bin. What cannot be merged at all is left out, and a note says so.
"""

import hashlib
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ctr_pipeline.analysis.histogram import plan_edges
from ctr_pipeline.analysis.information import Groups, label_information
from ctr_pipeline.analysis.measure import NUM_TOP_VALUES, PROFILE_QUANTILES
from ctr_pipeline.errors import StatisticsError
from ctr_pipeline.features import ColumnType
from ctr_pipeline.statistics import (
    ColumnStatistics,
    HistogramBin,
    LabelInformation,
    LengthStatistics,
    Moments,
    Statistics,
    ValueCount,
    VocabularyStatistics,
)

_OF_THE_ROW_ALONE = frozenset({"age", "log", "clip", "fill"})
"""Steps of a chain whose result does not depend on other rows."""
_STEP_NAME = re.compile(r'"name":"(\w+)"')


@dataclass(frozen=True)
class _Count:
    """Rows and clicks."""

    num_rows: int
    num_clicks: int

    def __add__(self, other: "_Count") -> "_Count":
        return _Count(self.num_rows + other.num_rows, self.num_clicks + other.num_clicks)


_NONE = _Count(0, 0)
_Values = dict[str, _Count]


def merge_statistics(
    one: Statistics, other: Statistics, *, folders: tuple[Path, Path] | None = None
) -> Statistics:
    """The statistics of the rows of both sets.

    Vocabularies, boundaries of quantiles and drift are not part of the result: the first are files
    (`merge_vocabularies` gives their values), the others cannot be told from summaries.

    Args:
        one: Of one set.
        other: Of the other set, with the same columns.
        folders: Run folders of both, whose vocabularies make more of it exact.

    Raises:
        ValueError: The sets have other columns or read them as other types.
        StatisticsError: A vocabulary's file cannot be read.
    """
    if set(one.columns) != set(other.columns):
        different = sorted(set(one.columns) ^ set(other.columns))
        raise ValueError(f"only one of the sets has the column '{different[0]}'")
    num_rows = one.num_rows + other.num_rows
    num_clicks = _clicks(one.label_rate, one.num_rows) + _clicks(other.label_rate, other.num_rows)
    columns: dict[str, ColumnStatistics] = {}
    approximate: dict[str, tuple[str, ...]] = {}
    for name, column in one.columns.items():
        values = _merged_vocabulary(one, other, name, folders)
        columns[name], unsure = merge_columns(column, other.columns[name], values)
        known = {*one.approximate.get(name, ()), *other.approximate.get(name, ()), *unsure}
        if known:
            approximate[name] = tuple(sorted(known))
    shared = [
        key
        for key in one.derived_moments
        if key in other.derived_moments and _OF_THE_ROW_ALONE.issuperset(_STEP_NAME.findall(key))
    ]
    left_out = []
    if len(shared) < len({*one.derived_moments, *other.derived_moments}):
        left_out.append("moments after a step that depends on the rows")
    if one.boundaries or other.boundaries:
        left_out.append("boundaries of quantiles")
    if one.vocabularies or other.vocabularies or one.value_tables or other.value_tables:
        left_out.append("vocabularies")
    if one.drift or other.drift:
        left_out.append("drift")
    notes = ["Merged from the statistics of two sets of rows."]
    if left_out:
        notes.append(f"Not merged: {', '.join(left_out)}.")
    text = f"{one.fingerprint} {other.fingerprint}"
    return Statistics(
        fingerprint=hashlib.sha256(text.encode("ascii", "replace")).hexdigest(),
        num_rows=num_rows,
        label_rate=num_clicks / num_rows,
        columns=columns,
        derived_moments={
            key: merge_moments(one.derived_moments[key], other.derived_moments[key])
            for key in shared
        },
        approximate=approximate,
        notes=tuple(notes),
    )


def merge_moments(one: Moments, other: Moments) -> Moments:
    """Moments of both sets together; see the head of this module for the formulas."""
    if (one.weight is None) != (other.weight is None):
        raise ValueError("the rows of one set have weights, those of the other have none")
    if not one.count or not other.count:
        return one if one.count else other
    mean_one, mean_other = _known(one.mean), _known(other.mean)
    deviation_one, deviation_other = (
        _known(one.standard_deviation),
        _known(other.standard_deviation),
    )
    count = one.count + other.count
    weight = None if one.weight is None or other.weight is None else one.weight + other.weight
    share_one, share_other = one.count / count, other.count / count
    if weight:
        # What weighs nothing adds nothing.
        share_one, share_other = (one.weight or 0.0) / weight, (other.weight or 0.0) / weight
    # Halves, since the difference of two numbers may overflow.
    half_distance = mean_other / 2 - mean_one / 2
    scale = max(abs(half_distance), deviation_one, deviation_other)
    deviation, skew = 0.0, None
    if scale:
        distance = 2 * (half_distance / scale)
        a, b = deviation_one / scale, deviation_other / scale
        second = share_one * a**2 + share_other * b**2 + share_one * share_other * distance**2
        third = (
            share_one * (one.skew or 0.0) * a**3
            + share_other * (other.skew or 0.0) * b**3
            + share_one * share_other * (share_one - share_other) * distance**3
            + 3 * share_one * share_other * distance * (b**2 - a**2)
        )
        deviation = math.sqrt(second) * scale
        skew = third / second**1.5 if deviation else None
    return Moments(
        count=count,
        mean=mean_one * share_one + mean_other * share_other,
        standard_deviation=deviation,
        minimum=min(_known(one.minimum), _known(other.minimum)),
        maximum=max(_known(one.maximum), _known(other.maximum)),
        skew=skew,
        weight=weight,
    )


def merge_columns(
    one: ColumnStatistics, other: ColumnStatistics, values: Mapping[str, _Count] | None = None
) -> tuple[ColumnStatistics, tuple[str, ...]]:
    """One column of both sets together, and the names of what is approximate.

    Args:
        one: Of one set.
        other: Of the other one.
        values: Rows and clicks of all values of both, if they are known from elsewhere.

    Raises:
        ValueError: They are not of the same type.
    """
    if one.column_type is not other.column_type:
        raise ValueError(f"column '{one.column}' is a number in one set, a text in the other")
    if (one.lengths is None) != (other.lengths is None):
        raise ValueError(f"column '{one.column}' is a sequence in only one of the sets")
    if one.vector_length != other.vector_length:
        raise ValueError(f"column '{one.column}' holds vectors of another length in the other set")
    missing = _missing(one) + _missing(other)
    plain = ColumnStatistics(
        column=one.column,
        column_type=one.column_type,
        count=one.count + other.count,
        num_missing=missing.num_rows,
        num_infinite=one.num_infinite + other.num_infinite,
        num_distinct=max(one.num_distinct, other.num_distinct),
        missing_label_rate=missing.num_clicks / missing.num_rows if missing.num_rows else None,
        vector_length=one.vector_length,
    )
    if one.moments is not None and other.moments is not None:
        moments = merge_moments(one.moments, other.moments)
        plain = plain.model_copy(update={"moments": moments})
    if values is None and _is_complete(one) and _is_complete(other):
        values = _add(_named_values(one), _named_values(other))
    if values is not None:
        merged, unsure = _from_values(plain, values, missing)
    else:
        merged, unsure = _from_summaries(plain, one, other)
    if one.lengths is None or other.lengths is None:
        return merged, unsure
    lengths, is_exact = merge_lengths((one.lengths, one.count), (other.lengths, other.count))
    # Elements are no rows: nothing is known of the clicks that they go with.
    merged = merged.model_copy(update={"lengths": lengths, "label_information": None})
    unsure = tuple(name for name in unsure if name != "label_information")
    return merged, unsure if is_exact else (*unsure, "lengths")


def merge_lengths(
    one: tuple[LengthStatistics, int], other: tuple[LengthStatistics, int]
) -> tuple[LengthStatistics, bool]:
    """Lengths of a sequence in both sets together, and whether all of them are exact.

    Where a set has too many lengths to name the rows of each, the median and what 95 % of the rows
    have are those of the set that has more; all else is exact.

    Args:
        one: Of one set, and its rows.
        other: Of the other set.
    """
    (lengths, num_rows), (more, more_rows) = one, other
    num_truncated = lengths.num_truncated + more.num_truncated
    if lengths.rows_by_length is not None and more.rows_by_length is not None:
        rows = Counter(lengths.rows_by_length) + Counter(more.rows_by_length)
        return LengthStatistics.of(rows, num_truncated), True
    larger = lengths if num_rows >= more_rows else more
    num_elements = lengths.num_elements + more.num_elements
    merged = larger.model_copy(
        update={
            "num_elements": num_elements,
            "mean": num_elements / max(num_rows + more_rows, 1),
            "maximum": max(lengths.maximum, more.maximum),
            "num_truncated": num_truncated,
            "rows_by_length": None,
        }
    )
    return merged, False


def merge_vocabularies(one: Path, other: Path) -> dict[str, tuple[int, int]]:
    """Rows and clicks of each value that either vocabulary names.

    They are those of both sets together where neither vocabulary left values out; else a value that
    one of them left out is counted in the other alone.

    Args:
        one: The file of one vocabulary.
        other: The file of the other one.
    """
    merged = _add(_read_vocabulary(one), _read_vocabulary(other))
    return {value: (count.num_rows, count.num_clicks) for value, count in merged.items()}


def _from_values(
    plain: ColumnStatistics, values: Mapping[str, _Count], missing: _Count
) -> tuple[ColumnStatistics, tuple[str, ...]]:
    """With all values known, everything is as if both sets had been counted at once."""
    unsure: tuple[str, ...] = ()
    is_text = plain.column_type is ColumnType.TEXT
    ordered = sorted(
        values.items(),
        key=lambda item: (-item[1].num_rows, item[0].encode() if is_text else float(item[0])),
    )
    update: dict[str, object] = {
        "num_distinct": len(values),
        "top_values": tuple(
            ValueCount(
                value=value, count=count.num_rows, label_rate=count.num_clicks / count.num_rows
            )
            for value, count in ordered[:NUM_TOP_VALUES]
        ),
    }
    if is_text:
        groups = [*values.values(), *([missing] if missing.num_rows else [])]
        update["label_information"] = _information(groups)
        return plain.model_copy(update=update), unsure
    numbers = sorted((float(value), count) for value, count in values.items())
    finite = [(value, count) for value, count in numbers if math.isfinite(value)]
    update["quantiles"] = _quantiles_of_values(finite)
    if len(values) <= NUM_TOP_VALUES:
        update["histogram"] = _histogram_of_values(finite)
        update["label_information"] = _information(_interval_groups(numbers, missing))
        return plain.model_copy(update=update), unsure
    # Twenty-one values and more have bins and intervals that hold several of them.
    update["histogram"] = _histogram_of_values(finite, plain.moments)
    return plain.model_copy(update=update), ("label_information",)


def _from_summaries(
    plain: ColumnStatistics, one: ColumnStatistics, other: ColumnStatistics
) -> tuple[ColumnStatistics, tuple[str, ...]]:
    values = _add(_named_values(one), _named_values(other))
    frequent = sorted(values.items(), key=lambda item: (-item[1].num_rows, item[0].encode()))
    histogram, quantiles = _merge_histograms(one, other, plain.moments), dict[str, float]()
    for name in one.quantiles.keys() & other.quantiles.keys():
        low, high = sorted((one.quantiles[name], other.quantiles[name]))
        quantiles[name] = min(max(_quantile_of_bins(histogram, float(name)), low), high)
    for name in one.quantiles.keys() ^ other.quantiles.keys():
        # One of the sets has no finite value.
        quantiles[name] = (one.quantiles | other.quantiles)[name]
    merged = plain.model_copy(
        update={
            "num_distinct": max(plain.num_distinct, len(values)),
            "top_values": tuple(
                ValueCount(
                    value=value,
                    count=count.num_rows,
                    label_rate=count.num_clicks / count.num_rows,
                )
                for value, count in frequent[:NUM_TOP_VALUES]
            ),
            "quantiles": dict(sorted(quantiles.items(), key=lambda item: float(item[0]))),
            "histogram": histogram,
        }
    )
    unsure = ["num_distinct", "top_values", "label_information"]
    if plain.column_type is ColumnType.NUMBER or plain.vector_length is not None:
        unsure += ["quantiles", "histogram"]
    return merged, tuple(unsure)


def _known(number: float | None) -> float:
    if number is None:
        raise ValueError("moments of a set with values are not there")
    return number


def _clicks(rate: float | None, num_rows: int) -> int:
    return round((rate or 0.0) * num_rows)


def _missing(column: ColumnStatistics) -> _Count:
    return _Count(column.num_missing, _clicks(column.missing_label_rate, column.num_missing))


def _is_complete(column: ColumnStatistics) -> bool:
    """Whether every value is among the top values."""
    return len(column.top_values) == column.num_distinct


def _named_values(column: ColumnStatistics) -> _Values:
    return {
        top.value: _Count(top.count, _clicks(top.label_rate, top.count))
        for top in column.top_values
    }


def _add(one: Mapping[str, _Count], other: Mapping[str, _Count]) -> _Values:
    return {
        value: one.get(value, _NONE) + other.get(value, _NONE)
        for value in dict.fromkeys([*one, *other])
    }


def _information(groups: Sequence[_Count]) -> LabelInformation | None:
    sizes = Counter((group.num_rows, group.num_clicks) for group in groups)
    table = np.array([(*size, times) for size, times in sorted(sizes.items())], np.int64)
    rows_G, clicks_G, times_G = table.reshape(-1, 3).T
    return label_information(Groups(rows_G, clicks_G, times_G))


def _interval_groups(numbers: Sequence[tuple[float, _Count]], missing: _Count) -> list[_Count]:
    """Each finite value is the end of an interval; the outer ones hold infinite values as well."""
    finite = [value for value, _ in numbers if math.isfinite(value)]
    places: dict[int, _Count] = {}
    for value, count in numbers:
        place = int(np.searchsorted(finite, value, side="left"))
        places[place] = places.get(place, _NONE) + count
    return [*places.values(), *([missing] if missing.num_rows else [])]


def _quantiles_of_values(values: Sequence[tuple[float, _Count]]) -> dict[str, float]:
    total = sum(count.num_rows for _, count in values)
    if not total:
        return {}
    found = {}
    for share in PROFILE_QUANTILES:
        # As the database does it: in whole numbers, of twentieths.
        parts, upto = round(share * 20), 0
        for value, count in values:
            upto += count.num_rows
            if 20 * upto >= parts * total:
                found[str(share)] = value + 0.0
                break
    return found


def _histogram_of_values(
    values: Sequence[tuple[float, _Count]], moments: Moments | None = None
) -> tuple[HistogramBin, ...]:
    if not values:
        return ()
    few = [value for value, _ in values]
    edges = (*few, few[-1]) if moments is None else plan_edges(moments, None)
    bins = []
    for index, (left, right) in enumerate(pairwise(edges)):
        is_last = index == len(edges) - 2
        inside = sum(
            (
                count
                for value, count in values
                if left <= value and (value < right or (is_last and value <= right))
            ),
            _NONE,
        )
        bins.append(_bin(left, right, inside))
    return tuple(bins)


def _bin(left: float, right: float, count: _Count) -> HistogramBin:
    rate = count.num_clicks / count.num_rows if count.num_rows else None
    return HistogramBin(left=left, right=right, count=count.num_rows, label_rate=rate)


def _merge_histograms(
    one: ColumnStatistics, other: ColumnStatistics, moments: Moments | None
) -> tuple[HistogramBin, ...]:
    """Both on the bins of the merged column, rows spread evenly within a bin; sums stay exact."""
    if moments is None:
        return ()
    edges = plan_edges(moments, None)
    if len(edges) < 2:
        return ()
    rows = _spread(one, edges, clicks=False) + _spread(other, edges, clicks=False)
    clicks = np.minimum(_spread(one, edges, clicks=True) + _spread(other, edges, clicks=True), rows)
    return tuple(
        _bin(left, right, _Count(int(count), int(clicked)))
        for (left, right), count, clicked in zip(pairwise(edges), rows, clicks, strict=True)
    )


def _spread(
    column: ColumnStatistics, edges: Sequence[float], *, clicks: bool
) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Whole rows or clicks of a histogram in other bins, which span at least its own."""
    inner = np.array(edges[1:-1])
    upto = np.zeros(len(edges) - 2)
    total = 0
    for one in column.histogram:
        count = _clicks(one.label_rate, one.count) if clicks else one.count
        width = one.right - one.left
        if width > 0 and math.isfinite(width):
            share = np.clip((inner - one.left) / width, 0.0, 1.0)
        else:
            share = (inner > one.left).astype(np.float64)
        upto += count * share
        total += count
    # Rounded sums, not rounded parts, so that no row is lost.
    whole = np.concatenate([[0], np.rint(upto), [total]]).astype(np.int64)
    return np.diff(whole)


def _quantile_of_bins(bins: Sequence[HistogramBin], share: float) -> float:
    total = sum(one.count for one in bins)
    wanted, upto = share * total, 0
    for one in bins:
        if one.count and upto + one.count >= wanted:
            within = max(wanted - upto, 0.0) / one.count
            return one.left * (1 - within) + one.right * within
        upto += one.count
    return bins[-1].right if bins else 0.0


def _merged_vocabulary(
    one: Statistics, other: Statistics, column: str, folders: tuple[Path, Path] | None
) -> _Values | None:
    """All values of both, if both vocabularies name all of theirs."""
    found = one.vocabularies.get(column), other.vocabularies.get(column)
    if folders is None or not all(map(_names_all, found)):
        return None
    files = [
        folder / vocabulary.file
        for folder, vocabulary in zip(folders, found, strict=True)
        if vocabulary is not None
    ]
    return _add(_read_vocabulary(files[0]), _read_vocabulary(files[1]))


def _names_all(vocabulary: VocabularyStatistics | None) -> bool:
    if vocabulary is None or vocabulary.columns is not None:
        # What several columns have together does not tell of one of them.
        return False
    return vocabulary.num_excluded_values == 0


def _read_vocabulary(file: Path) -> _Values:
    try:
        table = pq.read_table(file)
    except (OSError, pa.ArrowException) as error:
        raise StatisticsError(
            "cannot be read", place=str(file), remedy="Run 'ctrpipe analyze', which writes it again"
        ) from error
    rows = zip(*(table.column(name).to_pylist() for name in table.schema.names), strict=True)
    return {value: _Count(count, clicks) for value, count, clicks in rows}
