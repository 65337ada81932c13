"""A click model whose every weight is a pure function of (seed, column, value).

    logit = intercept + drift(t) + sum_j g_j(number_j) + sum_f w_f(id_f)
            + sum_{f<g} <v_f(id_f), v_g(id_g)>

The last term is a factorization machine (Rendle 2010, equation 1) over the columns of few values,
with vectors centred by the frequencies of their ids: given one column, its expectation is 0, so no
additive model can express it. Columns are drawn independently of each other, except that some are
missing together and that the six largest take the same quantile in most rows, as columns that
describe one thing do; none of these interacts. `t` runs from 0 at the first row to 1 at the last.

Axes: B rows of a block, F categorical columns, N integer columns, K latent coordinates.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ctr_pipeline.apps.sample.counter_random import (
    Float64s,
    UInt64s,
    derive_key,
    normal,
    uniform,
)
from ctr_pipeline.apps.sample.criteo_columns import (
    BASE_RATE,
    CATEGORY_COLUMNS,
    MISSING_FRACTIONS,
    NUM_CATEGORIES,
    NUM_NUMBERS,
    NUMBER_COLUMNS,
    CategoryColumn,
    SampledNumbers,
)

Int64s = NDArray[np.int64]

MISSING = -1
"""The id of an empty cell; its weight and its vector are 0."""

_LATENT_SIZE = 3
_LARGEST_TABLE = 20_000
_PILOT_ROWS = 50_000
_NUM_ERAS = 20
_LARGEST_CHURN = 0.06
_RANK_SCALE = 30.0
_TAIL_EFFECT = 0.07
_NUMBER_CLIP = 2.5
_LEADING_FIELD = 2
_TIED_FRACTION = 0.7

# The purpose of a random stream; part of its key.
_IDS, _CHURN, _WEIGHTS, _VECTORS, _NUMBERS, _SIGNS, _EMPTY, _LABELS, _TIES, _PILOT = range(10)


@dataclass(frozen=True)
class Draw:
    """Columns of consecutive rows.

    Attributes:
        ids_FB: int64 ids in [0, number of values), -1 where empty.
        numbers_NB: int64; meaningless where empty.
        number_missing_NB: bool.
        time_B: float64 in [0, 1), the place in the order of rows.
    """

    ids_FB: Int64s
    numbers_NB: Int64s
    number_missing_NB: NDArray[np.bool_]
    time_B: Float64s


def id_frequencies(column: CategoryColumn) -> Float64s:
    """Probability of each id of `column` when nothing drifts, [number of values]."""
    edges = np.arange(column.num_values + 1) + 1.0 + column.flatness
    power = 1.0 - column.exponent
    cumulative: Float64s = (edges**power - edges[0] ** power) / (
        edges[-1] ** power - edges[0] ** power
    )
    return np.diff(cumulative)


def weight_deviations(column: CategoryColumn, ids: Int64s) -> Float64s:
    """Standard deviation of the weights of `ids`: rare ids matter less, and never nothing."""
    falling: Float64s = column.effect / np.sqrt(1.0 + ids / _RANK_SCALE)
    return np.maximum(falling, min(_TAIL_EFFECT, column.effect))


class PlantedModel:
    """Draws rows and knows their true logits.

    Args:
        seed: Seed of the weights and the rows.
        num_rows: Rows from the first to the last moment of the drift.
    """

    def __init__(self, *, seed: int, num_rows: int) -> None:
        self._seed = seed
        self._num_rows = num_rows
        self._weight_tables = [
            self._compute_weights(field, np.arange(column.num_values))
            if column.num_values <= _LARGEST_TABLE
            else None
            for field, column in enumerate(CATEGORY_COLUMNS)
        ]
        self._vector_scales = np.zeros(NUM_CATEGORIES)
        self._vector_tables = [self._compute_vectors(field) for field in range(NUM_CATEGORIES)]
        self._number_signs = np.sign(self._standard_normal(_SIGNS, 3 * NUM_NUMBERS)).reshape(
            3, NUM_NUMBERS
        )
        self._intercept = 0.0
        self._intercept = self._solve_intercept()

    def _key(self, purpose: int, column: int = 0) -> int:
        return derive_key(self._seed, purpose, column)

    def _standard_normal(self, purpose: int, count: int) -> Float64s:
        return normal(np.arange(count, dtype=np.uint64), self._key(purpose))

    def _compute_weights(self, field: int, ids: Int64s) -> Float64s:
        weights = normal(ids.astype(np.uint64), self._key(_WEIGHTS, field))
        weights *= weight_deviations(CATEGORY_COLUMNS[field], ids)
        return weights

    def _compute_vectors(self, field: int) -> Float64s | None:
        """Latent vectors [number of values, K], centred by the ids' frequencies."""
        column = CATEGORY_COLUMNS[field]
        if column.interaction == 0:
            return None
        counters = np.arange(column.num_values * _LATENT_SIZE, dtype=np.uint64)
        vectors_VK = normal(counters, self._key(_VECTORS, field)).reshape(-1, _LATENT_SIZE)
        vectors_VK /= np.sqrt(1.0 + np.arange(column.num_values) / _RANK_SCALE)[:, None]
        frequencies_V = id_frequencies(column)
        vectors_VK -= frequencies_V @ vectors_VK
        # Rescaled after centring, so that one very frequent id does not swallow the variance.
        spread = math.sqrt(float((frequencies_V @ vectors_VK**2).mean()))
        self._vector_scales[field] = column.interaction / spread
        vectors_VK *= self._vector_scales[field]
        return vectors_VK

    def draw(self, first_row: int, num_rows: int) -> Draw:
        """Columns of rows [first_row, first_row + num_rows)."""
        rows = np.arange(first_row, first_row + num_rows, dtype=np.uint64)
        return self._draw(rows, rows / max(self._num_rows, 1), purpose_offset=0)

    def _draw(self, rows: UInt64s, time_B: Float64s, *, purpose_offset: int) -> Draw:
        def key(purpose: int, column: int) -> int:
            return derive_key(self._seed, purpose_offset + purpose, column)

        empty = {
            group: uniform(rows, key(_EMPTY, order)) < fraction
            for order, (group, fraction) in enumerate(MISSING_FRACTIONS.items())
        }
        ids_FB = np.empty((NUM_CATEGORIES, rows.size), dtype=np.int64)
        leading_B = uniform(rows, key(_IDS, _LEADING_FIELD))
        tied_B = uniform(rows, key(_TIES, 0)) < _TIED_FRACTION
        for field, category in enumerate(CATEGORY_COLUMNS):
            uniform_B = uniform(rows, key(_IDS, field))
            if category.missing_group == CATEGORY_COLUMNS[_LEADING_FIELD].missing_group:
                uniform_B = np.where(tied_B, leading_B, uniform_B)
            ids_B = _inverse_frequencies(category, uniform_B)
            churned = uniform(rows, key(_CHURN, field)) < _LARGEST_CHURN * time_B
            ids_B[churned] = _drifted(category, ids_B[churned], time_B[churned])
            ids_B[empty[category.missing_group]] = MISSING
            ids_FB[field] = ids_B
        numbers_NB = np.empty((NUM_NUMBERS, rows.size), dtype=np.int64)
        number_missing_NB = np.empty((NUM_NUMBERS, rows.size), dtype=np.bool_)
        for order, number in enumerate(NUMBER_COLUMNS):
            numbers_NB[order] = _inverse_log_logistic(number, uniform(rows, key(_NUMBERS, order)))
            number_missing_NB[order] = empty[number.missing_group]
        return Draw(ids_FB, numbers_NB, number_missing_NB, time_B)

    def draw_labels(self, first_row: int, probabilities_B: Float64s) -> NDArray[np.int8]:
        """0 or 1 for consecutive rows from `first_row`, clicks with their true probability."""
        rows = np.arange(first_row, first_row + probabilities_B.size, dtype=np.uint64)
        return (uniform(rows, self._key(_LABELS)) < probabilities_B).astype(np.int8)

    def context_logits(self, draw: Draw) -> Float64s:
        """What the intercept, the drift and the numbers give, [B]."""
        logits_B = 0.08 * np.sin(2.0 * np.pi * 3.0 * draw.time_B) + 0.06 * (draw.time_B - 0.5)
        logits_B += self._intercept
        for order, column in enumerate(NUMBER_COLUMNS):
            slope, bend, absent = self._number_signs[:, order] * column.effect
            present_B = _standardized(column, draw.numbers_NB[order])
            present_B = slope * present_B + 0.5 * bend * (present_B**2 - 1.0)
            logits_B += np.where(draw.number_missing_NB[order], absent, present_B)
        return logits_B

    def weights(self, field: int, ids_B: Int64s) -> Float64s:
        """Weights of the ids of one categorical column, [B]; 0 where empty."""
        table = self._weight_tables[field]
        # Index -1 (empty) reads the last row of the table, which is then overwritten.
        weights_B = self._compute_weights(field, ids_B) if table is None else table[ids_B]
        weights_B[ids_B == MISSING] = 0.0
        return weights_B

    def has_vectors(self, field: int) -> bool:
        """Whether the column takes part in interactions."""
        return self._vector_tables[field] is not None

    def vectors(self, field: int, ids_B: Int64s) -> Float64s:
        """Latent vectors of the ids of one column that has them, [B, K]; 0 where empty."""
        table = self._vector_tables[field]
        if table is None:
            return np.zeros((ids_B.size, _LATENT_SIZE))
        vectors_BK: Float64s = table[ids_B]
        vectors_BK[ids_B == MISSING] = 0.0
        return vectors_BK

    def vector_variances(self, field: int, ids_B: Int64s) -> Float64s:
        """Prior variance of one coordinate of an id's latent vector, [B]."""
        scale = float(self._vector_scales[field])
        return scale**2 / (1.0 + np.maximum(ids_B, 0) / _RANK_SCALE)

    def additive_and_interaction_logits(self, draw: Draw) -> tuple[Float64s, Float64s]:
        """The true logit's two parts, each [B]: all main effects, and the interactions."""
        additive_B = self.context_logits(draw)
        sums_BK = np.zeros((additive_B.size, _LATENT_SIZE))
        squares_B = np.zeros(additive_B.size)
        for field in range(NUM_CATEGORIES):
            additive_B += self.weights(field, draw.ids_FB[field])
            if self.has_vectors(field):
                vectors_BK = self.vectors(field, draw.ids_FB[field])
                sums_BK += vectors_BK
                squares_B += np.einsum("bk,bk->b", vectors_BK, vectors_BK)
        # Rendle 2010, lemma 3.1: all pairs in linear time.
        interaction_B = 0.5 * (np.einsum("bk,bk->b", sums_BK, sums_BK) - squares_B)
        return additive_B, interaction_B

    def _solve_intercept(self) -> float:
        """The intercept at which pilot rows, drawn apart, click at the base rate."""
        rows = np.arange(_PILOT_ROWS, dtype=np.uint64)
        pilot = self._draw(rows, rows / _PILOT_ROWS, purpose_offset=_PILOT)
        additive_B, interaction_B = self.additive_and_interaction_logits(pilot)
        logits_B = additive_B + interaction_B
        low, high = -20.0, 20.0
        for _ in range(50):
            middle = 0.5 * (low + high)
            if sigmoid(logits_B + middle).mean() < BASE_RATE:
                low = middle
            else:
                high = middle
        return 0.5 * (low + high)


