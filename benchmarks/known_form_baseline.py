"""The known-form baseline: a learner that knows how a generated set was made, but for its ids.

It is given the form of the model, the columns that act in pairs, the curves of the numbers, the
click rate, and the distribution that effects and factors were drawn from; it has to learn these
from the training clicks, as every model has to. It takes their most probable values (L-BFGS, from
the true ones, so that no local optimum is in the way) and averages the probability of a test row
over what is left unknown: normal with the inverse of the diagonal of the second derivatives as
variance (Laplace's approximation; MacKay, "The evidence framework applied to classification
networks", 1992). No learner that knows less can be expected to do better.
"""

from dataclasses import dataclass

import numpy as np
from generated_sets import Floats, GeneratedSet, Ints, Recipe
from scipy.optimize import minimize

from ctr_pipeline.apps.sample.planted_model import sigmoid
from ctr_pipeline.apps.sample.reference_losses import integrate_normal

_ITERATIONS = 200


@dataclass(frozen=True)
class _Effects:
    """Effects of the ids: a vector for each column, and factors for columns that act in pairs.

    Attributes:
        main: [F], each [V].
        factors: [A, K], each [V].
    """

    main: list[Floats]
    factors: list[list[Floats]]

    def flat(self) -> Floats:
        """All of them, one after the other."""
        return np.concatenate([*self.main, *(u_V for column in self.factors for u_V in column)])

    def like(self, flat: Floats) -> "_Effects":
        """The given numbers in the shapes of this one."""
        sizes = [*map(len, self.main), *(len(u_V) for column in self.factors for u_V in column)]
        parts = iter(np.split(flat, np.cumsum(sizes)[:-1]))
        return _Effects(
            [next(parts) for _ in self.main],
            [[next(parts) for _ in column] for column in self.factors],
        )


def predict_known_form(generated: GeneratedSet) -> Floats:
    """Probabilities of the test rows, [B]."""
    recipe = generated.recipe
    num_train, size = len(generated.train), recipe.known_logits_B.size
    train = recipe.rows(slice(0, num_train))
    clicks_B = generated.train["click"].to_numpy(dtype=np.float64)
    truth = _Effects(recipe.main, recipe.factors)
    precisions = _Effects(
        [np.full_like(w_V, recipe.main_deviation**-2) for w_V in recipe.main],
        [
            [np.full_like(u_V, recipe.factor_deviation**-2) for u_V in u_KV]
            for u_KV in recipe.factors
        ],
    ).flat()

    def loss(flat: Floats) -> tuple[float, Floats]:
        logits_B, partners = _logits(train, truth.like(flat))
        errors_B = sigmoid(logits_B) - clicks_B
        gradient = _sums(train, truth, errors_B, [[errors_B * s_B for s_B in s] for s in partners])
        value = np.logaddexp(0.0, logits_B).sum() - clicks_B @ logits_B
        value += 0.5 * float(precisions @ flat**2)
        return float(value), gradient + precisions * flat

    found = minimize(
        loss, truth.flat(), jac=True, method="L-BFGS-B", options={"maxiter": _ITERATIONS}
    )
    effects = truth.like(found.x)
    logits_B, partners = _logits(train, effects)
    curvature_B = sigmoid(logits_B) * sigmoid(-logits_B)
    seconds = [[curvature_B * s_B**2 for s_B in s] for s in partners]
    variances = truth.like(1.0 / (precisions + _sums(train, truth, curvature_B, seconds)))
    test = recipe.rows(slice(size - len(generated.test), size))
    means_B, partners = _logits(test, effects)
    variances_B = np.zeros_like(means_B)
    for ids_B, variance_V in zip(test.ids_FB, variances.main, strict=True):
        variances_B += variance_V[ids_B]
    for ids_B, variance_KV, s_KB in zip(test.ids_FB, variances.factors, partners, strict=False):
        for variance_V, s_B in zip(variance_KV, s_KB, strict=True):
            variances_B += variance_V[ids_B] * s_B**2
    return integrate_normal(means_B, variances_B)


def _logits(rows: Recipe, effects: _Effects) -> tuple[Floats, list[list[Floats]]]:
    """Logit of each row, and for each factor of its ids the sum of those it is multiplied by."""
    logits_B = rows.known_logits_B.copy()
    for ids_B, w_V in zip(rows.ids_FB, effects.main, strict=True):
        logits_B += w_V[ids_B]
    gathered = [
        [u_V[ids_B] for u_V in u_KV]
        for ids_B, u_KV in zip(rows.ids_FB, effects.factors, strict=False)
    ]
    sums_KB = [np.sum(coordinate, axis=0) for coordinate in zip(*gathered, strict=True)]
    partners = [[s_B - u_B for s_B, u_B in zip(sums_KB, u_KB, strict=True)] for u_KB in gathered]
    for u_KB, s_KB in zip(gathered, partners, strict=True):
        for u_B, s_B in zip(u_KB, s_KB, strict=True):
            logits_B += 0.5 * u_B * s_B
    return logits_B, partners


def _sums(
    rows: Recipe, shapes: _Effects, of_main_B: Floats, of_factors: list[list[Floats]]
) -> Floats:
    """Values of rows summed by id, flat as the effects."""

    def by_id(ids_B: Ints, values_B: Floats, effects_V: Floats) -> Floats:
        return np.bincount(ids_B, weights=values_B, minlength=len(effects_V))

    return _Effects(
        [by_id(ids_B, of_main_B, w_V) for ids_B, w_V in zip(rows.ids_FB, shapes.main, strict=True)],
        [
            [by_id(ids_B, values_B, u_V) for values_B, u_V in zip(values_KB, u_KV, strict=True)]
            for ids_B, values_KB, u_KV in zip(rows.ids_FB, of_factors, shapes.factors, strict=False)
        ],
    ).flat()
