"""Permutation importance: what is lost when one column is shuffled.

Breiman 2001, "Random forests", section 10, with AUC and logloss instead of the error rate. The loop
over columns scores rows with the trained model and therefore lives in `pipeline`.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from ctr_pipeline.evaluation.likelihood import logloss_of_logits
from ctr_pipeline.evaluation.ranking import exact_auc


class ImportanceRow(BaseModel):
    """What shuffling one feature costs.

    Attributes:
        feature: Column name.
        auc_drop: AUC before minus AUC after; above 0: the feature helps to rank.
        logloss_rise: Logloss after minus logloss before; above 0: the feature helps to predict.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    feature: str
    auc_drop: float
    logloss_rise: float


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
    shuffled_logits: npt.NDArray[Any],
    weights: npt.NDArray[Any] | None = None,
) -> ImportanceRow:
    """Compares the logits of the rows as they are with those after `feature` was shuffled.

    Args:
        feature: Column name.
        labels: [N] zeros and ones.
        logits: [N] of the rows as they are.
        shuffled_logits: [N] of the same rows with the feature's values permuted.
        weights: [N], 0 or more; None: all rows count alike.

    Raises:
        DataError: Only one class.
        ValueError: No rows, labels other than 0 and 1, or lengths that differ.
        TrainingError: Logits that are not finite.
    """
    auc_before, auc_after = (
        exact_auc(labels, scores, weights=weights) for scores in (logits, shuffled_logits)
    )
    before, after = (
        logloss_of_logits(labels, scores, weights) for scores in (logits, shuffled_logits)
    )
    return ImportanceRow(
        feature=feature, auc_drop=auc_before - auc_after, logloss_rise=after - before
    )
