"""Whether whole numbers are ids or measures: by what they say, whatever they are called."""

import numpy as np
import pytest

from ctr_pipeline.analysis.information import Groups, label_information
from ctr_pipeline.analysis.whole_numbers import (
    Nature,
    has_uneven_frequencies,
    judge_whole_numbers,
)

ROWS = 20_000


def clicks(random, logits):
    chances = 1 / (1 + np.exp(1.5 + logits.mean() - logits))
    return (random.random(len(logits)) < chances).astype(float)


def ids(random, num_values, effect=0.8, size=ROWS):
    which = random.integers(0, num_values, size)
    return which, random.normal(0, effect, num_values)[which]


COLUMNS = {
    "500 ids from a million on": (lambda r: ids(r, 500), lambda v: v + 1_000_000, Nature.ID),
    "5,000 ids": (lambda r: ids(r, 5_000), lambda v: v + 1, Nature.ID),
    "20,000 ids of which most are rare": (lambda r: ids(r, 20_000), lambda v: v, Nature.ID),
    "40 codes": (lambda r: ids(r, 40), lambda v: 37 * v % 1009, Nature.ID),
    "age": (
        lambda r: (v := r.integers(15, 75, ROWS), 0.03 * v),
        lambda v: v,
        Nature.MEASURE,
    ),
    "price": (
        lambda r: (v := r.lognormal(5, 1.5, ROWS).astype(int), np.sin(3 * np.log1p(v))),
        lambda v: v,
        Nature.MEASURE,
    ),
    "different in almost every row": (
        lambda r: (v := r.integers(0, 10**6, ROWS), v / 5e5),
        lambda v: v,
        Nature.MEASURE,
    ),
    "counts": (
        lambda r: (v := r.poisson(r.gamma(1, 3, ROWS)), 1.0 * np.log1p(v)),
        lambda v: v,
        Nature.BOTH,
    ),
    "ids that say nothing": (lambda r: ids(r, 500, 0.0), lambda v: v, Nature.BOTH),
    # What zero says, and where large amounts begin, an order tells; each amount tells more.
    "amounts with effects of their own": (
        lambda r: (
            v := np.where(r.random(ROWS) < 0.8, 0, r.integers(1, 100, ROWS)),
            2.0 * (v > 50) + 1.0 * (v > 0) + r.normal(0, 1.2, 100)[v],
        ),
        lambda v: v * 114,
        Nature.BOTH,
    ),
}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("seed", range(3))
def test_nature(name, seed):
    draw, write, expected = COLUMNS[name]
    random = np.random.default_rng(seed)
    values, logits = draw(random)
    found = judge_whole_numbers(write(values).astype(float), clicks(random, logits))
    assert found.nature is expected


def test_single_values_explain_what_they_do_as_texts():
    random = np.random.default_rng(0)
    values, logits = ids(random, 300)
    labels = clicks(random, logits)
    found = judge_whole_numbers(values.astype(float), labels)
    rows, hits = np.bincount(values), np.bincount(values, labels).astype(int)
    known = label_information(Groups(rows, hits, np.ones_like(rows)))
    assert found.by_value == pytest.approx(known.share_explained(labels.mean()))
    assert (found.num_rows, found.num_values) == (ROWS, 300)


def test_chance_makes_no_ids():
    """Of columns that say nothing hardly one in a hundred is taken for what it is not."""
    natures = []
    for seed in range(200):
        random = np.random.default_rng(seed)
        values, _ = ids(random, (30, 300, 3_000)[seed % 3], size=5_000)
        labels = (random.random(5_000) < 0.1).astype(float)
        natures.append(judge_whole_numbers(values.astype(float), labels).nature)
    assert natures.count(Nature.ID) <= 2
    assert natures.count(Nature.MEASURE) <= 4


FREQUENCIES = {
    "ids": (lambda r: 37 * zipf(r, 300) % 1009, True),
    "ids by popularity": (lambda r: zipf(r, 300), False),
    "attributes of ids": (lambda r: r.integers(15, 75, 300)[zipf(r, 300)], True),
    "ids that are equally frequent": (lambda r: r.integers(0, 300, ROWS), False),
    "too few": (lambda r: 37 * zipf(r, 20) % 1009, False),
    "rare": (lambda r: r.integers(0, 9_000, ROWS), False),
    "age": (lambda r: np.clip(r.normal(40, 12, ROWS).astype(int), 15, 90), False),
    "age, often in tens": (
        lambda r: np.where(
            r.random(ROWS) < 0.3, r.integers(2, 8, ROWS) * 10, r.integers(15, 85, ROWS)
        ),
        False,
    ),
    "counts": (lambda r: r.poisson(r.gamma(1, 9, ROWS)), False),
    "price": (lambda r: r.lognormal(5, 1.5, ROWS).astype(int), False),
}


def zipf(random, num_values):
    chances = 1 / np.arange(1, num_values + 1)
    return random.choice(num_values, ROWS, p=chances / chances.sum())


@pytest.mark.parametrize("name", FREQUENCIES)
@pytest.mark.parametrize("seed", range(3))
def test_frequencies_of_ids_are_uneven(name, seed):
    draw, expected = FREQUENCIES[name]
    _, counts = np.unique(draw(np.random.default_rng(seed)), return_counts=True)
    assert has_uneven_frequencies(counts.astype(float)) is expected


@pytest.mark.parametrize("name", ["ids", "price"])
@pytest.mark.parametrize("rate", [0.0, 0.0002, 1.0])
def test_frequencies_decide_where_clicks_tell_nothing(name, rate):
    draw, expected = FREQUENCIES[name]
    random = np.random.default_rng(0)
    labels = (random.random(ROWS) < rate).astype(float)
    found = judge_whole_numbers(draw(random).astype(float), labels)
    assert found.nature is Nature.BOTH
    assert found.could_be_ids is expected


def test_missing_values_and_labels_are_left_out():
    random = np.random.default_rng(0)
    values, logits = ids(random, 300)
    labels = clicks(random, logits)
    expected = judge_whole_numbers(values.astype(float), labels)
    gaps = np.full(100, np.nan)
    found = judge_whole_numbers(
        np.concatenate([values, gaps, np.arange(100)]), np.concatenate([labels, gaps * 0 + 1, gaps])
    )
    assert found == expected


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([1, 2.5, 3], [0, 1, 0]),
        ([1, np.inf, 3], [0, 1, 0]),
        ([1, 2, 1], [0, 1, 0]),
        ([np.nan], [1]),
        ([], []),
    ],
    ids=["fraction", "infinite", "two values", "missing", "none"],
)
def test_whole_numbers_are_not_judged_with_nothing_to_decide(values, labels):
    assert judge_whole_numbers(np.array(values, float), np.array(labels, float)) is None
