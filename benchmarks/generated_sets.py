"""Sets of rows unlike Criteo's, from planted models, with the best loss that can be learned.

A row's click follows main effects of its ids, a factorization machine over the ids of the first
columns (each pair of them acts by the inner product of hidden factors), and a smooth effect of each
number; a missing number has an effect of its own. A set is a pure function of its kind and seed.
"""

from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ctr_pipeline.apps.sample.counter_random import derive_key, normal, uniform
from ctr_pipeline.apps.sample.planted_model import sigmoid
from ctr_pipeline.apps.sample.reference_losses import best_additive_loss, cross_entropy

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_FACTORS = 2
_MISSING_SHARE = 0.1
_MAIN_DEVIATION = 1.0
"""Deviation of the logit by main effects and numbers together."""
_PAIR_DEVIATION = 0.5
_ZIPF = 1.05


@dataclass(frozen=True)
class Kind:
    """A kind of set.

    Attributes:
        name: Of the table's line.
        vocabularies: Ids of each column of texts.
        num_numbers: Columns of numbers, a tenth of each missing.
        num_acting: The first so many columns act in pairs as well.
        click_rate: Of all rows.
        num_rows: Of training, validation and test together; None: as many as asked for.
    """

    name: str
    vocabularies: tuple[int, ...]
    num_numbers: int
    num_acting: int
    click_rate: float
    num_rows: int | None = None


KINDS = (
    Kind("few columns", (5_000, 500, 50, 20), 2, 3, 0.2),
    Kind("many columns", (50, 100, 200, 20, 10, 5) * 10, 20, 6, 0.2),
    Kind("low click rate", (500, 200, 100, 50, 50, 20, 20, 10, 10, 5), 4, 4, 0.005),
    Kind("few rows", (100, 50, 50, 20, 20, 10, 10, 5), 4, 3, 0.2, num_rows=20_000),
)


@dataclass(frozen=True)
class Recipe:
    """How rows were made.

    Attributes:
        ids_FB: Of each column of texts.
        known_logits_B: What numbers and click rate add to the logits.
        main: True effects of ids, [F], each [V].
        factors: True factors of ids of the columns that act in pairs, [A, K], each [V].
        main_deviation: Of the normal distribution of the effects.
        factor_deviation: Of that of the factors.
    """

    ids_FB: list[Ints]
    known_logits_B: Floats
    main: list[Floats]
    factors: list[list[Floats]]
    main_deviation: float
    factor_deviation: float

    def rows(self, which: slice) -> "Recipe":
        """The same for some of the rows."""
        ids_FB = [ids_B[which] for ids_B in self.ids_FB]
        return replace(self, ids_FB=ids_FB, known_logits_B=self.known_logits_B[which])


@dataclass(frozen=True)
class GeneratedSet:
    """Rows in order, the last tenths of which validate and test.

    Attributes:
        train: Columns `click`, `c0` …, `n0` ….
        valid: The same.
        test: The same.
        probabilities_B: Of the test rows' clicks, true ones.
        floor_B: The same without what ids do that no training row shows.
        main_logits_B: True main effects of the test rows, of ids and numbers.
        recipe: Of all rows, in order.
    """

    train: pd.DataFrame
    valid: pd.DataFrame
    test: pd.DataFrame
    probabilities_B: Floats
    floor_B: Floats
    main_logits_B: Floats
    recipe: Recipe

    def losses(self, predicted_B: Floats) -> dict[str, float]:
        """Logloss of predictions of the test rows beside the best ones, expected over labels."""
        constant = np.full_like(self.probabilities_B, self.train["click"].mean())
        sides = {
            "ours": predicted_B,
            "floor": self.floor_B,
            "bayes": self.probabilities_B,
            "constant": constant,
        }
        losses = {name: cross_entropy(self.probabilities_B, side) for name, side in sides.items()}
        return losses | {"main": best_additive_loss(self.probabilities_B, self.main_logits_B)}


def _ids(counters: NDArray[np.uint64], vocabulary: int, key: int) -> Ints:
    """Ids by a power law, the most frequent first."""
    last = (vocabulary + 1.0) ** (1.0 - _ZIPF)
    spots = 1.0 + uniform(counters, key) * (last - 1.0)
    ids_B = np.minimum(spots ** (1.0 / (1.0 - _ZIPF)) - 1.0, vocabulary - 1.0)
    return ids_B.astype(np.int64)


def _scaled(logits_B: Floats, deviation: float) -> float:
    """The factor that gives logits this standard deviation."""
    spread = float(logits_B.std())
    return deviation / spread if spread > 0 else 0.0


