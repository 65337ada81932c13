"""A parameter server that lives in the test's process, and a master that leases in order."""

import threading
from collections import deque
from dataclasses import replace

import numpy as np

from ctr_pipeline.distributed.coordination.messages import (
    HeartbeatReply,
    LeasedTask,
    LeaseReply,
    RegisterReply,
    TaskKey,
)
from ctr_pipeline.distributed.coordination.rounds import BatchId
from ctr_pipeline.distributed.ps.core import PsCore
from ctr_pipeline.distributed.ps.service import ps_methods
from ctr_pipeline.distributed.rpc.failures import PeerUnavailable
from ctr_pipeline.distributed.rpc.packed import PushReply, Status
from tests.distributed.network import Wire, master_methods
from tests.distributed.ps_requests import Caller, nothing_trained


class FaultyServer:
    """A real parameter server whose answers a test can spoil.

    `faults` are taken one by one by pulls and pushes: "lost": the call never arrives; "reply_lost":
    it does, but nobody hears of it; "stale": the push is refused as too old, unless it was applied
    before; None: it is answered.

    Attributes:
        applied: Place and step of each batch, in the order in which they were applied.
        staleness: For each of them, the updates that its gradients did not know of.
        pushes: Pushes that were sent, with those that never arrived.
        on_push: Called as a push is sent.
    """

    def __init__(self, spec):
        self.core = PsCore(spec, 0)
        self.faults = {"Pull": deque(), "Push": deque()}
        self.applied = []
        self.factors = []
        self.staleness = []
        self.pushes = 0
        self.on_push = lambda: None
        methods = ps_methods(self.core, lambda: None, lambda peer: None)
        spoiled = {"Pull": self._pull, "Push": self._push}
        self._wire = Wire(
            {
                "ps": [
                    replace(method, call=spoiled.get(method.name, method.call))
                    for method in methods
                ]
            }
        )
        self.restore(1)

    def connect(self, address):
        assert address == "here"
        return self._wire.connect("ps")

    def restore(self, generation):
        """Takes it to the beginning, in another generation."""
        assert not self.core.checkpoints.restore(nothing_trained(generation)).refused

    def supersede(self, task, attempt):
        """Another worker begins a later attempt at a task."""
        other = Caller(self.core, "another")
        pulled = other.pull(
            [], batch=BatchId(0, task, attempt, 0), generation=self.core.serving.generation
        )
        assert pulled.status is Status.DONE

    def values(self, keys):
        """Rows, float32 [n, W], and dense values."""
        pulled = Caller(self.core).pull(keys, create=False, generation=self.core.serving.generation)
        return pulled.values, pulled.dense

    def _fault(self, method):
        fault = self.faults[method].popleft() if self.faults[method] else None
        if fault == "lost":
            raise PeerUnavailable("gone")
        return fault

    def _pull(self, request):
        self._fault("Pull")
        return self.core.updates.pull(request)

    def _push(self, request):
        self.pushes += 1
        self.on_push()
        fault = self._fault("Push")
        batch = request.batch
        place = (batch.epoch, batch.task, batch.batch)
        if fault == "stale" and place not in {one for one, _ in self.applied}:
            nothing = np.empty(0, np.float32)
            return PushReply(Status.STALE, request.generation, 0, nothing, nothing.reshape(0, 0))
        before = self.core.serving.version
        reply = self.core.updates.push(request)
        if reply.status is Status.DONE:
            self.applied.append((place, request.step))
            self.factors.append(request.learning_rate_factor)
            self.staleness.append(before - request.version)
        if fault == "reply_lost":
            raise PeerUnavailable("the answer was lost")
        return reply


class LeasingMaster:
    """Leases tasks in their order, two at a time, and believes what it is told.

    Attributes:
        is_pausing: Workers are told to pause; what one hands back goes out anew.
        on_paused: Called once one has paused.
    """

    def __init__(self, spec, tasks, *, after=()):
        self.spec = spec
        self.todo = deque(tasks)
        self.after = deque(after)
        self.generation = 1
        self.attempt = 1
        self.leased = {}
        self.reports = {}
        self.is_pausing = False
        self.on_paused = lambda: None
        self.lock = threading.Lock()
        self.wire = Wire({"master": master_methods(self._register, self._heartbeat, self._lease)})

    def connect(self):
        return self.wire.connect("master")

    def _register(self, request):
        return RegisterReply("", self.generation, self.spec, ("here",), 0.05)

    def _heartbeat(self, request):
        with self.lock:
            if request.generation == self.generation:
                for report in request.reports:
                    self.reports[report.key] = report
                    if report.finished:
                        self.leased.pop(report.key, None)
            if request.paused:
                self.take_back()
                self.on_paused()
            directive = "pause" if self.is_pausing else "go_on"
            return HeartbeatReply(directive, self.generation, ("here",), (), ())

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

    def take_back(self):
        """What is leased is to be done by others, less what of it is done."""
        self.attempt += 1
        again = []
        for task in self.leased.values():
            report = self.reports.get(task.key)
            again.append(replace(task, done_mask=report.done_mask if report else task.done_mask))
        self.todo.extendleft(reversed(again))
        self.leased.clear()

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
