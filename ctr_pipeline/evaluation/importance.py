"""Permutation importance: what is lost when one column is shuffled.

Breiman 2001, "Random forests", section 10, with AUC and logloss instead of the error rate, and the
mean of several shuffles. The loop over columns scores rows with the trained model and therefore
lives in `pipeline`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from ctr_pipeline.evaluation.auc import exact_auc
from ctr_pipeline.evaluation.likelihood import logloss_of_logits


class ImportanceRow(BaseModel):
    """What shuffling one feature costs.

    The standard deviations are those of one shuffle: they tell how much chance there is in a
    shuffle, not what other rows would say.

    Attributes:
        feature: Column name.
        auc_drop: AUC before minus AUC after, mean of the repeats; above 0: the feature helps to
            rank.
        logloss_rise: Logloss after minus logloss before, mean of the repeats; above 0: the feature
            helps to predict.
        auc_drop_std: Standard deviation of the repeats' drops (n - 1); None of one repeat.
        logloss_rise_std: The same of the rises.
        repeats: Shuffles.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    feature: str
    auc_drop: float
    logloss_rise: float
    auc_drop_std: float | None = None
    logloss_rise_std: float | None = None
    repeats: int = 1


def shuffled_orders(num_rows: int, seed: int) -> Iterator[npt.NDArray[np.int64]]:
    """Endless permutations of `range(num_rows)`; the i-th is a function of seed, i and num_rows."""
    index = 0
    while True:
        yield np.random.default_rng([seed, index]).permutation(num_rows)
        index += 1


def importance_of(
    feature: str,
    labels: npt.NDArray[Any],
    logits: npt.NDArray[Any],
    shuffled_logits: Sequence[npt.NDArray[Any]],
    weights: npt.NDArray[Any] | None = None,
) -> ImportanceRow:
    """Compares the logits of the rows as they are with those after `feature` was shuffled.

    Args:
        feature: Column name.
        labels: [N] zeros and ones.
        logits: [N] of the rows as they are.
        shuffled_logits: One or more [N], each of the same rows with the feature's values permuted.
        weights: [N], 0 or more; None: all rows count alike.

    Raises:
        DataError: Only one class.
        ValueError: No rows or no shuffle, labels other than 0 and 1, or lengths that differ.
        TrainingError: Logits that are not finite.
    """
    if not shuffled_logits:
        raise ValueError("importance needs one shuffle or more")
    aucs = np.array(
        [exact_auc(labels, scores, weights=weights) for scores in (logits, *shuffled_logits)]
    )
    losses = np.array(
        [logloss_of_logits(labels, scores, weights) for scores in (logits, *shuffled_logits)]
    )
    auc_drop, auc_drop_std = _mean_and_spread(aucs[0] - aucs[1:])
    logloss_rise, logloss_rise_std = _mean_and_spread(losses[1:] - losses[0])
    return ImportanceRow(
        feature=feature,
        auc_drop=auc_drop,
        logloss_rise=logloss_rise,
        auc_drop_std=auc_drop_std,
        logloss_rise_std=logloss_rise_std,
        repeats=len(shuffled_logits),
    )


def _mean_and_spread(values: npt.NDArray[np.float64]) -> tuple[float, float | None]:
    return float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else None
