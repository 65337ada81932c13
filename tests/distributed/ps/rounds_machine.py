"""The rounds of one real parameter server in synchronous mode, and what becomes of each push.

Time is the test's: timeout ends when the test says so.
"""

from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ctr_pipeline.distributed.coordination.rounds import BatchId
from ctr_pipeline.distributed.ps.core import PsCore
from ctr_pipeline.distributed.rpc.packed import Status
from ctr_pipeline.specs.course import UpdateRule
from tests.distributed.network import Answered
from tests.distributed.ps_requests import Caller, key, nothing_trained

NUM_TASKS, TASK_BATCHES = 3, 2
WORKERS = ("a", "b", "c")
TIMEOUT_SECONDS = 15.0


class Call:
    """A push; what it should come to is known once its round has ended."""

    def __init__(self, core, request):
        self.expected = None
        self.answer = Answered(core.updates.push(request))


@dataclass
class Waiting:
    """A push that waits for its round, and the calls that wait for it: lost ones are repeated."""

    worker: str
    weight: float
    calls: list = field(default_factory=list)


class Rounds:
    """A server and a model of its rounds.

    Args:
        spec: Of a job that counts.
        grads_to_wait: Of a round.
    """

    def __init__(self, spec, grads_to_wait):
        self.now = 0.0
        self.grads_to_wait = grads_to_wait
        self.core = PsCore(
            replace(spec, update_rule=UpdateRule(update="sync", grads_to_wait=grads_to_wait)),
            0,
            round_timeout_seconds=TIMEOUT_SECONDS,
            clock=lambda: self.now,
        )
        self.rows = [key(0, row) for row in range(NUM_TASKS * TASK_BATCHES)]
        self.calls, self.waiting = [], {}
        self.version = self.generation = self.epoch = 0
        self.active, self.excused = None, set()
        self.begin_generation()

    def begin_generation(self):
        self.generation += 1
        assert not self.core.checkpoints.restore(nothing_trained(self.generation)).refused
        caller = Caller(self.core)
        caller.init(generation=self.generation)
        caller.pull(self.rows, generation=self.generation)
        self.counts, self.applied, self.newest = Counter(), set(), {}
        self.rounds, self.moved = 0, 0.0

    # What befalls it.

    def push(self, task, number, *, newer=0, version=0):
        """A push of the task's newest attempt, or of one after or before it.

        Args:
            task: Of the batch.
            number: Of the batch in the task.
            newer: Attempts; each has a worker of its own.
            version: Of the values that it was computed with, less the present one.
        """
        newest = self.newest.get(task, 1)
        attempt = max(newest + newer, 1)
        worker = WORKERS[(task + attempt) % len(WORKERS)]
        batch = BatchId(self.epoch, task, attempt, number)
        request = Caller(self.core, worker).request(
            [self.rows[task * TASK_BATCHES + number]],
            batch,
            version=self.version + version,
            generation=self.generation,
        )
        call = Call(self.core, request)
        self.calls.append(call)
        if attempt < newest:
            call.expected = Status.SUPERSEDED
            return
        self.newest[task] = attempt
        for other in list(self.waiting):
            if other.task == task and other.attempt < attempt:
                self.answer(other, Status.SUPERSEDED)
        if (task, number) in self.applied:
            call.expected = Status.REPEATED
            self.excused.add(worker)
            self.close_if_complete()
        elif batch in self.waiting:
            self.waiting[batch].calls.append(call)
        else:
            self.waiting[batch] = Waiting(worker, 1 / (1 - version), [call])
            self.close_if_complete()

    def name_active(self, workers):
        """The master says who can still push."""
        self.core.updates.set_active_workers(workers)
        self.core.updates.keep_time()
        self.active = set(workers)
        self.close_if_complete()

    def time_out(self):
        self.now += TIMEOUT_SECONDS + 1
        self.core.updates.keep_time()
        self.answer_all(Status.STALE)

    def roll_back(self):
        self.answer_all(Status.ROLLED_BACK)
        self.begin_generation()

    def begin_epoch(self):
        self.epoch += 1
        batch = BatchId(self.epoch, 0, 1, 0)
        reply = Caller(self.core).pull(self.rows, batch=batch, generation=self.generation)
        assert reply.status is Status.DONE
        self.answer_all(Status.SUPERSEDED)
        self.applied, self.newest = set(), {}

    # What the model makes of it.

    def close_if_complete(self):
        """Nobody waits in a round that is full, or that nobody else can come to."""
        if not self.waiting:
            return
        here = {one.worker for one in self.waiting.values()}
        nobody_else = self.active is not None and self.active - self.excused <= here
        if len(self.waiting) < self.grads_to_wait and not nobody_else:
            return
        for batch in self.waiting:
            self.applied.add((batch.task, batch.batch))
            row = batch.task * TASK_BATCHES + batch.batch
            self.counts[row] += self.waiting[batch].weight
        weights = [one.weight for one in self.waiting.values()]
        self.answer_all(Status.DONE)
        self.version += 1
        self.rounds += 1
        self.moved += sum(weights) / len(weights)
        self.excused = set()

    def answer(self, batch, status):
        for call in self.waiting.pop(batch).calls:
            call.expected = status

    def answer_all(self, status):
        for batch in list(self.waiting):
            self.answer(batch, status)

    # Whether it is so.

    def settle(self):
        """All calls have come to what they should, or wait."""
        for call in self.calls:
            assert call.answer.has_come == (call.expected is not None)
            if call.expected is not None:
                assert call.answer.reply.status is call.expected
        self.calls = [call for call in self.calls if call.expected is None]

    def check(self):
        assert self.core.updates.num_waiting == len(self.waiting)
        assert self.core.serving.version == self.version
        values, dense = Caller(self.core).values(self.rows, self.generation)
        expected = [float(self.counts[row]) for row in range(len(self.rows))]
        np.testing.assert_allclose(values, expected, rtol=1e-5)
        # The mean of equal gradients: one for each round, less where some were late.
        np.testing.assert_allclose(dense, self.moved, rtol=1e-5)

    def end(self):
        """Nobody is waited for any more, and every batch finds its way."""
        self.name_active(())
        self.settle()
        for task in range(NUM_TASKS):
            for number in range(TASK_BATCHES):
                self.push(task, number)
                self.settle()
        assert len(self.applied) == NUM_TASKS * TASK_BATCHES
        self.check()


