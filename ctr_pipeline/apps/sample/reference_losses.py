"""What the best possible predictions on the test rows would score.

*Bayes*: the true probability. *Learnable floor*: what the true weights predict when those of ids
that no training row shows are unknown and integrated out over their prior,

    q = E[sigmoid(m + sqrt(v) Z)],  Z standard normal,

where m is the logit of everything known and v the variance of the unknown part. The weight of an
unseen id is exactly normal with mean 0, so v is the sum of the unseen ids' weight variances. An
unseen vector u with partner sum S over the known vectors adds |S|^2 Var(u), and a pair of unseen
ones K Var(u) Var(u'): moments matched, which is exact for a single unseen vector. The expectation
is a Gauss-Hermite quadrature (Abramowitz and Stegun 25.4.46). Averaging in probability, not in
logit, pulls q towards one half, as it must.

Every "expected" loss takes the mean over labels given the rows, so the labels add no noise to it; a
"realized" one takes the labels of the file, as a model's own metrics do.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ctr_pipeline.apps.sample.counter_random import Float64s
from ctr_pipeline.apps.sample.criteo_columns import CATEGORY_COLUMNS, NUM_CATEGORIES
from ctr_pipeline.apps.sample.planted_model import (
    MISSING,
    Draw,
    PlantedModel,
    sigmoid,
    weight_deviations,
)

_NODES, _NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(24)
_NODE_WEIGHTS = _NODE_WEIGHTS / _NODE_WEIGHTS.sum()


class SeenIds:
    """Which ids the training rows have shown: one byte for each possible id, 34 MB in all."""

    def __init__(self) -> None:
        self._seen = [np.zeros(column.num_values, dtype=np.bool_) for column in CATEGORY_COLUMNS]

    def add(self, draw: Draw) -> None:
        """Marks the ids of training rows."""
        for field, seen in enumerate(self._seen):
            ids_B = draw.ids_FB[field]
            seen[ids_B[ids_B != MISSING]] = True

    def find_unseen(self, field: int, ids_B: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which cells hold an id that no training row showed; an empty cell does not."""
        unseen_B: NDArray[np.bool_] = (ids_B != MISSING) & ~self._seen[field][ids_B]
        return unseen_B


@dataclass(frozen=True)
class FloorPredictions:
    """The learnable floor on some rows.

    Attributes:
        probabilities_B: Best predictions without the weights of unseen ids.
        has_unseen_B: Whether the row holds an id that no training row showed.
    """

    probabilities_B: Float64s
    has_unseen_B: NDArray[np.bool_]


def integrate_normal(means_B: Float64s, variances_B: Float64s) -> Float64s:
    """E[sigmoid(N(mean, variance))], [B], to about 1e-8 for variances up to 4."""
    deviations_B = np.sqrt(variances_B)
    result_B = np.zeros_like(means_B)
    for node, weight in zip(_NODES, _NODE_WEIGHTS, strict=True):
        result_B += weight * sigmoid(means_B + deviations_B * node)
    return result_B


def predict_floor(model: PlantedModel, draw: Draw, seen: SeenIds) -> FloorPredictions:
    """Predictions that know all but the weights and vectors of unseen ids."""
    means_B = model.context_logits(draw)
    variances_B = np.zeros_like(means_B)
    has_unseen_B = np.zeros(means_B.size, dtype=np.bool_)
    latent_size = model.vectors(0, np.zeros(1, dtype=np.int64)).shape[1]
    sums_BK = np.zeros((means_B.size, latent_size))
    squares_B = np.zeros_like(means_B)
    unseen_vector_variance_B = np.zeros_like(means_B)
    unseen_vector_variance_squares_B = np.zeros_like(means_B)
    for field in range(NUM_CATEGORIES):
        column, ids_B = CATEGORY_COLUMNS[field], draw.ids_FB[field]
        unseen_B = seen.find_unseen(field, ids_B)
        has_unseen_B |= unseen_B
        means_B += np.where(unseen_B, 0.0, model.weights(field, ids_B))
        variances_B[unseen_B] += weight_deviations(column, ids_B[unseen_B]) ** 2
        if not model.has_vectors(field):
            continue
        vectors_BK = np.where(unseen_B[:, None], 0.0, model.vectors(field, ids_B))
        sums_BK += vectors_BK
        squares_B += np.einsum("bk,bk->b", vectors_BK, vectors_BK)
        variance_B = np.where(unseen_B, model.vector_variances(field, ids_B), 0.0)
        unseen_vector_variance_B += variance_B
        unseen_vector_variance_squares_B += variance_B**2
    known_squares_B = np.einsum("bk,bk->b", sums_BK, sums_BK)
    means_B += 0.5 * (known_squares_B - squares_B)
    variances_B += known_squares_B * unseen_vector_variance_B
    pairs_B = 0.5 * (unseen_vector_variance_B**2 - unseen_vector_variance_squares_B)
    variances_B += latent_size * pairs_B
    return FloorPredictions(integrate_normal(means_B, variances_B), has_unseen_B)


def cross_entropy(targets_B: Float64s, probabilities_B: Float64s) -> float:
    """Mean logloss in nats of predictions, for labels 0 and 1 or for their expectations."""
    return float(
        -np.mean(
            targets_B * np.log(probabilities_B) + (1.0 - targets_B) * np.log1p(-probabilities_B)
        )
    )


def ranking_quality(targets_B: Float64s, scores_B: Float64s) -> float:
    """AUC for labels 0 and 1, or for their expectations; scores are taken to have no ties.

    A row of expectation p counts as p of a click and 1 - p of none; the pair of a row with
    itself is left out.

    Returns:
        NaN when all targets are 0 or all are 1.
    """
    targets_B = targets_B[np.argsort(scores_B, kind="stable")]
    non_clicks_B = 1.0 - targets_B
    before_B = np.cumsum(non_clicks_B) - non_clicks_B
    pairs = targets_B.sum() * non_clicks_B.sum() - float(targets_B @ non_clicks_B)
    return float(targets_B @ before_B / pairs) if pairs > 0 else float("nan")


def best_additive_loss(probabilities_B: Float64s, additive_B: Float64s) -> float:
    """Expected logloss of the true main effects alone, with the best slope and intercept.

    Interactions average out to 0 given any one column, so a model of main effects alone can do no
    more than rescale the true ones. Newton's method on two parameters; the loss is convex.
    """
    slope, intercept = 1.0, 0.0
    for _ in range(25):
        predictions_B = sigmoid(slope * additive_B + intercept)
        errors_B = predictions_B - probabilities_B
        curvature_B = predictions_B * (1.0 - predictions_B)
        gradient = np.array([errors_B @ additive_B, errors_B.sum()])
        mixed = curvature_B @ additive_B
        hessian = np.array([[curvature_B @ additive_B**2, mixed], [mixed, curvature_B.sum()]])
        step_slope, step_intercept = np.linalg.solve(hessian, gradient)
        slope, intercept = slope - float(step_slope), intercept - float(step_intercept)
        if max(abs(step_slope), abs(step_intercept)) < 1e-10:
            break
    return cross_entropy(probabilities_B, sigmoid(slope * additive_B + intercept))
