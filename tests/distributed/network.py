"""The network of the tests: members that call each other within one process, as bytes.

`Wire` carries calls, and a test says what becomes of each. `ScriptedMaster` is a member that
answers as it is told, and `Clock` the time of all.
"""

import threading
from collections import deque

from ctr_pipeline.distributed.coordination.codec import decode, encode
from ctr_pipeline.distributed.coordination.messages import (
    HeartbeatReply,
    HeartbeatRequest,
    LeaseReply,
    LeaseRequest,
    RegisterReply,
    RegisterRequest,
)
from ctr_pipeline.distributed.rpc.failures import CallRefused, PeerUnavailable, Refusal
from ctr_pipeline.distributed.rpc.later import LaterReply
from ctr_pipeline.distributed.rpc.server import Method


class Clock:
    """Stands until it is moved."""

    def __init__(self, now=0.0):
        self.now = now

    def __call__(self):
        return self.now


class Answered:
    """What a handler has returned, or will as soon as somebody has it."""

    def __init__(self, reply):
        self._finish = None
        self._come = threading.Event()
        self._later = reply if isinstance(reply, LaterReply) else None
        if self._later is None:
            self._take(lambda: reply)
        else:
            self._later.send_with(self._take)

    def _take(self, finish):
        self._finish = finish
        self._come.set()

    @property
    def has_come(self):
        return self._come.is_set()

    @property
    def reply(self):
        """As a thread of the server would make it; waits for it."""
        assert self._come.wait(60)
        return self._finish()

    def abandon(self):
        """The caller has left."""
        if self._later is not None:
            self._later.abandon()


class Wire:
    """Carries calls to members of this process, with the encoding of the real network.

    Attributes:
        calls: Address and method of all calls so far.
        fate: Of a call, by address, method, and the number of such calls before it: `lost`: it
            never arrives; `reply_lost`: only its answer; `junk`: nobody can read the answer; `bug`
            or `failed`: it is refused so; None: it is answered.
        after: Called after a member has answered.
        lines: All that were opened.
    """

    def __init__(self, members):
        self.members = {
            address: {method.name: method for method in methods}
            for address, methods in members.items()
        }
        self.calls = []
        self.fate = lambda address, method, number: None
        self.after = lambda: None
        self.lines = []

    def connect(self, address):
        self.lines.append(Line(self, address))
        return self.lines[-1]

    @property
    def closed(self):
        """Addresses of the lines that were closed."""
        return [line.address for line in self.lines if line.is_closed]

    @property
    def num_open(self):
        return len(self.lines) - len(self.closed)


class Line:
    """A connection, as an `RpcClient` is one."""

    def __init__(self, wire, address):
        self.wire, self.address, self.is_closed = wire, address, False

    def call_bytes(self, method, data, *, deadline_seconds):
        return Started(self, method, data).reply

    def call(self, method, message, reply, *, deadline_seconds):
        assert deadline_seconds > 0
        return decode(
            reply, self.call_bytes(method, encode(message), deadline_seconds=deadline_seconds)
        )

    def start(self, method, message, reply, *, deadline_seconds, on_done):
        assert 0 < message.wait_seconds < deadline_seconds
        return Started(self, method, encode(message), reply)

    def close(self):
        self.is_closed = True


class Started:
    """A call that is under way; its answer is of type `kind`, None: bytes."""

    def __init__(self, line, method, data, kind=None):
        wire, call = line.wire, (line.address, method)
        self._method, self._kind, self._place = wire.members[line.address][method], kind, str(call)
        number = wire.calls.count(call)
        wire.calls.append(call)
        self._fate = wire.fate(*call, number)
        self._failure = self._answered = None
        if self._fate == "lost":
            self._failure = PeerUnavailable("lost", place=self._place)
        elif self._fate in {"bug", "failed"}:
            self._failure = CallRefused(self._fate, "no room")
        else:
            try:
                self._answered = Answered(self._method.call(self._method.read(data)))
                wire.after()
            except (Refusal, PeerUnavailable, CallRefused) as error:
                self._failure = error

    def done(self):
        return self._failure is not None or self._answered.has_come

    @property
    def reply(self):
        """The bytes of the answer; waits for it."""
        try:
            if self._failure is not None:
                raise self._failure
            data = self._method.write(self._answered.reply)
        except Refusal as error:
            raise CallRefused(error.code, error.message) from None
        if self._fate == "reply_lost":
            raise PeerUnavailable("lost", place=self._place)
        return b"junk" if self._fate == "junk" else data

    def result(self):
        assert self.done()
        return decode(self._kind, self.reply)

    def cancel(self):
        if self._answered is not None:
            self._answered.abandon()


def master_methods(register, heartbeat, lease):
    """What members ask of a master."""
    return (
        Method("Register", RegisterRequest, RegisterReply, register),
        Method("Heartbeat", HeartbeatRequest, HeartbeatReply, heartbeat),
        Method("Lease", LeaseRequest, LeaseReply, lease),
    )


class ScriptedMaster:
    """Answers each method from a queue of its own, whose last answer stays; errors are raised.

    Attributes:
        sent: Messages that came, by method.
        keeps_leases: Requests for tasks are answered later, by `answer_leases`.
        kept: Requests for tasks that were kept, each with its answer.
    """

    def __init__(self, **answers):
        self._answers = {}
        self.answer(**answers)
        self.sent = {"Register": [], "Heartbeat": [], "Lease": []}
        self.keeps_leases = False
        self.kept = []
        self.wire = Wire(
            {
                "master": master_methods(
                    lambda message: self._next("Register", message),
                    lambda message: self._next("Heartbeat", message),
                    self._lease,
                )
            }
        )

    def answer(self, **answers):
        """From now on, by method: one answer, or a list of them."""
        for method, given in answers.items():
            self._answers[method] = deque(given if isinstance(given, list) else [given])

    def answer_leases(self):
        self.keeps_leases = False
        for call, reply in self.kept:
            call.give(reply)

    def connect(self):
        return self.wire.connect("master")

    @property
    def methods_called(self):
        return [method for _, method in self.wire.calls]

    def _lease(self, message):
        assert all(call.is_over for call, _ in self.kept), "two calls at a time"
        reply = self._next("Lease", message)
        if not self.keeps_leases:
            return reply
        self.kept.append((LaterReply(), reply))
        return self.kept[-1][0]

    def _next(self, method, message):
        assert self.wire.num_open == 1
        self.sent[method].append(message)
        queue = self._answers[method]
        answer = queue.popleft() if len(queue) > 1 else queue[0]
        if isinstance(answer, Exception):
            raise answer
        return answer
