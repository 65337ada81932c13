from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.distributed.rpc.backoff import delays


@given(
    first=st.floats(0.001, 10),
    factor=st.floats(1, 10),
    most=st.floats(0.001, 100),
    seed=st.integers(),
)
def test_grows_to_a_bound_and_never_below_half(first, factor, most, seed):
    longest = first
    for delay in islice(delays(first, factor, most, seed), 20):
        bound = min(longest, most)
        assert bound / 2 <= delay <= bound
        longest = min(longest * factor, most * factor)


def test_the_same_seed_gives_the_same_pauses_and_another_one_others():
    first, second, other = (list(islice(delays(0.1, 2.0, 5.0, seed), 8)) for seed in (1, 1, 2))
    assert first == second
    assert first != other


def test_delays_do_not_end():
    assert len(list(islice(delays(0.1, 2.0, 1.0, 0), 5000))) == 5000
