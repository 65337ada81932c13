"""Answers to the queries of `sql` from the value counts of a small column, without a database.

Parsing and planning take a database a millisecond or more a query, eight queries a column, however
few values there are: a minute for a table of 5,000 columns and 300 rows. Each function here gives
the rows that a query gives, in the same order; `sql.Query` names both.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ctr_pipeline.analysis.chains import placeholder_prefix
from ctr_pipeline.analysis.statistics_plan import Chain
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.summary_statistics.registry import NUMBER_STATISTICS
from ctr_pipeline.transforms.base import NumberTransform

MOST_VALUES = 8192
"""Of a column, beyond which a database takes no longer than this."""

Parameters = Mapping[str, float | str]
Rows = list[tuple[Any, ...]]


@dataclass(frozen=True)
class SmallCounts:
    """The value counts of one column.

    Attributes:
        numbers: float64, ascending, each once, a missing value as NaN; empty of texts.
        texts: In any order, each once, NULL and '' apart; empty of numbers.
        num_rows: int64, rows of each value.
        num_clicks: int64, those of label 1.
        others: Values of the same column in each sample of other rows.
    """

    numbers: NDArray[np.float64]
    texts: Sequence[str | None]
    num_rows: NDArray[np.int64]
    num_clicks: NDArray[np.int64]
    others: tuple["SmallCounts", ...] = ()


Answer = Callable[[SmallCounts, Parameters], Rows]


def add_up(
    column_type: ColumnType,
    batches: Iterable[pa.RecordBatch],
    others: tuple[SmallCounts, ...] = (),
) -> SmallCounts:
    """The counts of a column, from what each part says of it.

    Args:
        batches: value, num_rows, num_clicks; a value once in each.
        others: Values of samples of other rows.
    """
    table = pa.Table.from_batches(batches)
    num_rows, num_clicks = (table.column(name).to_numpy() for name in ("num_rows", "num_clicks"))
    if column_type is ColumnType.TEXT:
        texts = table.column("value").to_pylist()
        places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
        if len(places) < len(texts):
            inverse = np.array([places[text] for text in texts])
            num_rows, num_clicks = _sums(inverse, num_rows), _sums(inverse, num_clicks)
        return SmallCounts(np.empty(0), list(places), num_rows, num_clicks, others)
    # Adding 0 makes 0 of -0, which SQL does not tell apart.
    values = table.column("value").to_numpy() + 0.0
    numbers, inverse = np.unique(values, return_inverse=True)
    sums = _sums(inverse, num_rows), _sums(inverse, num_clicks)
    return SmallCounts(numbers, (), *sums, others)


def summarize(chains: Sequence[Chain]) -> Answer:
    """As `sql.summary_query` of numbers."""

    def answer(counts: SmallCounts, parameters: Parameters) -> Rows:
        is_missing = np.isnan(counts.numbers)
        row: list[Any] = [
            int(counts.num_rows[is_missing].sum()),
            int(counts.num_clicks[is_missing].sum()),
            int(counts.num_rows[np.isinf(counts.numbers)].sum()),
            int(len(is_missing) - np.count_nonzero(is_missing)),
        ]
        if chains:
            row += find_ranges(chains)(counts, parameters)[0]
        return [tuple(row)]

    return answer


def find_ranges(chains: Sequence[Chain]) -> Answer:
    """As `sql.range_query`."""

    def answer(counts: SmallCounts, parameters: Parameters) -> Rows:
        row: list[Any] = []
        for values in _after_chains(counts, chains, parameters):
            is_finite = ~np.isnan(values)
            finite = values[is_finite]
            ends = (float(finite.min()), float(finite.max())) if len(finite) else (None, None)
            row += [int(counts.num_rows[is_finite].sum()), *ends]
        return [tuple(row)]

    return answer


def add_values(chains: Sequence[Chain]) -> Answer:
    """As `sql.mean_query`."""

    def answer(counts: SmallCounts, parameters: Parameters) -> Rows:
        return [
            tuple(
                _sum_over(values * float(parameters[f"shrink{place}"]), counts.num_rows)
                for place, values in enumerate(_after_chains(counts, chains, parameters))
            )
        ]

    return answer


def add_powers(chains: Sequence[Chain], summarized: int | None) -> Answer:
    """As `sql.central_query`."""

    def answer(counts: SmallCounts, parameters: Parameters) -> Rows:
        row, terms = [], []
        for place, values in enumerate(_after_chains(counts, chains, parameters)):
            shrink, center, stretch = (
                float(parameters[f"{name}{place}"]) for name in ("shrink", "center", "stretch")
            )
            y = (values * shrink - center) * stretch
            row += [_sum_over(one, counts.num_rows) for one in (y, y * y)]
            if place == summarized:
                terms = [term(y) for one in NUMBER_STATISTICS for term in one.terms]
        return [(*row, *(_sum_over(term, counts.num_rows) for term in terms))]

    return answer


def find_largest(chain: Chain, num_values: int) -> Answer:
    """As `sql.largest_counts_query`."""

    def answer(counts: SmallCounts, parameters: Parameters) -> Rows:
        num_rows = np.sort(_group(counts, chain, parameters).num_rows)
        return [(count,) for count in num_rows[::-1][:num_values].tolist()]

    return answer


def find_quantiles(chain: Chain, num_sets: int) -> Answer:
    """As `sql.quantile_query`."""

    def answer(counts: SmallCounts, parameters: Parameters) -> Rows:
        groups = _group(counts, chain, parameters)
        columns: list[list[Any]] = [
            groups.values.tolist(),
            [None if math.isnan(source) else source for source in groups.sources.tolist()],
        ]
        is_wanted = np.zeros(len(groups.values), np.bool_)
        for place in range(num_sets):
            num_quantiles, total, heavy = (
                int(parameters[f"{name}{place}"]) for name in ("num_quantiles", "total", "heavy")
            )
            is_heavy = groups.num_rows >= heavy
            light = np.where(is_heavy, 0, groups.num_rows)
            upto = np.cumsum(light)
            first = (upto - light) * num_quantiles // total + 1
            last = upto * num_quantiles // total
            edge = is_heavy.astype(np.int64)
            edge[1:] += is_heavy[:-1]
            is_wanted |= (first <= last) | (edge > 0)
            columns += [first.tolist(), last.tolist(), edge.tolist()]
        rows = zip(*columns, strict=True)
        return [row for row, is_kept in zip(rows, is_wanted.tolist(), strict=True) if is_kept]

    return answer


@dataclass(frozen=True)
class _Groups:
    """Finite values after a chain, ascending, each once.

    Attributes:
        values: float64.
        sources: float64, the smallest value of the column that becomes it; NaN if none does.
        num_rows: int64.
    """

    values: NDArray[np.float64]
    sources: NDArray[np.float64]
    num_rows: NDArray[np.int64]


def _group(counts: SmallCounts, chain: Chain, parameters: Parameters) -> _Groups:
    (after,) = _after_chains(counts, (chain,), parameters)
    is_finite = ~np.isnan(after)
    values, inverse = np.unique(after[is_finite] + 0.0, return_inverse=True)
    sources = np.full(len(values), math.nan)
    np.fmin.at(sources, inverse, counts.numbers[is_finite])
    return _Groups(values, sources, _sums(inverse, counts.num_rows[is_finite]))


def count_bins(num_cuts: int, num_inner_edges: int) -> Answer:
    """As `sql.bins_query`."""

    def answer(counts: SmallCounts, parameters: Parameters) -> Rows:
        places = _places_among(counts.numbers, _listed("cut", num_cuts, parameters))
        edges = _listed("edge", num_inner_edges, parameters)
        bins = np.searchsorted(edges, counts.numbers, side="right")
        # After all others, as NULL is.
        bins[~np.isfinite(counts.numbers)] = none = num_inner_edges + 1
        keys = places * (none + 1) + bins
        found, inverse = np.unique(keys, return_inverse=True)
        sums = (_sums(inverse, one).tolist() for one in (counts.num_rows, counts.num_clicks))
        found_places, found_bins = np.divmod(found, none + 1)
        return list(
            zip(
                _or_none(found_places, num_cuts + 1),
                _or_none(found_bins, none),
                *sums,
                strict=True,
            )
        )

    return answer


def count_other_intervals(num_edges: int) -> Answer:
    """As `sql.other_intervals_query`."""

    def answer(counts: SmallCounts, parameters: Parameters) -> Rows:
        edges = _listed("edge", num_edges, parameters)
        rows: Rows = []
        for sample, other in enumerate(counts.others):
            places, inverse = np.unique(_places_among(other.numbers, edges), return_inverse=True)
            sums = _sums(inverse, other.num_rows).tolist()
            shown = _or_none(places, num_edges + 1)
            rows += [(sample, place, count) for place, count in zip(shown, sums, strict=True)]
        return rows

    return answer


def count_other_values(counts: SmallCounts, parameters: Parameters) -> Rows:
    """As `sql.other_values_query`."""
    known = dict(zip(counts.texts, counts.num_rows.tolist(), strict=True))
    least, last = int(parameters["least_rows"]), str(parameters["last_value"])
    rows: Rows = []
    for sample, other in enumerate(counts.others):
        found = Counter[tuple[bool | None, str | None]]()
        for value, num_rows in zip(other.texts, other.num_rows.tolist(), strict=True):
            if not value:
                found[None, None] += num_rows
                continue
            before = known.get(value)
            is_frequent = before is not None and (
                before > least or (before == least and value <= last)
            )
            found[before is not None, value if is_frequent else None] += num_rows
        # NULL comes after all others.
        ordered = sorted(
            found, key=lambda key: (key[0] is None, bool(key[0]), key[1] is None, key[1] or "")
        )
        rows += [(sample, *key, found[key]) for key in ordered]
    return rows


def count_group_sizes(counts: SmallCounts, parameters: Parameters) -> Rows:
    """As `sql.group_sizes_query`."""
    del parameters
    is_missing = [0 if text else 1 for text in counts.texts]
    groups = zip(is_missing, counts.num_rows.tolist(), counts.num_clicks.tolist(), strict=True)
    return [(*group, times) for group, times in sorted(Counter(groups).items())]


def find_frequent_values(column_type: ColumnType, min_count: int, max_size: int | None) -> Answer:
    """As `sql.frequent_values_query`."""

    def answer(counts: SmallCounts, parameters: Parameters) -> Rows:
        del parameters
        values: Sequence[Any]
        if column_type is ColumnType.TEXT:
            values, is_present = counts.texts, [bool(text) for text in counts.texts]
        else:
            values, is_present = counts.numbers.tolist(), (~np.isnan(counts.numbers)).tolist()
        rows = zip(
            values, counts.num_rows.tolist(), counts.num_clicks.tolist(), is_present, strict=True
        )
        kept = [row[:3] for row in rows if row[3] and row[1] >= min_count]
        return sorted(kept, key=lambda row: (-row[1], row[0]))[:max_size]

    return answer


def _sums(groups: NDArray[np.intp], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Counts by number of the group; exact, as they are less than 2^53 in all."""
    return np.bincount(groups, weights=counts).astype(np.int64)


