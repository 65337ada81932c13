import numpy as np
import pytest

from ctr_pipeline.embeddings.partition import partitions_of

KEYS = np.array([0, 1, 2, 12_345, (1 << 44) | 7, (5 << 44) | 999_999, (1 << 63) - 1], np.int64)


def by_hand(key, num_partitions):
    word = (1 << 64) - 1
    value = (key + 0x9E3779B97F4A7C15) & word
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & word
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & word
    return (value ^ (value >> 31)) % num_partitions


def test_partitions_are_pinned():
    # Row logs on disk depend on these numbers.
    assert partitions_of(KEYS, 64).tolist() == [47, 1, 14, 32, 52, 39, 39]
    assert partitions_of(KEYS, 7).tolist() == [2, 2, 4, 5, 5, 3, 2]
    # The first output of SplitMix64 for seed 0, as published.
    assert by_hand(0, 1 << 64) == 0xE220A8397B1DCDAF


def test_partitions_are_splitmix64_mod_their_number():
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 1 << 63, 500)
    for num_partitions in (1, 2, 64, 1000, (1 << 31) - 1):
        expected = [by_hand(int(key), num_partitions) for key in keys]
        assert partitions_of(keys, num_partitions).tolist() == expected


def test_regular_ids_spread_evenly():
    for step in (1, 64, 1000):
        counts = np.bincount(partitions_of(np.arange(64_000, dtype=np.int64) * step, 64))
        assert len(counts) == 64
        # 1000 expected; six standard deviations of a binomial.
        assert np.abs(counts - 1000).max() < 190


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="not int64"):
        partitions_of(np.zeros(3, np.int32), 4)
    with pytest.raises(ValueError, match="num_partitions 0"):
        partitions_of(KEYS, 0)
    assert partitions_of(np.empty(0, np.int64), 3).tolist() == []
