"""Whether the whole numbers of a column are ids or measures, from what they say about the click.

An id tells something by being itself, a measure by lying near others. So each row is judged by
other rows in three ways, as `information` does it: by those that have the same value; by those in
the same interval of neighbouring values; and by those of them that have another value. Of intervals
there are as many as tell most. What a way tells is a mean over rows; rows of one value are one
draw, so its standard error is that of a sum over clusters (Liang and Zeger, Longitudinal data
analysis using generalized linear models, Biometrika 73 (1986), section 2), of mean 0: it is to be
told from nothing.

Where clicks are too few to tell, how often values occur may: measures have smooth frequencies, and
those of ids jump from one to the next. The names of columns play no part.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from ctr_pipeline.analysis.information import SMOOTHINGS, left_out_rates

_Floats = NDArray[np.float64]

_SMOOTHINGS_S1 = np.array(SMOOTHINGS)[:, None]
NUMS_INTERVALS = (5, 10, 20, 30, 60)
_VALUES_AN_INTERVAL = 3
"""Values on average, at least: an interval of one value says what that value does."""
_BEYOND_CHANCE = 2.0
"""Standard errors."""
FEW_VALUES = 20
_LEAST_ROWS = 5
"""Rows of a value, below which its frequency is mostly chance."""
_LEAST_FREQUENCIES = 20
_LOW_QUARTILE, _ERROR_OF_ONE = 0.319, 0.571
"""Lower quartile of |N(0, 1)|, as which frequencies that are smooth but for chance jump, and its
standard error times the root of their number."""
_LEAST_JUMP = 0.85
"""Frequencies of measures are not quite smooth."""
_FAR_AHEAD = 1.5
"""What single values explain, in parts of what intervals do, above which these are too coarse."""
_MOST_ORDER = 0.25
"""What other values nearby explain, in parts of what a value itself does, above which the order of
the values tells something."""


class Nature(StrEnum):
    """What whole numbers are; both if it is close, or if values and their order tell something.

    Few values are both, as an id for each costs nothing.
    """

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
        by_others: Share that the other values of these explain.
        others_error: Standard error of that.
        lead: By how much `by_value` is greater than `by_interval`, below 0 if it is less.
        lead_error: Standard error of that.
        is_uneven: Whether neighbouring values occur unlike often, more than by chance.
    """

    num_rows: int
    num_values: int
    by_value: float
    by_interval: float
    by_others: float
    others_error: float
    lead: float
    lead_error: float
    is_uneven: bool = False

    @property
    def nature(self) -> Nature:
        """Measures if intervals explain more; ids if values do, and others nearby say little."""
        if self.lead < -_BEYOND_CHANCE * self.lead_error:
            return Nature.MEASURE
        is_id = self._is_ahead and not self._is_ordered and self.num_values > FEW_VALUES
        return Nature.ID if is_id else Nature.BOTH

    @property
    def could_be_ids(self) -> bool:
        """Whether their frequencies alone say that they are ids, though clicks do not."""
        return self.nature is Nature.BOTH and self.is_uneven and not self._is_ordered

    @property
    def _is_ahead(self) -> bool:
        return self.lead > _BEYOND_CHANCE * self.lead_error

    @property
    def _is_ordered(self) -> bool:
        return self.by_others > max(_MOST_ORDER * self.by_value, self.others_error)

    @property
    def need_fine_intervals(self) -> bool:
        """Whether intervals of many values hide what single values tell."""
        return self._is_ahead and self.by_value > _FAR_AHEAD * self.by_interval

    @property
    def are_ids(self) -> bool:
        """Whether they are best read as texts."""
        return self.nature is Nature.ID


