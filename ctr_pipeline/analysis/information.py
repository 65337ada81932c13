"""What a column alone says about the click: information value and mutual information.

Both rest on a table of smoothed click rates, one for each group of rows (a value, an interval of
numbers, missing), and on what that table says of a row that it has *not seen*: each row is left out
of the rate that judges it (Stone, Cross-Validatory Choice, J. Royal Statistical Society B 36
(1974)). The usual estimates judge the rows that they were made from, so a column that is different
in every row seems to know everything; here it knows nothing, exactly 0.

With p the overall click rate and a group of n rows and k clicks, a row with label y is judged by
q = (k - y + m p) / (n - 1 + m), a mean of m rows of the overall rate and the group's other rows
(Micci-Barreca, A Preprocessing Scheme for High-Cardinality Categorical Attributes, SIGKDD
Explorations 3 (2001), equation 3 with m as the strength). Then, over all rows:

- mutual information: the mean of log(q / p) over clicks and log((1 - q) / (1 - p)) over the others,
  in nats (Cover and Thomas, Elements of Information Theory, section 2.3, with q for the unknown
  rates): how far the table lowers the logloss of the constant p.
- information value: the mean of logit(q) - logit(p) over clicks less that over the others. With
  the rows' own rates it is the usual sum of (share of clicks - share of others) times the weight of
  evidence (Siddiqi, Credit Risk Scorecards (2006), chapter 6; Kullback's divergence J (1959)).

m is the one of `SMOOTHINGS` with the highest mutual information; if none makes it positive, the
column says nothing and both are 0.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ctr_pipeline.statistics import LabelInformation

SMOOTHINGS = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0)
"""Strengths that are tried, in rows of the overall click rate."""


@dataclass(frozen=True)
class Groups:
    """Groups of rows that are alike in a column; groups alike in rows and clicks are one entry.

    Attributes:
        num_rows: int64 [G], at least 1.
        num_clicks: int64 [G].
        multiplicity: int64 [G], groups with these rows and clicks.
    """

    num_rows: NDArray[np.int64]
    num_clicks: NDArray[np.int64]
    multiplicity: NDArray[np.int64]


@dataclass(frozen=True)
class LeftOutRates:
    """What a row of each group is judged by, left out itself: its q, as above.

    With several smoothings, arrays have an axis of these before that of the groups.

    Attributes:
        of_clicks_G: q of a click.
        not_of_clicks_G: 1 - q of a click.
        of_others_G: q of a row without a click.
        not_of_others_G: 1 - q of a row without a click.
    """

    of_clicks_G: NDArray[np.float64]
    not_of_clicks_G: NDArray[np.float64]
    of_others_G: NDArray[np.float64]
    not_of_others_G: NDArray[np.float64]

    def gains(self, base: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """How much less logloss a click of each group has than by the base rate, and another row.

        Args:
            base: The click rate of all rows.
        """
        return np.log(self.of_clicks_G / base), np.log(self.not_of_others_G / (1.0 - base))


def left_out_rates(
    num_rows_G: NDArray[np.float64],
    num_clicks_G: NDArray[np.float64],
    smoothing: float | NDArray[np.float64],
    base: float,
) -> LeftOutRates:
    """The rates by which the rows of groups are judged.

    Args:
        num_rows_G: Rows of each group, at least 1.
        num_clicks_G: Rows of label 1.
        smoothing: m, or several as [S, 1].
        base: The click rate of all rows.
    """
    num_others_G = num_rows_G - num_clicks_G
    judging_G = num_rows_G - 1.0 + smoothing
    # A group without clicks has no row to be judged as one, but its rate must stay a rate.
    return LeftOutRates(
        of_clicks_G=(np.maximum(num_clicks_G - 1.0, 0.0) + smoothing * base) / judging_G,
        not_of_clicks_G=(num_others_G + smoothing * (1.0 - base)) / judging_G,
        of_others_G=(num_clicks_G + smoothing * base) / judging_G,
        not_of_others_G=(np.maximum(num_others_G - 1.0, 0.0) + smoothing * (1.0 - base))
        / judging_G,
    )


def label_information(groups: Groups) -> LabelInformation | None:
    """What the groups say about the click.

    Returns:
        None if the rows have one label only: then there is nothing to know.
    """
    num_rows_G = groups.num_rows.astype(np.float64)
    num_clicks_G = groups.num_clicks.astype(np.float64)
    num_others_G = num_rows_G - num_clicks_G
    times_G = groups.multiplicity.astype(np.float64)
    # Counts are whole numbers far below 2^53, so these sums are exact in any order.
    num_rows = float(num_rows_G @ times_G)
    num_clicks = float(num_clicks_G @ times_G)
    num_others = num_rows - num_clicks
    if not num_clicks or not num_others:
        return None
    num_groups = int(groups.multiplicity.sum())
    base = num_clicks / num_rows
    best = LabelInformation(
        information_value=0.0, mutual_information=0.0, smoothing=None, num_groups=num_groups
    )
    for smoothing in SMOOTHINGS:
        rates = left_out_rates(num_rows_G, num_clicks_G, smoothing, base)
        of_click_G, of_other_G = rates.gains(base)
        gain = (
            _weighted_sum(of_click_G, num_clicks_G * times_G)
            + _weighted_sum(of_other_G, num_others_G * times_G)
        ) / num_rows
        if gain <= best.mutual_information:
            continue
        evidence_of_clicks = _weighted_sum(
            np.log(rates.of_clicks_G / rates.not_of_clicks_G), num_clicks_G * times_G
        )
        evidence_of_others = _weighted_sum(
            np.log(rates.of_others_G / rates.not_of_others_G), num_others_G * times_G
        )
        value = evidence_of_clicks / num_clicks - evidence_of_others / num_others
        best = LabelInformation(
            information_value=max(value, 0.0),
            mutual_information=gain,
            smoothing=smoothing,
            num_groups=num_groups,
        )
    return best


def _weighted_sum(values: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    """Rounded once, so that the order of the groups does not matter."""
    return math.fsum((values * weights).tolist())
