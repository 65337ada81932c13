import itertools

from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.distributed.coordination.task_set import TaskSet


def numbers_in(runs):
    return [number for first, end in runs for number in range(first, end)]


@given(
    numbers=st.lists(st.integers(0, 30), max_size=40),
    others=st.lists(st.integers(0, 30), max_size=40),
)
def test_runs_of_numbers_are_a_set_of_them(numbers, others):
    ranges, theirs = TaskSet(), TaskSet()
    for number in numbers:
        ranges.add(number)
    for number in others:
        theirs.add(number)
    assert numbers_in(ranges) == sorted(set(numbers))
    assert ranges.num_tasks == len(set(numbers))
    assert ranges.end == max(numbers, default=-1) + 1
    assert [number in ranges for number in range(32)] == [n in numbers for n in range(32)]
    assert list(ranges.gaps(20)) == [number for number in range(20) if number not in numbers]
    assert numbers_in(ranges.common_with(theirs)) == sorted(set(numbers) & set(others))
    runs = list(ranges)
    # Neighbours are one run.
    assert all(end < first for (_, end), (first, _) in itertools.pairwise(runs))
    assert list(TaskSet(runs)) == runs
    assert TaskSet(runs).num_tasks == ranges.num_tasks
