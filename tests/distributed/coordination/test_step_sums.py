from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.distributed.coordination.step_sums import Complete, StepSums, Void, Waiting


def bring(sums, rank, *, version=1, step=1, call=None):
    number = 100 * version + 10 * step + rank if call is None else call
    return sums.bring(version=version, step=step, rank=rank, share=f"{step}/{rank}", call=number)


@given(st.permutations(range(4)))
def test_the_sum_is_by_rank_whoever_comes_first(arrival):
    sums = StepSums()
    sums.begin(1, 4)
    outcomes = [bring(sums, rank) for rank in arrival]
    assert outcomes[:-1] == [Waiting()] * 3
    assert outcomes[-1] == Complete(("1/0", "1/1", "1/2", "1/3"), (110, 111, 112, 113))


def test_a_fast_member_may_be_a_step_ahead():
    sums = StepSums()
    sums.begin(1, 2)
    assert bring(sums, 0, step=1) == Waiting()
    assert bring(sums, 0, step=2) == Waiting()
    assert isinstance(bring(sums, 1, step=1), Complete)
    assert isinstance(bring(sums, 1, step=2), Complete)


def test_calls_of_a_world_that_is_over_are_void():
    sums = StepSums()
    sums.begin(1, 2)
    bring(sums, 0)
    assert sums.end() == (110,)
    assert isinstance(bring(sums, 1), Void)
    assert sums.begin(2, 1) == ()
    assert isinstance(bring(sums, 1), Void)
    assert isinstance(bring(sums, 0, version=2), Complete)


def test_share_of_the_next_world_waits_until_that_world_begins():
    sums = StepSums()
    sums.begin(1, 2)
    bring(sums, 0)
    assert bring(sums, 1, version=2) == Waiting()
    assert sums.begin(2, 2) == (110,)
    assert bring(sums, 0, version=2) == Complete(("1/0", "1/1"), (210, 211))


def test_call_that_waits_ends_when_the_owner_never_joins_its_world():
    sums = StepSums()
    sums.begin(1, 2)
    bring(sums, 0, version=2)
    assert sums.begin(3, 2) == (210,)


def test_a_share_that_nobody_may_bring_is_void():
    sums = StepSums()
    sums.begin(1, 2)
    bring(sums, 0)
    assert isinstance(bring(sums, 0, call=7), Void)
    assert isinstance(bring(sums, 2), Void)
    assert isinstance(bring(sums, 1), Complete)


events = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.integers(1, 3)),
        st.tuples(st.just("end"), st.just(0)),
        st.tuples(st.just("bring"), st.integers(0, 2)),
    ),
    max_size=40,
)


@given(events)
def test_every_call_is_answered_once_and_none_after_its_world(happened):
    sums, version, waiting = StepSums(), 1, set()
    sums.begin(version, 2)
    for number, (what, value) in enumerate(happened):
        if what == "begin":
            version += 1
            over = sums.begin(version, value)
        elif what == "end":
            over = sums.end()
        else:
            outcome = bring(sums, value, version=version, call=number)
            if isinstance(outcome, Waiting):
                waiting.add(number)
            over = ()
            if isinstance(outcome, Complete):
                over = outcome.calls
                waiting.add(number)
        assert set(over) <= waiting
        waiting -= set(over)
        if what == "end":
            assert not waiting
