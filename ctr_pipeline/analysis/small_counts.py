"""The value counts of a small column in memory, which answer queries without a database.

Parsing and planning take a database a millisecond or more a query, eight queries a column, however
few values there are: a minute for a table of 5,000 columns and 300 rows. `sql.Query` names the
function that gives the same rows in the same order.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ctr_pipeline.analysis.chains import placeholder_prefix
from ctr_pipeline.analysis.statistics_plan import Chain
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.transforms.base import NumberTransform

MOST_VALUES = 8192
"""Values of a column, beyond which a database takes no longer than this."""


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
            num_rows, num_clicks = sum_groups(inverse, num_rows), sum_groups(inverse, num_clicks)
        return SmallCounts(np.empty(0), list(places), num_rows, num_clicks, others)
    # Adding 0 makes 0 of -0, which SQL does not tell apart.
    values = table.column("value").to_numpy() + 0.0
    numbers, inverse = np.unique(values, return_inverse=True)
    sums = sum_groups(inverse, num_rows), sum_groups(inverse, num_clicks)
    return SmallCounts(numbers, (), *sums, others)


def values_after_chains(
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


def sum_small(terms: NDArray[np.float64], num_rows: NDArray[np.int64]) -> float | None:
    """The sum of the terms of all rows, of those that are numbers; None without any."""
    is_there = ~np.isnan(terms)
    if not is_there.any():
        return None
    return float(np.sum(terms[is_there] * num_rows[is_there]))


def sum_groups(groups: NDArray[np.intp], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Counts by number of the group; exact, as they are less than 2^53 in all."""
    return np.bincount(groups, weights=counts).astype(np.int64)


def listed_parameters(name: str, length: int, parameters: Parameters) -> NDArray[np.float64]:
    """The numbers of placeholders that are one name and an index."""
    return np.array([parameters[f"{name}{index}"] for index in range(length)], np.float64)


def positions_among(values: NDArray[np.float64], cuts: NDArray[np.float64]) -> NDArray[np.intp]:
    """How many cuts are below each value; of missing ones one more than all, as NULL comes last."""
    return np.where(np.isnan(values), len(cuts) + 1, np.searchsorted(cuts, values, side="left"))


def none_at_end(places: NDArray[np.intp], none: int) -> list[int | None]:
    """Places as a query gives them: NULL for the one that stands for it."""
    return [None if place == none else place for place in places.tolist()]