def judge_whole_numbers(numbers_B: _Floats, labels_B: _Floats) -> WholeNumbers | None:
    """Compares what single values and intervals of a column explain.

    Args:
        numbers_B: Values, NaN where missing.
        labels_B: 0 or 1, NaN where missing or wrong.

    Returns:
        None if there is nothing to decide: a value is not whole, or there are two at most.
    """
    is_known_B = ~np.isnan(numbers_B) & ~np.isnan(labels_B)
    present_N, labels_N = numbers_B[is_known_B], labels_B[is_known_B]
    if not (np.isfinite(present_N).all() and (present_N == np.floor(present_N)).all()):
        return None
    values_V, codes_N = np.unique(present_N, return_inverse=True)
    if len(values_V) <= 2:
        return None
    rows_V = np.bincount(codes_N).astype(np.float64)
    clicks_V = np.bincount(codes_N, labels_N).astype(np.float64)
    num_rows, base = float(len(labels_N)), float(labels_N.mean())
    by_value_V = by_interval_V = by_others_V = np.zeros(len(values_V))
    entropy = 1.0
    if 0.0 < base < 1.0:
        entropy = -(base * math.log(base) + (1 - base) * math.log(1 - base))
        # A value lies where its middle row does.
        places_V = (np.cumsum(rows_V) - rows_V / 2) / num_rows
        most_intervals = max(len(values_V) // _VALUES_AN_INTERVAL, 2)
        intervals = [
            (places_V * count).astype(np.int64)
            for count in sorted({min(count, most_intervals) for count in NUMS_INTERVALS})
        ]
        counts = _Counts(rows_V, clicks_V, base)
        by_value_V = counts.gains(np.arange(len(rows_V)))
        by_interval_V = max((counts.gains(groups_V) for groups_V in intervals), key=np.sum)
        by_others_V = max((counts.gains_by_others(groups_V) for groups_V in intervals), key=np.sum)

    def mean_and_error(gains_V: _Floats) -> tuple[float, float]:
        scale = num_rows * entropy
        return float(gains_V.sum()) / scale, math.sqrt(float((gains_V**2).sum())) / scale

    by_others, others_error = mean_and_error(by_others_V)
    lead, lead_error = mean_and_error(by_value_V - by_interval_V)
    return WholeNumbers(
        num_rows=len(labels_N),
        num_values=len(values_V),
        by_value=mean_and_error(by_value_V)[0],
        by_interval=mean_and_error(by_interval_V)[0],
        by_others=by_others,
        others_error=others_error,
        lead=lead,
        lead_error=lead_error,
        is_uneven=has_uneven_frequencies(rows_V),
    )


def has_uneven_frequencies(rows_V: _Floats) -> bool:
    """Whether values occur unlike often as their neighbours, as ids do and measures do not.

    Smooth frequencies are near the geometric mean of both neighbours' but for chance. The lower
    quartile of how far they are off tells, as a favourite such as 50 makes three of them jump.

    Args:
        rows_V: Rows of each value, in the order of the values.
    """
    low_V, middle_V, high_V = rows_V[:-2], rows_V[1:-1], rows_V[2:]
    is_frequent_V = np.minimum(np.minimum(low_V, middle_V), high_V) >= _LEAST_ROWS
    num_frequent = int(is_frequent_V.sum())
    if num_frequent < _LEAST_FREQUENCIES:
        return False
    jumps_V = np.abs(np.log(middle_V) - (np.log(low_V) + np.log(high_V)) / 2)
    errors_V = np.sqrt(1 / middle_V + (1 / low_V + 1 / high_V) / 4)
    # Neighbouring jumps share frequencies, so that they vary together: five errors, not three.
    quartile = float(np.quantile((jumps_V / errors_V)[is_frequent_V], 0.25))
    return quartile > max(_LEAST_JUMP, _LOW_QUARTILE + 5 * _ERROR_OF_ONE / math.sqrt(num_frequent))


@dataclass(frozen=True)
class _Counts:
    """Rows and clicks of each value.

    Attributes:
        rows_V: Rows.
        clicks_V: Rows of label 1.
        base: The click rate of all rows.
    """

    rows_V: _Floats
    clicks_V: _Floats
    base: float

    def gains(self, groups_V: NDArray[np.int64]) -> _Floats:
        """Nats by which the rows of each value are judged better than by the base rate.

        Args:
            groups_V: The group whose rows judge those of a value, each left out itself.

        Returns:
            With the smoothing that lowers the logloss most; zeros if none lowers it.
        """
        rows_G, clicks_G = self._sums(groups_V)
        # A group without a value has no row to judge.
        rates = left_out_rates(np.maximum(rows_G, 1.0), clicks_G, _SMOOTHINGS_S1, self.base)
        of_click_SG, of_other_SG = rates.gains(self.base)
        best = int(np.argmax(of_click_SG @ clicks_G + of_other_SG @ (rows_G - clicks_G)))
        return self._weigh(of_click_SG[best, groups_V], of_other_SG[best, groups_V])

    def gains_by_others(self, groups_V: NDArray[np.int64]) -> _Floats:
        """As `gains`, by the rows of the group that have another value."""
        rows_G, clicks_G = self._sums(groups_V)
        rows_V, clicks_V = rows_G[groups_V] - self.rows_V, clicks_G[groups_V] - self.clicks_V
        rates_SV = (clicks_V + _SMOOTHINGS_S1 * self.base) / (rows_V + _SMOOTHINGS_S1)
        of_click_SV = np.log(rates_SV / self.base)
        of_other_SV = np.log((1.0 - rates_SV) / (1.0 - self.base))
        totals_S = of_click_SV @ self.clicks_V + of_other_SV @ (self.rows_V - self.clicks_V)
        best = int(np.argmax(totals_S))
        return self._weigh(of_click_SV[best], of_other_SV[best])

    def _sums(self, groups_V: NDArray[np.int64]) -> tuple[_Floats, _Floats]:
        rows_G, clicks_G = (np.bincount(groups_V, of_V) for of_V in (self.rows_V, self.clicks_V))
        return rows_G.astype(np.float64), clicks_G.astype(np.float64)

    def _weigh(self, of_click_V: _Floats, of_other_V: _Floats) -> _Floats:
        """What the rows of each value gain in sum; nothing if all of them together lose."""
        gains_V = self.clicks_V * of_click_V + (self.rows_V - self.clicks_V) * of_other_V
        return gains_V if gains_V.sum() > 0 else np.zeros(len(gains_V))
