"""How far other rows are from the training rows: pure functions of counts.

The population stability index of two sets of shares a and b over the same cells is
sum of (a - b) ln(a / b) (Siddiqi, Credit Risk Scorecards (2006), chapter 9; it is Kullback's
divergence J of 1959). It is 0 for equal shares, positive for all others, and symmetric. A cell that
one side lacks would make it infinite, so no share counts as less than `SMALLEST_SHARE`.

Two samples of the same rows differ as well. If nothing changed, the index of n and m rows over B
cells is about (1/n + 1/m) times a chi-square variable of B - 1 degrees of freedom (Yurdakul,
Statistical Properties of Population Stability Index, Western Michigan University (2018),
section 3.2); `sampling_noise` is its 99 % quantile.
"""

import math
from collections.abc import Mapping, Sequence

from ctr_pipeline.statistics import ColumnDrift, ColumnStatistics, DriftCell
from ctr_pipeline.summary_statistics.singletons import SINGLETONS

SMALLEST_SHARE = 1e-4
_NORMAL_99 = 2.3263478740408408

REST, UNSEEN = 0, -1
"""Places of values that are not among the most frequent, and of those that never occurred."""


def population_stability_index(one: Sequence[int], other: Sequence[int]) -> float:
    """How far two sets of counts over the same cells are apart; 0 if their shares are equal.

    Raises:
        ValueError: A side has no rows, or the numbers of cells differ.
    """
    total_one, total_other = sum(one), sum(other)
    if not total_one or not total_other:
        raise ValueError("there are no rows to compare")
    smallest = max(SMALLEST_SHARE, 0.5 / min(total_one, total_other))
    terms = []
    for count_one, count_other in zip(one, other, strict=True):
        a = max(count_one / total_one, smallest)
        b = max(count_other / total_other, smallest)
        terms.append((a - b) * (math.log(a) - math.log(b)))
    return math.fsum(terms)


def sampling_noise(num_one: int, num_other: int, num_cells: int) -> float:
    """What the index stays below in 99 of 100 pairs of samples if nothing changed.

    The quantile of chi-square is that of Wilson and Hilferty (PNAS 17 (1931)), right to 1 % from
    two degrees of freedom on and to 3 % with one.

    Args:
        num_one: Rows.
        num_other: Rows.
        num_cells: Cells with rows on either side.
    """
    degrees = num_cells - 1
    if degrees < 1:
        return 0.0
    spread = 2.0 / (9.0 * degrees)
    chi_square = degrees * (1.0 - spread + _NORMAL_99 * math.sqrt(spread)) ** 3
    return (1.0 / num_one + 1.0 / num_other) * chi_square


def drift_of_intervals(
    statistics: ColumnStatistics,
    cuts: Sequence[float],
    old: Mapping[int | None, int],
    new: Mapping[int | None, int],
) -> ColumnDrift:
    """The drift of a number column.

    Args:
        statistics: Statistics of the old rows.
        cuts: Ends of the intervals, ascending; an interval is closed on the right.
        old: Rows by number of the interval, None for missing ones.
        new: The same of the new rows.
    """
    ends = [None, *cuts, None]
    cells = [
        DriftCell(
            kind="interval",
            left=ends[place],
            right=ends[place + 1],
            old_count=old.get(place, 0),
            new_count=new.get(place, 0),
        )
        for place in range(len(cuts) + 1)
    ]
    return _drift(statistics, cells, old.get(None, 0), new.get(None, 0))


def drift_of_values(statistics: ColumnStatistics, new: Mapping[int | None, int]) -> ColumnDrift:
    """The drift of a text column.

    That values come which never came before is in the nature of ids: the share of rows with them
    is expected to be that of the values which occurred once, if the rows are of the same kind (see
    `summary_statistics.singletons`).

    Args:
        statistics: Statistics of the old rows, with a profile.
        new: New rows by place among the top values, from 1; `REST`, `UNSEEN`, None for missing.
    """
    cells = [
        DriftCell(kind="value", value=top.value, old_count=top.count, new_count=new.get(place, 0))
        for place, top in enumerate(statistics.top_values, start=1)
    ]
    num_shown = sum(top.count for top in statistics.top_values)
    num_present = statistics.count - statistics.num_missing
    num_unseen = new.get(UNSEEN, 0)
    cells.append(
        DriftCell(
            kind="rest",
            old_count=num_present - num_shown,
            new_count=new.get(REST, 0) + num_unseen,
        )
    )
    drift = _drift(statistics, cells, statistics.num_missing, new.get(None, 0))
    return drift.model_copy(
        update={
            "unseen_rate": num_unseen / sum(new.values()),
            "expected_unseen_rate": statistics.summary[SINGLETONS.name] / statistics.count,
        }
    )


def drift_of_parts(
    statistics: ColumnStatistics, names: Sequence[str], old: Sequence[int], new: Sequence[int]
) -> ColumnDrift:
    """The drift of what is read of a column.

    Args:
        statistics: Statistics of the old rows.
        names: Columns in which the rows are alike.
        old: Rows of each name, and after them the missing ones.
        new: The same of the new rows.
    """
    cells = [
        DriftCell(kind="value", value=name, old_count=before, new_count=after)
        for name, before, after in zip(names, old[:-1], new[:-1], strict=True)
    ]
    return _drift(statistics, cells, old[-1], new[-1])


def _drift(
    statistics: ColumnStatistics, cells: Sequence[DriftCell], old_missing: int, new_missing: int
) -> ColumnDrift:
    missing = DriftCell(kind="missing", old_count=old_missing, new_count=new_missing)
    kept = [cell for cell in (*cells, missing) if cell.old_count or cell.new_count]
    old = [cell.old_count for cell in kept]
    new = [cell.new_count for cell in kept]
    return ColumnDrift(
        column=statistics.column,
        column_type=statistics.column_type,
        psi=population_stability_index(old, new),
        noise=sampling_noise(sum(old), sum(new), len(kept)),
        old_missing_rate=old_missing / sum(old),
        new_missing_rate=new_missing / sum(new),
        cells=tuple(kept),
    )
