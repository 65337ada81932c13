"""Steps and shares: every record once an epoch, whatever the worlds are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.distributed.records.steps import RecordSequence, RecordStep


def test_shares_of_a_step_are_its_records_in_rank_order():
    shares = [list(RecordStep(10, 17).share_of(rank, 3)) for rank in range(3)]
    assert shares == [[10, 11], [12, 13], [14, 15, 16]]
    assert [len(RecordStep(0, 1).share_of(rank, 3)) for rank in range(3)] == [0, 0, 1]


def test_a_step_ends_with_its_epoch():
    steps = list(RecordSequence(10, 2, 0, shuffle=True).steps(6, 8))
    assert steps == [RecordStep(6, 10), RecordStep(10, 18), RecordStep(18, 20)]


@given(
    num_records=st.integers(1, 9000),
    epochs=st.integers(1, 3),
    shuffle=st.booleans(),
    worlds=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 700)), min_size=1, max_size=4),
    seed=st.integers(0, 1 << 40),
)
def test_every_record_is_read_once_an_epoch(num_records, epochs, shuffle, worlds, seed):
    sequence = RecordSequence(num_records, epochs, seed, shuffle)
    counts = np.zeros((epochs, num_records), int)
    position, turn = 0, 0
    while position < sequence.length:
        size, batch = worlds[turn % len(worlds)]
        # A world of three steps, and then another one.
        for step, _ in zip(sequence.steps(position, size * batch), range(3), strict=False):
            for rank in range(size):
                found = sequence.records_at(step.share_of(rank, size))
                np.add.at(counts[step.first // num_records], found, 1)
            position = step.after
        turn += 1
    assert (counts == 1).all()


@pytest.mark.parametrize("num_records", [1, 64, 4096, 4097, 10_000])
def test_the_order_depends_on_the_seed_alone(num_records):
    def order(seed, size):
        sequence = RecordSequence(num_records, 2, seed, shuffle=True)
        parts = [sequence.records_at(range(s.first, s.after)) for s in sequence.steps(0, size)]
        return np.concatenate(parts)

    whole = order(5, num_records)
    np.testing.assert_array_equal(order(5, 97), whole)
    if num_records > 1:
        assert not np.array_equal(order(6, num_records), whole)
        assert not np.array_equal(whole[:num_records], whole[num_records:])


def test_records_in_their_order_are_just_that():
    sequence = RecordSequence(5, 2, 7, shuffle=False)
    assert sequence.records_at(range(3, 5)).tolist() == [3, 4]
    assert sequence.records_at(range(5, 8)).tolist() == [0, 1, 2]
