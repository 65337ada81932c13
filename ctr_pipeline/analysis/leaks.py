"""Columns that give the label away, told from their statistics alone."""

from collections.abc import Sequence

import numpy as np

from ctr_pipeline.evaluation.auc import auc_of_runs
from ctr_pipeline.statistics import ColumnStatistics

MIN_ROWS_PER_VALUE = 10
"""Rows a value, at least: with fewer, rows of one label only come about by chance."""
LEAK_AUC = 0.99
"""No honest column ranks clicks as well by itself."""
SUSPECT_AUC = 0.9
SUSPECT_INFORMATION = 0.5
"""A column is worth a look from here on: its AUC alone, or the share that it alone explains of the
label's entropy. An AUC of 0.9 explains 0.3 to 0.4 of it, one of 0.97 explains 0.55 to 0.7."""


def describe_leak(column: ColumnStatistics, label_rate: float) -> str | None:
    """Why the column alone tells the label of every training row, or None if it does not.

    Looks at columns of which all values are among the top values, and at whether a value is there
    at all, as with the time of a purchase.

    Args:
        column: Its statistics, top values included.
        label_rate: Mean of the label over the training rows.
    """
    if label_rate in {0.0, 1.0}:
        return None
    num_present = column.count - column.num_missing
    missing_rate = column.missing_label_rate
    if num_present and missing_rate in {0.0, 1.0}:
        clicks_present = round(label_rate * column.count) - missing_rate * column.num_missing
        if clicks_present == (0 if missing_rate == 1.0 else num_present):
            meaning = "clicked" if missing_rate == 0.0 else "not clicked"
            return f"it has a value exactly where the row is {meaning}, so it gives the label away"
    top_values = column.top_values
    if (
        top_values
        and len(top_values) == column.num_distinct
        and _has_enough_rows(column)
        and all(top.label_rate in {0.0, 1.0} for top in top_values)
        and missing_rate in {None, 0.0, 1.0}
    ):
        return (
            f"each of its {column.num_distinct} values occurs with one label only, "
            f"so it gives the label away"
        )
    auc = _auc_alone(column)
    if auc is not None and auc > LEAK_AUC:
        return f"it alone ranks the rows with an AUC of {auc:.4f}, so it gives the label away"
    return None


def describe_suspicion(column: ColumnStatistics, label_rate: float) -> str | None:
    """What the column alone says of the label that is hardly known before a click, or None.

    Args:
        column: Its statistics, top values included.
        label_rate: Mean of the label over the training rows.
    """
    auc = _auc_alone(column)
    if auc is not None:
        return f"alone ranks the rows with an AUC of {auc:.3f}" if auc > SUSPECT_AUC else None
    known = column.label_information
    explained = 0.0 if known is None else known.share_explained(label_rate)
    if explained <= SUSPECT_INFORMATION:
        return None
    return f"alone explains {100 * explained:.0f} % of what there is to know of the label"


def _has_enough_rows(column: ColumnStatistics) -> bool:
    num_present = column.count - column.num_missing
    return column.num_distinct <= 2 or num_present >= MIN_ROWS_PER_VALUE * len(column.top_values)


def _auc_alone(column: ColumnStatistics) -> float | None:
    """AUC of the click rate of a row's value, or of its interval.

    None where neither is known, or values have too few rows each to say anything.
    """
    if not _has_enough_rows(column):
        return None
    if column.top_values and len(column.top_values) == column.num_distinct:
        groups = [(top.count, top.label_rate) for top in column.top_values]
    elif column.histogram:
        groups = [(one.count, one.label_rate or 0.0) for one in column.histogram]
    else:
        return None
    groups.append((column.num_missing, column.missing_label_rate or 0.0))
    return _auc_of_groups(groups)


def _auc_of_groups(groups: Sequence[tuple[int, float]]) -> float | None:
    """AUC of rows that are ranked by the click rate of their group; rows of a group are ties.

    Args:
        groups: Rows and click rate of each.
    """
    counts, rates = np.array(sorted(groups, key=lambda group: group[1])).T
    clicks, others = counts * rates, counts * (1 - rates)
    return auc_of_runs(clicks, others) if clicks.sum() * others.sum() > 0 else None
