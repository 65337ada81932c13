import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.distributed.coordination.rounds import (
    Admission,
    BatchId,
    Round,
    admit_push,
    worker_number,
)
from ctr_pipeline.specs.course import UpdateRule


def rule(mode, *, grads_to_wait=1, max_staleness=0, scale=False):
    return UpdateRule(
        update=mode,
        grads_to_wait=grads_to_wait,
        max_staleness=max_staleness,
        scale_learning_rate_by_staleness=scale,
    )


def batch(number, task=0, attempt=1):
    return BatchId(0, task, attempt, number)


@given(st.integers(0, 100), st.integers(0, 100))
def test_asynchronous_pushes_are_always_applied(version, pulled):
    assert admit_push(rule("async"), version=version, pulled_version=pulled) == Admission(
        "apply", 1.0
    )


@pytest.mark.parametrize(
    ("staleness", "expected"), [(0, 1.0), (1, 1.0), (2, 0.5), (4, 0.25), (5, 0.2)]
)
@pytest.mark.parametrize("mode", ["async", "bounded"])
def test_the_learning_rate_is_divided_by_the_staleness(mode, staleness, expected):
    found = admit_push(
        rule(mode, max_staleness=5, scale=True), version=10, pulled_version=10 - staleness
    )
    assert found == Admission("apply", expected)


@given(st.integers(0, 100), st.integers(0, 100))
def test_bounded_pushes_are_never_refused(version, pulled):
    found = admit_push(rule("bounded", max_staleness=0), version=version, pulled_version=pulled)
    assert found == Admission("apply", 1.0)


@pytest.mark.parametrize(
    ("grads_to_wait", "pulled", "expected"),
    [
        (1, 7, Admission("apply", 1.0)),
        (1, 6, Admission("apply", 1 / 2)),
        (2, 7, Admission("join", 1.0)),
        (2, 6, Admission("join", 1 / 2)),
        (2, 4, Admission("join", 1 / 4)),
    ],
)
def test_synchronous_pushes_that_come_late_weigh_less(grads_to_wait, pulled, expected):
    found = admit_push(rule("sync", grads_to_wait=grads_to_wait), version=7, pulled_version=pulled)
    assert found == expected


def test_a_round_waits_for_as_many_pushes_as_the_rule_says():
    sync = rule("sync", grads_to_wait=2)
    active = frozenset({1, 2, 3})
    begun = Round().joined_by(1, batch(0))
    assert not begun.is_complete(sync, active)
    assert begun.joined_by(2, batch(1)).is_complete(sync, active)


def test_a_round_waits_for_no_worker_that_cannot_push():
    sync = rule("sync", grads_to_wait=3)
    both = Round().joined_by(1, batch(0)).joined_by(2, batch(1))
    assert not both.is_complete(sync, frozenset({1, 2, 3}))
    assert both.is_complete(sync, frozenset({1, 2}))
    # Nor for those that are done with their leases and have pushed before they were.
    assert both.is_complete(sync, frozenset({1}))
    assert both.is_complete(sync, frozenset())


def test_a_push_of_an_unknown_worker_does_not_stand_for_a_known_one():
    sync = rule("sync", grads_to_wait=2)
    assert not Round().joined_by(9, batch(0)).is_complete(sync, frozenset({1}))


def test_active_workers_are_unknown_before_the_first_heartbeat():
    sync = rule("sync", grads_to_wait=2)
    begun = Round().joined_by(1, batch(0))
    assert not begun.is_complete(sync, None)
    assert begun.joined_by(2, batch(1)).is_complete(sync, None)


def test_an_empty_round_is_never_complete():
    assert not Round().is_complete(rule("sync", grads_to_wait=2), frozenset())


def test_a_repeated_push_is_one_member():
    begun = Round().joined_by(1, batch(0))
    assert begun.joined_by(1, batch(0)) == begun


def test_a_withdrawn_push_leaves_the_others():
    both = Round().joined_by(1, batch(0)).joined_by(2, batch(1))
    assert both.left_by(batch(0)) == Round(((2, batch(1)),))


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=6),
    st.frozensets(st.integers(0, 4)),
    st.integers(2, 5),
)
def test_a_round_is_complete_if_it_is_full_or_nobody_else_can_push(workers, active, wait):
    found = Round()
    for number, worker in enumerate(workers):
        found = found.joined_by(worker, batch(number))
    nobody_else = all(worker in workers for worker in active)
    assert found.is_complete(rule("sync", grads_to_wait=wait), active) == (
        len(workers) >= wait or nobody_else
    )


def test_workers_are_numbered_by_name():
    assert worker_number("a") == worker_number("a") != worker_number("b")
    assert 0 <= worker_number("") < 2**64


def test_a_round_does_not_wait_for_who_is_excused_and_forgets_it_with_its_end():
    sync = rule("sync", grads_to_wait=3)
    begun = Round().excusing(2)
    assert not begun.is_complete(sync, frozenset({1, 2}))
    joined = begun.joined_by(1, batch(0))
    assert joined.is_complete(sync, frozenset({1, 2}))
    assert not joined.is_complete(sync, frozenset({1, 2, 3}))
    assert joined.left_by(batch(0)).excused == {2}
    assert not Round().joined_by(1, batch(0)).is_complete(sync, frozenset({1, 2}))
