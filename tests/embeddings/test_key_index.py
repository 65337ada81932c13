"""An index that grows a part at a time finds what one that was built at once finds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.embeddings import key_index, row_kernels
from ctr_pipeline.embeddings.key_index import KeyIndex
from ctr_pipeline.kernels.ranges import RangeRunner

RUNNER = RangeRunner(1)


@pytest.fixture
def small_steps(monkeypatch):
    """So that a few thousand rows take many steps."""
    monkeypatch.setattr(key_index, "CLEARED_AT_A_TIME", 8)
    monkeypatch.setattr(key_index, "MOVED_AT_A_TIME", 2)


class Rows:
    """Keys in an index, and in a dictionary."""

    def __init__(self):
        self.keys_N = np.zeros(1 << 16, np.int64)
        self.index = KeyIndex(self.keys_N)
        self.rows = {}

    def add(self, keys):
        keys = np.asarray(keys, np.int64)
        rows_U, num_missing = self.index.find(keys, RUNNER)
        assert num_missing == sum(one not in self.rows for one in keys.tolist())
        self.index.make_room(len(self.rows), num_missing)
        num_rows = self.index.add_missing(keys, rows_U, len(self.rows))
        for one in keys.tolist():
            self.rows.setdefault(one, len(self.rows))
        assert num_rows == len(self.rows)
        assert rows_U.tolist() == [self.rows[one] for one in keys.tolist()]

    def check(self):
        known = np.array(list(self.rows), np.int64)
        rows_U, num_missing = self.index.find(known, RUNNER)
        assert num_missing == 0
        assert rows_U.tolist() == list(self.rows.values())
        others = np.array([one for one in range(-50, 0) if one not in self.rows], np.int64)
        assert self.index.find(others, RUNNER)[1] == len(others)


@pytest.mark.usefixtures("small_steps")
@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(1, 900)), max_size=12))
def test_every_row_is_found_at_every_step_of_the_growth(calls):
    rows = Rows()
    for seed, num_keys in calls:
        # Some come back, some stand twice.
        rows.add(np.random.default_rng(seed).integers(0, 4000, num_keys))
        rows.check()


@pytest.mark.usefixtures("small_steps")
def test_growth_goes_on_over_many_calls():
    rows = Rows()
    for begin in range(0, 6000, 3):
        rows.add(range(begin, begin + 3))
    rows.check()
    rows.index.rebuild(len(rows.rows))
    rows.check()


def test_a_call_does_its_share_of_the_growth_and_no_more(monkeypatch):
    shares = []
    original = row_kernels.index_rows

    def index_rows(index, row_keys, first, last):
        shares.append(last - first)
        return original(index, row_keys, first, last)

    monkeypatch.setattr(row_kernels, "index_rows", index_rows)
    monkeypatch.setattr(key_index, "MOVED_AT_A_TIME", 64)
    rows = Rows()
    for begin in range(0, 20_000, 20):
        rows.add(range(begin, begin + 20))
    # Three times the table doubled with thousands of rows in it.
    assert sum(shares) > 15_000
    assert max(shares) <= 4 * 20


def test_a_key_that_stands_twice_is_found_out():
    rows = Rows()
    rows.keys_N[:3] = [5, 6, 5]
    with pytest.raises(ValueError, match="key 5 stands twice"):
        rows.index.rebuild(3)
