from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.distributed.ps.merging import (
    RowGradients,
    merge_dense,
    merge_rows,
    without_repeats,
)

KEYS = st.lists(st.integers(0, 20) | st.integers(0, 2**62), max_size=60)


def gradients(keys):
    rng = np.random.default_rng(len(keys))
    # Small integers: sums in any order have the same bits.
    return RowGradients(
        np.array(list(keys), np.int64),
        rng.integers(1, 5, len(keys)).astype(np.int32),
        rng.integers(-9, 9, (len(keys), 3)).astype(np.float32),
    )


@given(st.lists(KEYS, min_size=1, max_size=4))
def test_pushes_add_up_by_key(pushes):
    found = merge_rows([gradients(keys) for keys in map(dict.fromkeys, pushes)])
    sums, occurrences = {}, Counter()
    for keys in map(dict.fromkeys, pushes):
        push = gradients(keys)
        for place, name in enumerate(push.keys.tolist()):
            sums[name] = sums.get(name, 0) + push.sums[place]
            occurrences[name] += int(push.num_occurrences[place])
    assert sorted(found.keys.tolist()) == sorted(sums)
    for place, name in enumerate(found.keys.tolist()):
        assert found.num_occurrences[place] == occurrences[name]
        np.testing.assert_array_equal(found.sums[place], sums[name])


@given(KEYS)
def test_each_key_stands_once_afterwards(keys):
    found = without_repeats(gradients(keys))
    assert len(set(found.keys.tolist())) == len(found.keys) == len(set(keys))
    assert found.num_occurrences.sum() == gradients(keys).num_occurrences.sum()


def test_distinct_keys_are_left_as_they_are():
    push = gradients([3, 1, 2])
    assert without_repeats(push) is push
    assert merge_rows([push]) is push


def test_dense_gradients_become_their_mean_by_examples():
    one, other = np.array([1.0, 2.0], np.float32), np.array([5.0, -2.0], np.float32)
    np.testing.assert_allclose(merge_dense([one, other], [3, 1]), [2.0, 1.0])
    assert merge_dense([one], [7]) is one


@pytest.mark.parametrize("chosen", [[True, False, True], [False] * 3])
def test_some_keys_can_be_chosen(chosen):
    push = gradients([4, 5, 6])
    found = push.only(np.array(chosen))
    assert found.keys.tolist() == [
        name for name, flag in zip([4, 5, 6], chosen, strict=True) if flag
    ]
    np.testing.assert_array_equal(found.sums, push.sums[chosen])