def sigmoid(logits: Float64s) -> Float64s:
    """1 / (1 + exp(-logit)); logits here are far from overflow."""
    result: Float64s = 1.0 / (1.0 + np.exp(-logits))
    return result


def _inverse_frequencies(column: CategoryColumn, uniform_B: Float64s) -> Int64s:
    """Ids whose frequencies are `id_frequencies(column)`: inverts the cumulative power law."""
    power = 1.0 - column.exponent
    start = 1.0 + column.flatness
    first, last = start**power, (start + column.num_values) ** power
    places_B = (first + uniform_B * (last - first)) ** (1.0 / power) - start
    ids_B: Int64s = places_B.astype(np.int64)
    np.clip(ids_B, 0, column.num_values - 1, out=ids_B)
    return ids_B


def _drifted(column: CategoryColumn, ids: Int64s, times: Float64s) -> Int64s:
    """Where popularity has moved: to the next id, or in a large column to the era's own ids."""
    if column.num_values < 1000:
        shifted: Int64s = ids + 1
    else:
        era_starts = np.floor(times * _NUM_ERAS) * (column.num_values // (2 * _NUM_ERAS))
        shifted = ids + era_starts.astype(np.int64)
    shifted %= column.num_values
    return shifted


def _inverse_log_logistic(column: SampledNumbers, uniform_B: Float64s) -> Int64s:
    odds_B = uniform_B / (1.0 - uniform_B)
    values_B = np.minimum(column.median * odds_B**column.log_scale, float(column.maximum))
    return values_B.astype(np.int64) + column.offset


def _standardized(column: SampledNumbers, values_B: Int64s) -> Float64s:
    """The logarithm of the integer that a model sees, in its own deviations, clipped."""
    logs_B = np.log(values_B - column.offset + 0.5)
    deviation = max(column.log_scale * math.pi / math.sqrt(3.0), 0.5)
    centred_B = (logs_B - math.log(column.median + 0.5)) / deviation
    result: Float64s = np.clip(centred_B, -_NUMBER_CLIP, _NUMBER_CLIP)
    return result