def _listed(name: str, length: int, parameters: Parameters) -> NDArray[np.float64]:
    return np.array([parameters[f"{name}{index}"] for index in range(length)], np.float64)


def _places_among(values: NDArray[np.float64], cuts: NDArray[np.float64]) -> NDArray[np.intp]:
    """How many cuts are below each value; of missing ones one more than all, as NULL comes last."""
    return np.where(np.isnan(values), len(cuts) + 1, np.searchsorted(cuts, values, side="left"))


def _or_none(places: NDArray[np.intp], none: int) -> list[int | None]:
    return [None if place == none else place for place in places.tolist()]


def _after_chains(
    counts: SmallCounts, chains: Sequence[Chain], parameters: Parameters
) -> list[NDArray[np.float64]]:
    """The values after each chain, NaN where they are not finite numbers."""
    found = []
    for place, chain in enumerate(chains):
        values = counts.numbers
        for position, transform in enumerate(chain):
            prefix = f"{placeholder_prefix(place, position)}_"
            numbers = {
                name.removeprefix(prefix): float(number)
                for name, number in parameters.items()
                if name.startswith(prefix)
            }
            if isinstance(transform, NumberTransform):
                values = transform.step_with(numbers).kernel(values)
        found.append(np.where(np.isfinite(values), values, math.nan))
    return found


def _sum_over(terms: NDArray[np.float64], num_rows: NDArray[np.int64]) -> float | None:
    """The sum of the terms of all rows, of those that are numbers; None without any."""
    is_there = ~np.isnan(terms)
    if not is_there.any():
        return None
    return float(np.sum(terms[is_there] * num_rows[is_there]))
