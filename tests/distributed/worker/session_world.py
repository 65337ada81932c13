"""A master that answers as it is told, a clock that stands, and a session between them."""

from collections import deque

from job_specs import job_spec

from ctr_pipeline.distributed.coordination.messages import (
    HeartbeatReply,
    LeasedTask,
    LeaseReply,
    Member,
    MemberStats,
    RegisterReply,
    TaskKey,
)
from ctr_pipeline.distributed.coordination.spec import EncodedSplit
from ctr_pipeline.distributed.worker.session import WorkerSession

TRAIN = EncodedSplit("train", "nowhere", 100)


def leased(task=0, attempt=1, *, kind="train", done_mask=0, split="train", **score):
    key = TaskKey(kind, 0, task, split)
    facts = {"first_row": 0, "num_rows": 0, "scores_file": ""} | score
    return LeasedTask(key, attempt, done_mask, **facts)


def registered(generation=1, addresses=("ps:1",), *, refused="", spec=None):
    return RegisterReply(
        refused, generation, spec or job_spec(splits=(TRAIN,)), addresses, 1.0, 5.0
    )


def beat(directive="go_on", generation=1, addresses=("ps:1",), revoked=()):
    return HeartbeatReply(directive, generation, addresses, tuple(revoked), ())


def tasks(*given, generation=1, wait=0.0):
    return LeaseReply("tasks", generation, tuple(given), wait)


def wait(seconds=1.0, generation=1):
    return LeaseReply("wait", generation, (), seconds)


def end(generation=1):
    return LeaseReply("end", generation, (), 0.0)


class Answered:
    """The answer to a call that was begun; `when` says whether it is there."""

    def __init__(self, answer, when=lambda: True):
        self.answer, self.done = answer, when
        self.cancelled = self.taken = False

    def result(self):
        assert self.done()
        assert not self.cancelled
        self.taken = True
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def cancel(self):
        self.cancelled = True


class FakeMaster:
    """Answers each method from its own queue; the last answer stays. Errors are raised.

    Leases are answered at once, or when `keeps_leases` is cleared.
    """

    def __init__(self, **answers):
        self.answers = {method: deque(given) for method, given in answers.items()}
        self.calls = []
        self.connections = 0
        self.open = 0
        self.keeps_leases = False
        self.started = []

    def connect(self):
        self.connections += 1
        self.open += 1
        return self

    def call(self, method, message, reply, *, deadline_seconds):
        answer = self._answer(method, message)
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, reply)
        return answer

    def start(self, method, message, reply, *, deadline_seconds, on_done):
        assert all(one.cancelled or one.taken for one in self.started), "two calls at a time"
        assert 0 < message.wait_seconds < deadline_seconds
        answer = self._answer(method, message)
        self.started.append(Answered(answer, lambda: not self.keeps_leases))
        return self.started[-1]

    def _answer(self, method, message):
        assert self.open == 1
        self.calls.append((method, message))
        queue = self.answers[method]
        return queue.popleft() if len(queue) > 1 else queue[0]

    def close(self):
        self.open -= 1

    def sent(self, method):
        return [message for name, message in self.calls if name == method]


class Clock:
    """Stands until it is moved."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def make_session(master, clock):
    return WorkerSession(
        member=Member("worker", 3, "abc"),
        config_fingerprint="config",
        metrics_address="",
        connect=master.connect,
        stats=MemberStats,
        clock=clock,
    )


def run_for(session, clock, seconds):
    """Turns the session as its thread would, for some seconds of the clock."""
    until = clock.now + seconds
    for _ in range(10_000):
        pause = session.turn()
        if pause <= 0:
            continue
        if clock.now + pause > until:
            clock.now = until
            return
        clock.now += pause
    raise AssertionError("the session never rests")
