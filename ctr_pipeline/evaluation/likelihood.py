"""How likely the labels are under the predictions: logloss, its baseline, normalised entropy.

All in nats and in float64.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

PROBABILITY_EPSILON = float(np.finfo(np.float64).eps)
"""Probabilities are clipped to [epsilon, 1 - epsilon] before a logarithm, as scikit-learn does."""


def probabilities_of(logits: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The sigmoid of the logits in float64, without overflow for any finite logit."""
    wide = logits.astype(np.float64, copy=False)
    small = np.exp(-np.abs(wide))
    probabilities: npt.NDArray[np.float64] = np.where(wide >= 0, 1.0, small) / (1.0 + small)
    return probabilities


def row_losses(labels: npt.NDArray[Any], logits: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """`-log p(label)` of each row, straight from its logit: log(1 + exp(∓logit)).

    Exact to rounding for any finite logit; no probability is formed, nothing is clipped.
    """
    wide = logits.astype(np.float64, copy=False)
    losses: npt.NDArray[np.float64] = np.logaddexp(0.0, np.where(labels == 1, -wide, wide))
    return losses


def logloss_of_logits(
    labels: npt.NDArray[Any], logits: npt.NDArray[Any], weights: npt.NDArray[Any] | None = None
) -> float:
    """Mean negative log likelihood, nats a row; weighted if there are weights [N]."""
    return mean_of(row_losses(labels, logits), weights)


def mean_of(values: npt.NDArray[Any], weights: npt.NDArray[Any] | None) -> float:
    """Mean of values [N]; weighted if there are weights [N], whose sum is above 0."""
    if weights is None:
        return float(np.mean(values))
    return float(np.sum(values * weights) / np.sum(weights))


def constant_logloss(label_rate: float, predicted_rate: float) -> float:
    """Logloss of rows with `label_rate` if all are predicted `predicted_rate` (clipped)."""
    clipped = min(max(predicted_rate, PROBABILITY_EPSILON), 1 - PROBABILITY_EPSILON)
    return float(-label_rate * np.log(clipped) - (1 - label_rate) * np.log1p(-clipped))


def normalized_entropy(logloss: float, label_rate: float) -> float:
    """Logloss over the entropy of the rows' own label rate; below 1 is better than that constant.

    He et al. 2014, "Practical lessons from predicting clicks on ads at Facebook", equation 1.
    """
    return logloss / constant_logloss(label_rate, label_rate)