class RoundsMachine(RuleBasedStateMachine):
    """Whatever befalls a server in synchronous mode, in any order."""

    def __init__(self, spec):
        super().__init__()
        self.spec = spec
        self.rounds = None

    @initialize(grads_to_wait=st.integers(2, 3), active=st.booleans())
    def begin(self, grads_to_wait, active):
        self.rounds = Rounds(self.spec, grads_to_wait)
        if active:
            self.rounds.name_active(WORKERS)

    @rule(
        task=st.integers(0, NUM_TASKS - 1),
        number=st.integers(0, TASK_BATCHES - 1),
        newer=st.sampled_from([0, 0, 0, 1, -1]),
        version=st.sampled_from([0, 0, 0, -1]),
    )
    def push(self, task, number, newer, version):
        self.rounds.push(task, number, newer=newer, version=version)
        self.rounds.settle()

    @rule(workers=st.sets(st.sampled_from(WORKERS)))
    def name_active(self, workers):
        self.rounds.name_active(workers)

    @rule()
    def time_out(self):
        self.rounds.time_out()

    @rule()
    def roll_back(self):
        self.rounds.roll_back()

    @rule()
    def begin_epoch(self):
        self.rounds.begin_epoch()

    @invariant()
    def check(self):
        self.rounds.settle()
        self.rounds.check()

    def teardown(self):
        if self.rounds is not None:
            self.rounds.end()
