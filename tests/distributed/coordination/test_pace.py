"""Workers of unequal speed: who waits for whom, and that nobody works in vain."""

import heapq
import random

import pytest

from ctr_pipeline.distributed.coordination.rounds import BatchId, Pace, Round, admit_push
from ctr_pipeline.specs.course import UpdateRule

ALL = frozenset({1, 2, 3})
MASTER = -1
"""Whose news come each second."""


def batch(number, worker=0):
    return BatchId(0, worker, 1, number)


@pytest.fixture
def pace():
    found = Pace(2, 15.0)
    for worker in ALL:
        found.note_heard(worker, ALL, 0.0)
    return found


def waits(pace, worker, active, now):
    return pace.must_wait(worker, pace.slowest(active, now))


def push(pace, worker, *numbers):
    for number in numbers:
        pace.count(worker, batch(number, worker))


def test_worker_too_far_ahead_waits_until_the_slowest_has_pushed(pace):
    push(pace, 1, 0, 1)
    push(pace, 2, 0)
    assert not waits(pace, 1, ALL, 1.0)
    push(pace, 1, 2)
    assert waits(pace, 1, ALL, 1.0)
    assert not waits(pace, 2, ALL, 1.0)
    push(pace, 3, 0)
    assert not waits(pace, 1, ALL, 1.0)


def test_a_push_that_is_tried_again_counts_once(pace):
    push(pace, 1, 0, 0, 0)
    assert not waits(pace, 1, ALL, 1.0)


def test_worker_without_leases_is_not_waited_for(pace):
    push(pace, 1, 0, 1, 2)
    assert not waits(pace, 1, frozenset({1}), 1.0)
    push(pace, 2, 0)
    assert not waits(pace, 1, frozenset({1, 2}), 1.0)


def test_worker_that_hangs_is_not_waited_for(pace):
    push(pace, 1, 0, 1, 2)
    for worker in (1, 2):
        pace.note_heard(worker, ALL, 14.0)
    push(pace, 2, 0)
    assert waits(pace, 1, ALL, 14.9)
    assert not waits(pace, 1, ALL, 15.0)


def test_worker_that_joins_begins_where_the_slowest_is(pace):
    for worker in ALL:
        push(pace, worker, *range(worker, 100))
    pace.note_heard(4, ALL | {4}, 1.0)
    assert not waits(pace, 1, ALL | {4}, 1.0)
    assert not waits(pace, 4, ALL | {4}, 1.0)
    push(pace, 4, 0, 1)
    assert not waits(pace, 4, ALL | {4}, 1.0)
    push(pace, 4, 2)
    assert waits(pace, 4, ALL | {4}, 1.0)


@pytest.mark.parametrize(("active", "now"), [(ALL - {1}, 1.0), (ALL, 20.0)])
def test_worker_that_was_away_holds_nobody_back(pace, active, now):
    for worker in (2, 3):
        pace.note_heard(worker, active, now - 1.0)
    for worker in (2, 3):
        push(pace, worker, *range(50))
    pace.note_heard(1, active, now)
    for worker in ALL:
        assert not waits(pace, worker, ALL, now)


