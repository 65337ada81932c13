"""Each mode does what it says: told by versions and values, not by flags."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ctr_pipeline.distributed.rpc.packed import Status
from ctr_pipeline.specs.course import UpdateRule
from tests.distributed.network import Answered
from tests.distributed.ps_requests import Caller, Pushing, batch, counting, key, nothing_trained

KEYS = (key(0, 1), key(0, 2), key(2, 700))


@pytest.fixture
def start(make_spec, make_core, make_optimizer):
    """Servers of a job that counts, with some rows."""

    def make(rule, *, active=(), **options):
        core = make_core(counting(make_spec(update_rule=rule), make_optimizer), **options)
        caller = Caller(core)
        caller.init()
        caller.pull(KEYS)
        if active:
            core.updates.set_active_workers(active)
        return core

    return make


def pushing(core, worker, number, **changes):
    return Pushing(Caller(core, worker), KEYS, batch(number, task=number), **changes)


def waits(core, num):
    assert core.updates.num_waiting == num


def test_asynchronous_pushes_are_applied_however_old(start):
    core = start(UpdateRule())
    caller = Caller(core)
    for number in range(5):
        reply = caller.push(KEYS, batch(number), version=0)
        assert (reply.status, reply.version) == (Status.DONE, number + 1)
    assert caller.values(KEYS)[0] == [5.0] * 3


def test_the_learning_rate_falls_with_staleness(start):
    core = start(UpdateRule(scale_learning_rate_by_staleness=True))
    caller = Caller(core)
    moved = []
    for number, version in enumerate([0, 1, 0, 0]):
        before = caller.values(KEYS)[0][0]
        caller.push(KEYS, batch(number), version=version)
        moved.append(caller.values(KEYS)[0][0] - before)
    # Staleness 0, 0, 2 and 3.
    np.testing.assert_allclose(moved, [1, 1, 1 / 2, 1 / 3], rtol=1e-6)


def pulling(core, worker, number):
    return Answered(Caller(core, worker).pull(KEYS, batch=batch(number, task=ord(worker))))


def test_a_worker_that_is_too_far_ahead_waits_for_the_slowest(start):
    core = start(UpdateRule(update="bounded", max_staleness=1), active=["a", "b"])
    for worker in "ab":
        assert pulling(core, worker, 0).reply.status is Status.DONE
    for number in range(2):
        reply = Caller(core, "a").push(KEYS, batch(number, task=ord("a")), version=0)
        assert reply.status is Status.DONE
    held = pulling(core, "a", 2)
    core.updates.keep_time()
    assert not held.has_come
    assert core.updates.num_waiting == 1
    # Never refused, however old.
    assert Caller(core, "b").push(KEYS, batch(0, task=ord("b")), version=0).status is Status.DONE
    assert held.reply.status is Status.DONE
    assert held.reply.values[0].tolist() == [3.0] * 5
    assert (core.updates.num_waiting, core.updates.counts.stale) == (0, 0)


def test_a_held_pull_ends_with_the_leases_of_the_slowest_or_with_a_rollback(start):
    core = start(UpdateRule(update="bounded", max_staleness=0), active=["a", "b"])
    pulling(core, "a", 0), pulling(core, "b", 0)
    Caller(core, "a").push(KEYS, batch(0, task=ord("a")))
    held = pulling(core, "a", 1)
    assert not held.has_come
    core.updates.set_active_workers(["a"])
    core.updates.keep_time()
    assert held.reply.status is Status.DONE
    core.updates.set_active_workers(["a", "b"])
    held = pulling(core, "a", 1)
    assert not held.has_come
    core.checkpoints.restore(nothing_trained(1))
    assert (held.reply.status, held.reply.generation) == (Status.ROLLED_BACK, 1)


def test_a_push_that_comes_late_is_applied_with_half_its_rate(start):
    core = start(UpdateRule(update="sync"))
    caller = Caller(core)
    assert caller.push(KEYS, batch(0), version=0).version == 1
    assert caller.push(KEYS, batch(1), version=0).version == 2
    values, dense = caller.values(KEYS)
    assert values == [1.5] * 3
    assert set(dense) == {1.5}


def test_a_synchronous_round_is_one_update_of_the_mean(start):
    core = start(UpdateRule(update="sync", grads_to_wait=3), active=["a", "b", "c"])
    calls = [
        pushing(core, "a", 0, num_examples=2),
        pushing(core, "b", 1, num_examples=2, gradient=-4.0),
    ]
    waits(core, 2)
    assert core.serving.version == 0
    assert Caller(core).values(KEYS)[0] == [0.0] * 3
    calls.append(pushing(core, "c", 2, num_examples=4, gradient=-3.0))
    for reply in [call.result() for call in calls]:
        assert (reply.status, reply.version) == (Status.DONE, 1)
    values, dense = Caller(core).values(KEYS)
    # Rows take the sum (the job's reduction says what of it), dense values the mean by examples.
    assert values == [8.0] * 3
    np.testing.assert_allclose(dense, (2 * 1 + 2 * 4 + 4 * 3) / 8)


def test_a_mean_of_rows_divides_by_the_examples_of_all(make_spec, make_core, make_optimizer):
    spec = counting(
        make_spec(update_rule=UpdateRule(update="sync", grads_to_wait=2)), make_optimizer
    )
    segments = tuple(replace(segment, reduction="mean") for segment in spec.segments)
    core = make_core(replace(spec, segments=segments))
    Caller(core).init()
    Caller(core).pull(KEYS)
    calls = [
        pushing(core, "a", 0, num_examples=3, gradient=-6.0),
        pushing(core, "b", 1, num_examples=1, gradient=-2.0),
    ]
    assert [call.result().status for call in calls] == [Status.DONE] * 2
    assert Caller(core).values(KEYS)[0] == [2.0] * 3


def test_a_push_that_missed_its_round_joins_the_next_and_weighs_less(start):
    core = start(UpdateRule(update="sync", grads_to_wait=2), active=["a", "b", "c"])
    calls = [pushing(core, "a", 0), pushing(core, "b", 1)]
    assert [call.result().version for call in calls] == [1, 1]
    calls = [pushing(core, "c", 2, version=0, num_examples=2), pushing(core, "a", 3, version=1)]
    assert [call.result().version for call in calls] == [2, 2]
    values, dense = Caller(core).values(KEYS)
    # Staleness 1 is weight 1 / 2.
    np.testing.assert_allclose(values, 2 + 1 / 2 + 1, rtol=1e-6)
    np.testing.assert_allclose(dense, 1 + (2 * 1 / 2 + 1) / 3, rtol=1e-6)
    assert core.updates.counts.stale == 0


def test_a_round_is_the_same_in_whatever_order_its_pushes_arrive(start):
    results = []
    for order in ([0, 1, 2], [2, 0, 1]):
        core = start(UpdateRule(update="sync", grads_to_wait=3))
        calls = []
        for number in order:
            # Three numbers whose sum depends on the order in which it is made.
            gradient = [1e8, -1e8, 0.123][number]
            calls.append(pushing(core, "abc"[number], number, gradient=gradient))
            if len(calls) < 3:
                waits(core, len(calls))
        for call in calls:
            call.result()
        results.append(Caller(core).values(KEYS))
    assert results[0] == results[1]


def test_a_round_does_not_wait_for_a_worker_that_is_gone(start):
    core = start(UpdateRule(update="sync", grads_to_wait=3), active=["a", "b", "c"])
    calls = [pushing(core, "a", 0), pushing(core, "b", 1)]
    waits(core, 2)
    core.updates.set_active_workers(["a", "b", "c"])
    core.updates.keep_time()
    assert core.serving.version == 0
    # The master has taken the leases of c away.
    core.updates.set_active_workers(["a", "b"])
    core.updates.keep_time()
    assert [call.result().status for call in calls] == [Status.DONE] * 2
    assert core.serving.version == 1
    assert core.updates.num_waiting == 0


def test_a_round_that_does_not_fill_lets_its_pushes_go(start):
    now = [0.0]
    core = start(
        UpdateRule(update="sync", grads_to_wait=2),
        active=["a", "b"],
        round_timeout_seconds=15.0,
        clock=lambda: now[0],
    )
    call = pushing(core, "a", 0)
    now[0] = 14.0
    core.updates.keep_time()
    waits(core, 1)
    now[0] = 15.0
    core.updates.keep_time()
    assert call.result().status is Status.STALE
    assert (core.serving.version, core.updates.num_waiting) == (0, 0)
    # Nothing of it stays behind: the next round has its own two.
    core.updates.set_active_workers(["a"])
    assert Caller(core, "a").push(KEYS, batch(0)).status is Status.DONE
    assert Caller(core).values(KEYS)[0] == [1.0] * 3


def test_a_call_that_is_tried_again_joins_its_round_once(start):
    core = start(UpdateRule(update="sync", grads_to_wait=2), active=["a", "b"])
    first = pushing(core, "a", 0)
    waits(core, 1)
    again = pushing(core, "a", 0)
    # The lost call and the new one wait for the same push; a second member would close the round.
    other = pushing(core, "b", 1)
    assert [call.result().status for call in (first, other)] == [Status.DONE] * 2
    assert again.result().status in {Status.DONE, Status.REPEATED}
    assert Caller(core).values(KEYS)[0] == [2.0] * 3


def test_a_zombie_does_not_take_part_in_a_round(start):
    core = start(UpdateRule(update="sync", grads_to_wait=2), active=["a", "b"])
    zombie = Pushing(Caller(core, "a"), KEYS, batch(0, attempt=1))
    waits(core, 1)
    # The task has a new worker, which trains the same batch; applied twice it would count twice.
    heir = Pushing(Caller(core, "b"), KEYS, batch(0, attempt=2))
    assert zombie.result().status is Status.SUPERSEDED
    waits(core, 1)
    third = pushing(core, "a", 1)
    assert [call.result().status for call in (heir, third)] == [Status.DONE] * 2
    assert Caller(core).values(KEYS)[0] == [2.0] * 3


def test_a_new_epoch_ends_waiting_pushes_of_the_one_before(start):
    core = start(UpdateRule(update="sync", grads_to_wait=2), active=["a", "b"])
    late = Pushing(Caller(core, "a"), KEYS, batch(0, epoch=0))
    waits(core, 1)
    Caller(core, "b").pull(KEYS, batch=batch(0, epoch=1))
    assert late.result().status is Status.SUPERSEDED
    assert core.updates.num_waiting == 0


def test_a_rollback_ends_waiting_pushes(start):
    core = start(UpdateRule(update="sync", grads_to_wait=2), active=["a", "b"])
    call = pushing(core, "a", 0)
    waits(core, 1)
    core.checkpoints.restore(nothing_trained(1))
    reply = call.result()
    assert (reply.status, reply.generation) == (Status.ROLLED_BACK, 1)
    assert (core.updates.num_waiting, core.serving.version) == (0, 0)


def test_a_rollback_between_a_round_and_its_answers_is_told(start):
    core = start(UpdateRule(update="sync", grads_to_wait=2), active=["a", "b"])
    call = pushing(core, "a", 0)
    waits(core, 1)
    # The round is applied and a restore begins before the answer is made: it must not read what is
    # being replaced.
    core.updates.set_active_workers(())
    core.updates.keep_time()
    core.checkpoints.restore(nothing_trained(1))
    reply = call.result()
    assert (reply.status, reply.generation, len(reply.dense)) == (Status.ROLLED_BACK, 1, 0)


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)), min_size=2, max_size=4),
)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rounds_apply_every_member_once(start, members):
    core = start(UpdateRule(update="sync", grads_to_wait=len(members)))
    calls = [
        Pushing(
            Caller(core, str(number)),
            [key(0, number % 7), key(0, row % 7)][: 1 + (number % 7 != row % 7)],
            batch(number, task=number),
            num_examples=examples,
        )
        for number, (row, examples) in enumerate(members)
    ]
    assert all(call.result().status is Status.DONE for call in calls)
    expected = np.zeros(7)
    Caller(core).pull([key(0, row) for row in range(7)])
    for number, (row, _) in enumerate(members):
        expected[list({number % 7, row % 7})] += 1
    assert core.serving.version == 1
    made = {KEYS[0] & 7, KEYS[1] & 7}
    found = Caller(core).values([key(0, row) for row in range(7)])[0]
    # Rows that were made after the round are new and hold zeros.
    assert [found[row] for row in made] == [expected[row] for row in made]
    assert [found[row] for row in range(7) if row not in made] == [0.0] * 5