def bias_of_rate(logits_B: Floats, click_rate: float) -> float:
    """What to add so that the mean probability is the click rate."""
    low, high = -30.0, 30.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if sigmoid(logits_B + middle).mean() < click_rate else (low, middle)
        )
    return (low + high) / 2


def _draw_effects(kind: Kind, seed: int) -> tuple[list[Floats], list[list[Floats]]]:
    """Effects of each column's ids, and factors of those of the columns that act in pairs."""
    tickets = [np.arange(vocabulary, dtype=np.uint64) for vocabulary in kind.vocabularies]
    effects_FV = [
        normal(ids_V, derive_key(seed, 2, column)) for column, ids_V in enumerate(tickets)
    ]
    factors_AKV = [
        [normal(ids_V, derive_key(seed, 3, column, k)) for k in range(_FACTORS)]
        for column, ids_V in enumerate(tickets[: kind.num_acting])
    ]
    return effects_FV, factors_AKV


def draw_set(kind: Kind, *, num_rows: int, seed: int) -> GeneratedSet:
    """The set of a kind; `num_rows` where the kind does not tell."""
    size = kind.num_rows or num_rows
    num_test = num_valid = size // 10
    num_train = size - num_valid - num_test
    counters = np.arange(size, dtype=np.uint64)
    ids_FB = [
        _ids(counters, vocabulary, derive_key(seed, 1, column))
        for column, vocabulary in enumerate(kind.vocabularies)
    ]
    seen_FB = [np.isin(ids_B, ids_B[:num_train]) for ids_B in ids_FB]
    effects_FV, factors_AKV = _draw_effects(kind, seed)
    main_B, known_main_B = np.zeros(size), np.zeros(size)
    for ids_B, effects_V, seen_B in zip(ids_FB, effects_FV, seen_FB, strict=True):
        main_B += effects_V[ids_B]
        known_main_B += effects_V[ids_B] * seen_B
    factors = [
        [factors_V[ids_B] for factors_V in factors_KV]
        for ids_B, factors_KV in zip(ids_FB, factors_AKV, strict=False)
    ]
    columns = {f"c{column}": [f"v{id_}" for id_ in ids_B] for column, ids_B in enumerate(ids_FB)}
    numbers: dict[str, Floats] = {}
    curves_B = np.zeros(size)
    for order in range(kind.num_numbers):
        z_B = normal(counters, derive_key(seed, 4, order))
        is_missing_B = uniform(counters, derive_key(seed, 5, order)) < _MISSING_SHARE
        effect_B = np.where(is_missing_B, 0.5, np.sin(z_B * (1 + order % 2)))
        curves_B += effect_B
        # Every other number has a heavy tail.
        values_B = np.round(np.exp(1 + 1.5 * z_B), 2) if order % 2 else z_B
        numbers[f"n{order}"] = np.where(is_missing_B, np.nan, values_B)
    main_B += curves_B
    known_main_B += curves_B
    pairs_B, known_pairs_B = np.zeros(size), np.zeros(size)
    for left, right in combinations(range(kind.num_acting), 2):
        product_B = sum(a * b for a, b in zip(factors[left], factors[right], strict=True))
        pairs_B += product_B
        known_pairs_B += product_B * (seen_FB[left] & seen_FB[right])
    main, pair = _scaled(main_B, _MAIN_DEVIATION), _scaled(pairs_B, _PAIR_DEVIATION)
    logits_B = main * main_B + pair * pairs_B
    bias = bias_of_rate(logits_B, kind.click_rate)
    probabilities_B = sigmoid(logits_B + bias)
    floor_B = sigmoid(main * known_main_B + pair * known_pairs_B + bias)
    clicks_B = uniform(counters, derive_key(seed, 7)) < probabilities_B
    rows = pd.DataFrame({"click": clicks_B.astype(np.int64), **columns, **numbers})
    return GeneratedSet(
        train=rows[:num_train],
        valid=rows[num_train : num_train + num_valid],
        test=rows[num_train + num_valid :],
        probabilities_B=probabilities_B[num_train + num_valid :],
        floor_B=floor_B[num_train + num_valid :],
        main_logits_B=main * main_B[num_train + num_valid :],
        recipe=Recipe(
            ids_FB=ids_FB,
            known_logits_B=main * curves_B + bias,
            main=[main * effects_V for effects_V in effects_FV],
            factors=[[np.sqrt(pair) * u_V for u_V in u_KV] for u_KV in factors_AKV],
            main_deviation=main,
            factor_deviation=float(np.sqrt(pair)),
        ),
    )