class Simulation:
    """Workers that pull, compute and push, at one server.

    Args:
        rule: How pushes become updates.
        seconds: That each worker takes for a batch.
        ends: By worker, when it hangs: it stays active for five seconds, as its lease does.
    """

    def __init__(self, rule, seconds, ends=None):
        self.rule, self.seconds, self.ends = rule, seconds, ends or {}
        self.pace = Pace(rule.max_staleness, 15.0)
        self.round, self.in_round, self.held = Round(), [], []
        self.version = 0
        self.tries, self.applied = [0] * len(seconds), [0] * len(seconds)
        self.spread = 0
        self.chance = random.Random(1)
        self.events = []

    def run(self, horizon):
        for worker in range(len(self.seconds)):
            self.pull(worker, 0.0)
        heapq.heappush(self.events, (1.0, MASTER, 0))
        while self.events and self.events[0][0] <= horizon:
            now, worker, pulled = heapq.heappop(self.events)
            if worker == MASTER:
                heapq.heappush(self.events, (now + 1.0, MASTER, 0))
            elif now < self.ends.get(worker, horizon + 1):
                self.push(worker, pulled, now)
            self.settle(now)
        return self

    def active(self, now):
        return frozenset(
            worker
            for worker in range(len(self.seconds))
            if now < self.ends.get(worker, float("inf")) + 5.0
        )

    def pull(self, worker, now):
        self.pace.note_heard(worker, self.active(now), now)
        if self.rule.update == "bounded" and waits(self.pace, worker, self.active(now), now):
            self.held.append(worker)
            return
        lasts = self.seconds[worker] * self.chance.uniform(0.9, 1.1)
        heapq.heappush(self.events, (now + lasts, worker, self.version))

    def push(self, worker, pulled, now):
        self.tries[worker] += 1
        found = batch(self.tries[worker], worker)
        if admit_push(self.rule, version=self.version, pulled_version=pulled).action == "join":
            self.round = self.round.joined_by(worker, found)
            self.in_round.append(worker)
        else:
            self.update([worker])
            self.pace.note_heard(worker, self.active(now), now)
            self.pace.count(worker, found)
            self.pull(worker, now)
            here = [self.applied[number] for number in self.active(now)]
            self.spread = max(self.spread, max(here) - min(here))

    def settle(self, now):
        """What a server does after each call, and when it hears who is active."""
        if self.round.is_complete(self.rule, self.active(now)):
            members, self.in_round, self.round = self.in_round, [], Round()
            self.update(members)
            for member in members:
                self.pull(member, now)
        slowest = self.pace.slowest(self.active(now), now)
        held, self.held = self.held, []
        for other in held:
            if self.pace.must_wait(other, slowest):
                self.held.append(other)
            else:
                self.pull(other, now)

    def update(self, workers):
        self.version += 1
        for worker in workers:
            self.applied[worker] += 1


def unequal(num_workers, slowest):
    """Seconds a batch, from 1 to those of the slowest."""
    return [1.0 + (slowest - 1.0) * n / (num_workers - 1) for n in range(num_workers)]


SIZES = [2, 3, 8, pytest.param(64, marks=pytest.mark.slow)]
HORIZON = 60.0


@pytest.mark.parametrize("slowest", [1.0, 2.5, 6.0])
@pytest.mark.parametrize("num_workers", SIZES)
@pytest.mark.parametrize("max_staleness", [0, 4])
def test_bounded_workers_stay_together_and_none_works_in_vain(num_workers, slowest, max_staleness):
    rule = UpdateRule(update="bounded", max_staleness=max_staleness)
    found = Simulation(rule, unequal(num_workers, slowest)).run(HORIZON)
    # Nothing is computed twice.
    assert found.applied == found.tries
    assert found.spread <= max_staleness + 1
    # The slowest never waits, so everybody keeps its speed.
    assert min(found.applied) >= HORIZON / (1.1 * slowest) - 1


@pytest.mark.parametrize("slowest", [1.0, 2.5, 6.0])
@pytest.mark.parametrize("num_workers", SIZES)
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_partial_rounds_use_all_work_and_starve_nobody(num_workers, slowest, share):
    rule = UpdateRule(update="sync", grads_to_wait=max(1, round(share * num_workers)))
    found = Simulation(rule, unequal(num_workers, slowest)).run(HORIZON)
    waiting = [found.in_round.count(worker) for worker in range(num_workers)]
    # Nothing is computed twice.
    assert [a + b for a, b in zip(found.applied, waiting, strict=True)] == found.tries
    # A worker waits for a round at most as long as the slowest takes for a batch.
    assert min(found.tries) >= HORIZON / (2.2 * slowest) - 1


@pytest.mark.parametrize("mode", ["bounded", "sync"])
def test_a_worker_that_hangs_stops_nobody(mode):
    rule = UpdateRule(update=mode, grads_to_wait=4, max_staleness=2)
    found = Simulation(rule, [1.0, 1.0, 1.3, 2.0], ends={3: 10.0}).run(HORIZON)
    assert min(found.applied[:3]) >= 25
