"""Whether the whole numbers of a column are ids or measures, from what they say about the click.

An id tells something by being itself, a measure by lying near others. So each row is judged by
other rows in two ways, as `information` does it: by those that have the same value, and by those in
the same interval of neighbouring values, of the number of intervals that tells most. By how much
the first lowers the logloss more than the second is a mean over rows; rows of one value are one
draw, so its standard error is that of a mean over clusters (Liang and Zeger, Longitudinal data
analysis using generalized linear models, Biometrika 73 (1986), section 2). The names of columns
play no part.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from ctr_pipeline.analysis.information import SMOOTHINGS, left_out_rates

_Floats = NDArray[np.float64]

NUMS_INTERVALS = (5, 10, 20, 30, 60)
_VALUES_AN_INTERVAL = 3
"""On average, at least: an interval of one value says what that value does."""
_BEYOND_CHANCE = 2.0
"""Standard errors."""
_MOST_ORDER = 0.5
"""What intervals explain, in parts of what single values do, above which their order tells too."""


class Nature(StrEnum):
    """What whole numbers are; both if it is close, or if ids have an order that tells as well."""

    ID = "id"
    MEASURE = "measure"
    BOTH = "both"


@dataclass(frozen=True)
class WholeNumbers:
    """What was found about a column of whole numbers.

    Attributes:
        num_rows: Rows with a value and a label that it rests on.
        num_values: Different values among them.
        by_value: Share of the label's entropy that single values explain, 0 to 1.
        by_interval: Share that intervals of neighbouring values explain.
        lead: By how much the first is greater, below 0 if it is less.
        error: Standard error of that.
    """

    num_rows: int
    num_values: int
    by_value: float
    by_interval: float
    lead: float
    error: float

    @property
    def nature(self) -> Nature:
        """Ids if single values clearly explain most of it; measures if intervals explain more."""
        if self.lead < -_BEYOND_CHANCE * self.error:
            return Nature.MEASURE
        is_ahead = self.lead > _BEYOND_CHANCE * self.error
        is_id = is_ahead and self.by_interval <= _MOST_ORDER * self.by_value
        return Nature.ID if is_id else Nature.BOTH


def judge_whole_numbers(numbers_B: _Floats, labels_B: _Floats) -> WholeNumbers | None:
    """Compares what single values and intervals of a column explain.

    Args:
        numbers_B: Values, NaN where missing.
        labels_B: 0 or 1, NaN where missing or wrong.

    Returns:
        None if there is nothing to decide: a value is not whole, there are two at most, or all
        labels are the same.
    """
    is_known_B = ~np.isnan(numbers_B) & ~np.isnan(labels_B)
    present_N, labels_N = numbers_B[is_known_B], labels_B[is_known_B]
    if not (np.isfinite(present_N).all() and (present_N == np.floor(present_N)).all()):
        return None
    values_V, codes_N = np.unique(present_N, return_inverse=True)
    if len(values_V) <= 2 or len(np.unique(labels_N)) < 2:
        return None
    rows_V = np.bincount(codes_N).astype(np.float64)
    clicks_V = np.bincount(codes_N, labels_N).astype(np.float64)
    num_rows, base = float(len(labels_N)), float(labels_N.mean())
    # A value lies where its middle row does.
    places_V = (np.cumsum(rows_V) - rows_V / 2) / num_rows
    by_value_V = _best_gains(rows_V, clicks_V, np.arange(len(rows_V)), base)
    most_intervals = max(len(values_V) // _VALUES_AN_INTERVAL, 2)
    by_interval_V = max(
        (
            _best_gains(rows_V, clicks_V, (places_V * count).astype(np.int64), base)
            for count in sorted({min(count, most_intervals) for count in NUMS_INTERVALS})
        ),
        key=lambda gains_V: float(gains_V.sum()),
    )
    entropy = -(base * np.log(base) + (1 - base) * np.log(1 - base))
    leads_V = by_value_V - by_interval_V
    lead = leads_V.sum() / num_rows
    error = np.sqrt(((leads_V - lead * rows_V) ** 2).sum()) / num_rows
    return WholeNumbers(
        num_rows=len(labels_N),
        num_values=len(values_V),
        by_value=float(by_value_V.sum() / num_rows / entropy),
        by_interval=float(by_interval_V.sum() / num_rows / entropy),
        lead=float(lead / entropy),
        error=float(error / entropy),
    )


def _best_gains(
    rows_V: _Floats, clicks_V: _Floats, groups_V: NDArray[np.int64], base: float
) -> _Floats:
    """By how much the rows of each value are judged better than by the base rate, in nats.

    Args:
        rows_V: Rows of each value.
        clicks_V: Those of label 1.
        groups_V: The group whose rows judge those of a value; groups may have no value.
        base: The click rate of all rows.

    Returns:
        With the smoothing that lowers the logloss most; zeros if none lowers it.
    """
    rows_G, clicks_G = (
        np.bincount(groups_V, of_V).astype(np.float64) for of_V in (rows_V, clicks_V)
    )
    has_rows_G = rows_G > 0
    groups_V = (np.cumsum(has_rows_G) - 1)[groups_V]
    rows_G, clicks_G = rows_G[has_rows_G], clicks_G[has_rows_G]
    best_V, most = np.zeros(len(rows_V)), 0.0
    for smoothing in SMOOTHINGS:
        of_click_G, of_other_G = left_out_rates(rows_G, clicks_G, smoothing, base).gains(base)
        gain = float(clicks_G @ of_click_G + (rows_G - clicks_G) @ of_other_G)
        if gain > most:
            best_V = clicks_V * of_click_G[groups_V] + (rows_V - clicks_V) * of_other_G[groups_V]
            most = gain
    return best_V
