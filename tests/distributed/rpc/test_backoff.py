from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.distributed.coordination.messages import Member
from ctr_pipeline.distributed.rpc.backoff import MasterAbsence, delays


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


def test_it_does_not_end():
    assert len(list(islice(delays(0.1, 2.0, 1.0, 0), 5000))) == 5000


def test_an_absence_is_told_once_and_begins_anew_after_the_master_was_back(caplog):
    now = [0.0]
    absence = MasterAbsence(
        Member("worker", 3, "w", "s"),
        "training goes on",
        longest_pause_seconds=1.0,
        clock=lambda: now[0],
    )
    with caplog.at_level("INFO"):
        pauses = [absence.begin("refused") for _ in range(8)]
        now[0] = 2.5
        absence.end()
        absence.end()
        assert absence.begin("refused") == pauses[0]
    assert pauses[0] <= 0.1
    assert 0.5 <= pauses[-1] <= 1.0
    assert [record.getMessage() for record in caplog.records] == [
        "The master does not answer, training goes on: refused",
        "The master answers again after 2.5 s",
        "The master does not answer, training goes on: refused",
    ]
