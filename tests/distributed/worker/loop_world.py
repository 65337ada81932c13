"""Parameter servers that live in the test's process, and a master that leases in order."""

import threading
from collections import deque
from dataclasses import replace

from network import Wire, master_methods

from ctr_pipeline.distributed.coordination.messages import (
    HeartbeatReply,
    LeasedTask,
    LeaseReply,
    RegisterReply,
    TaskKey,
)
from ctr_pipeline.distributed.rpc.failures import PeerUnavailable
from ctr_pipeline.distributed.worker.exchanges import PushOutcome


class StorePull:
    """Values as of the moment of the pull."""

    def __init__(self, client, prepared, create, error):
        self.prepared, self.generation, self.error = prepared, client.generation, error
        self.version = len(client.applied)
        if error is None:
            client.store.locate(prepared, create=create)
            self.parts = client.store.gather_parts(prepared, 1)

    def wait(self):
        if self.error is not None:
            raise self.error


class StorePush:
    """What became of a push; known only once it is waited for."""

    def __init__(self, outcome):
        self.outcome = outcome

    def wait(self):
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


class StoreClient:
    """A `ParameterClient` over a store of this process, which can be told to misbehave.

    `faults` are taken one by one by pulls ("pull", …) and pushes ("push", …): an exception to
    raise, "stale", "repeated", or "lost": applied, but the answer is lost.
    """

    def __init__(self, store, dense):
        self.store, self.dense_parameters = store, dense
        self.generation = 0
        self.faults = {"pull": deque(), "push": deque()}
        self.applied = []
        self.pushes = 0
        self.staleness = []
        self.on_push = lambda: None
        self.lock = threading.Lock()

    def route(self, generation, addresses):
        self.generation = generation

    def init_dense(self, values):
        assert values.shape == self.dense_parameters.values.shape

    def prepare(self, ids_BF, num_valid):
        return self.store.prepare(ids_BF, num_valid)

    def start_pull(self, prepared, *, create, batch, dense, after):
        fault = self.faults["pull"].popleft() if self.faults["pull"] else None
        return StorePull(self, prepared, create, fault)

    def gather_parts(self, pull, num_leading):
        return pull.parts

    def dense(self, pull):
        return self.dense_parameters.values.copy()

    def start_push(self, *arguments, **options):
        try:
            return StorePush(self.push(*arguments, **options))
        except Exception as error:  # noqa: BLE001  raised where the push is waited for
            return StorePush(error)

    def push(
        self,
        pull,
        gradients,
        dense_gradient,
        batch,
        *,
        step,
        learning_rate_factor,
        num_examples,
        refresh,
    ):
        self.pushes += 1
        self.on_push()
        fault = self.faults["push"].popleft() if self.faults["push"] else None
        if isinstance(fault, Exception):
            raise fault
        place = (batch.epoch, batch.task, batch.batch)
        repeated = place in {one for one, _ in self.applied}
        if fault == "stale" and not repeated:
            return PushOutcome("stale", repeated=False)
        if not repeated:
            self.store.update(
                pull.prepared,
                gradients,
                step=step,
                learning_rate_factor=learning_rate_factor,
                num_examples=num_examples,
            )
            self.dense_parameters.update(
                dense_gradient, step=step, learning_rate_factor=learning_rate_factor
            )
            self.staleness.append(len(self.applied) - pull.version)
            self.applied.append((place, step))
        if refresh is not None and refresh.error is None:
            # What this push changed of the values that were pulled before it.
            refresh.parts = self.store.gather_parts(refresh.prepared, 1)
            refresh.version = len(self.applied)
        if fault == "lost":
            raise PeerUnavailable("the answer was lost")
        return PushOutcome("applied", repeated=repeated)


class LeasingMaster:
    """Leases tasks in their order, two at a time, and believes what it is told."""

    def __init__(self, spec, tasks, *, after=()):
        self.spec = spec
        self.todo = deque(tasks)
        self.after = deque(after)
        self.generation = 1
        self.attempt = 1
        self.leased = {}
        self.reports = {}
        self.lock = threading.Lock()
        self.wire = Wire({"master": master_methods(self._register, self._heartbeat, self._lease)})

    def connect(self):
        return self.wire.connect("master")

    def _register(self, request):
        return RegisterReply("", self.generation, self.spec, ("here",), 0.05, 5.0)

    def _heartbeat(self, request):
        with self.lock:
            if request.generation == self.generation:
                for report in request.reports:
                    self.reports[report.key] = report
                    if report.finished:
                        self.leased.pop(report.key, None)
            return HeartbeatReply("go_on", self.generation, ("here",), (), ())

    def _lease(self, request):
        with self.lock:
            if not self.todo and not self.leased:
                if not self.after:
                    return LeaseReply("end", self.generation, (), 0.0)
                self.todo.extend(self.after)
                self.after.clear()
            given = []
            while self.todo and len(given) < request.num_tasks:
                task = replace(self.todo.popleft(), attempt=self.attempt)
                self.leased[task.key] = task
                given.append(task)
            if not given:
                return LeaseReply("wait", self.generation, (), 0.02)
            return LeaseReply("tasks", self.generation, tuple(given), 0.0)

    def roll_back(self):
        """All leases are void; what was leased is to be done from the start."""
        with self.lock:
            self.generation += 1
            self.attempt += 1
            self.todo.extendleft(reversed(self.leased.values()))
            self.leased.clear()


def training_tasks(epoch, num_tasks):
    return [
        LeasedTask(TaskKey("train", epoch, task, "train"), 1, 0, 0, 0, "")
        for task in range(num_tasks)
    ]
