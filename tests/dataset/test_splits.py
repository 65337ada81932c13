from hashlib import md5

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.dataset.splits import (
    Shares,
    divide,
    hash_fractions,
    plan_hash_ranges,
    plan_order_ranges,
    random_fractions,
)


@given(
    num_rows=st.integers(0, 10_000),
    valid=st.floats(0, 0.5, exclude_max=True),
    test=st.floats(0, 0.5, exclude_max=True),
)
def test_order_ranges_cover_all_rows_once(num_rows, valid, test):
    ranges = plan_order_ranges(num_rows, Shares(valid, test))
    covered = [row for first, after in ranges.values() for row in range(first, after)]
    assert covered == list(range(num_rows))
    for split, share in (("valid", valid), ("test", test)):
        first, after = ranges.get(split, (0, 0))
        assert abs(after - first - share * num_rows) <= 1


@given(seed=st.integers(0, 2**63 - 1), cut=st.integers(0, 100))
def test_a_random_place_depends_on_seed_and_row_alone(seed, cut):
    whole = random_fractions(0, 100, seed)
    parts = [random_fractions(0, cut, seed), random_fractions(cut, 100 - cut, seed)]
    assert np.array_equal(whole, np.concatenate(parts))
    assert ((whole >= 0) & (whole < 1)).all()


def test_random_places_are_uniform_and_seeds_are_unrelated():
    one, two = random_fractions(0, 100_000, 1), random_fractions(0, 100_000, 2)
    for fractions in (one, two):
        counts = np.histogram(fractions, bins=10, range=(0, 1))[0]
        assert np.abs(counts - 10_000).max() < 500
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.02


def test_hash_places_are_uniform_equal_for_equal_values_and_stable():
    texts = [f"user-{i % 20_000}" for i in range(40_000)]
    fractions = hash_fractions(pa.chunked_array([texts[:15_000], texts[15_000:]]))
    assert np.array_equal(fractions[:20_000], fractions[20_000:])
    counts = np.histogram(fractions[:20_000], bins=10, range=(0, 1))[0]
    assert np.abs(counts - 2_000).max() < 250
    # A stored value: the split of a user must not change between versions.
    stored = hash_fractions(pa.chunked_array([["user-0", "é"]])).tolist()
    digests = [md5(text.encode()).hexdigest() for text in ("user-0", "é")]  # noqa: S324
    assert stored == [int(digest[:13], 16) / 2**52 for digest in digests]


def test_ranges_of_hashes_are_those_of_their_fractions():
    shares = Shares(valid=0.1, test=0.2)
    ranges = plan_hash_ranges(shares)
    assert list(ranges) == ["train", "valid", "test"]
    borders = [border for pair in ranges.values() for border in pair]
    assert borders[0] == 0
    assert borders[-1] == 2**52
    hashes = np.array([one + more for one in borders for more in (-1, 0, 1)], np.float64)
    hashes = hashes[(hashes >= 0) & (hashes < 2**52)]
    table = pa.table({"hash": hashes})
    for split, rows in divide(table, hashes / 2**52, shares):
        first, after = ranges[split]
        expected = hashes[(hashes >= first) & (hashes < after)]
        assert rows["hash"].to_pylist() == expected.tolist()
    assert list(plan_hash_ranges(Shares(0, 0.2))) == ["train", "test"]


def test_missing_and_numbers_have_a_place_of_their_own():
    fractions = hash_fractions(pa.chunked_array([[None, "a", None]]))
    assert fractions[0] == fractions[2] != fractions[1]
    numbers = hash_fractions(pa.chunked_array([[1.0, 2.0, 1.0, None]]))
    assert numbers[0] == numbers[2] != numbers[1]
    assert len(hash_fractions(pa.chunked_array([], pa.string()))) == 0


def test_rows_are_divided_in_order():
    table = pa.table({"n": list(range(5))})
    fractions = np.array([0.1, 0.75, 0.95, 0.79, 0.2])
    found = dict(divide(table, fractions, Shares(valid=0.1, test=0.2)))
    assert {split: rows["n"].to_pylist() for split, rows in found.items()} == {
        "train": [0, 4],
        "valid": [1, 3],
        "test": [2],
    }
    assert [split for split, _ in divide(table, fractions, Shares(0, 0.2))] == ["train", "test"]
