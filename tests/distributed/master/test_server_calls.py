import threading
import time

import pytest

from ctr_pipeline.distributed.coordination.messages import (
    Empty,
    RestoreReply,
    SnapshotReply,
    SnapshotRequest,
)
from ctr_pipeline.distributed.master.server_calls import (
    CallAbandonedError,
    ServerCalls,
    ServerRefusedError,
)
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.client import RpcClient
from ctr_pipeline.distributed.rpc.failures import PeerUnavailable, Refusal
from ctr_pipeline.distributed.rpc.server import Method, RpcServer

REQUEST = SnapshotRequest(1, 2, 0, True)


@pytest.fixture
def access(tmp_path):
    return Access.create(tmp_path, tls=False)


@pytest.fixture
def serve(access):
    servers = []

    def start(answer):
        server = RpcServer(
            "PsService",
            [Method("Snapshot", SnapshotRequest, SnapshotReply, answer)],
            address="127.0.0.1:0",
            access=access,
        )
        servers.append(server)
        return server.start()

    yield start
    for server in servers:
        server.stop(0.0)


def reply(version):
    return SnapshotReply("", (), (), version, 0.0)


def call(access, addresses, abandoned=lambda: False, deadline_seconds=60.0, kind=SnapshotReply):
    calls = ServerCalls(access, retry_seconds=0.0)
    try:
        return calls.call_all(
            "Snapshot",
            addresses,
            REQUEST,
            kind,
            deadline_seconds=deadline_seconds,
            abandoned=abandoned,
        )
    finally:
        calls.close()


def test_answers_stand_by_number(access, serve):
    addresses = [serve(lambda _, number=number: reply(number)) for number in range(3)]
    assert [answer.version for answer in call(access, addresses)] == [0, 1, 2]


def test_all_are_asked_at_once(access, serve):
    together = threading.Barrier(3, timeout=60)

    def answer(_):
        together.wait()
        return reply(1)

    addresses = [serve(answer) for _ in range(3)]
    assert len(call(access, addresses)) == 3


def test_one_that_has_not_registered_is_named(access, serve):
    with pytest.raises(PeerUnavailable, match="parameter server 1: has not registered"):
        call(access, [serve(lambda _: reply(0)), ""])


@pytest.mark.slow
def test_one_that_is_gone_is_named_and_the_others_are_not_waited_for(access, serve):
    forever = threading.Event()

    def never(_):
        forever.wait(60)
        return reply(0)

    started = time.monotonic()
    try:
        with pytest.raises(PeerUnavailable, match="parameter server 1"):
            call(access, [serve(never), "127.0.0.1:1"])
    finally:
        forever.set()
    assert time.monotonic() - started < 15


def test_a_request_is_repeated_where_a_connection_broke(access, serve):
    asked, third = [], threading.Event()

    def answer(request):
        asked.append(request)
        third.wait(60)  # so that no answer is quicker than the end of its call
        return reply(4)

    address = serve(answer)
    broken = RpcClient("PsService", address, access)
    calls = ServerCalls(access, retry_seconds=60.0, connect=lambda _: broken)
    start = broken.start_bytes
    attempts = []

    def break_first(*arguments, **options):
        attempts.append(options)
        call = start(*arguments, **options)
        if len(attempts) < 3:
            call.cancel()
        else:
            third.set()
        return call

    broken.start_bytes = break_first
    try:
        (found,) = calls.call_all(
            "Snapshot",
            [address],
            REQUEST,
            SnapshotReply,
            deadline_seconds=60.0,
            abandoned=lambda: False,
        )
    finally:
        third.set()
        calls.close()
    assert (found.version, len(attempts)) == (4, 3)
    assert set(asked) == {REQUEST}


def test_one_that_refuses_is_named_with_its_reason(access, serve):
    def refuse(_):
        raise Refusal("generation", "generation 7 by now")

    with pytest.raises(ServerRefusedError, match=r"parameter server 0: .*generation 7 by now"):
        call(access, [serve(refuse)])


def test_an_answer_of_another_kind_is_a_refusal(access, serve):
    with pytest.raises(ServerRefusedError, match="parameter server 0"):
        call(access, [serve(lambda _: reply(0))], kind=RestoreReply)
    with pytest.raises(ServerRefusedError):
        call(access, [serve(lambda _: reply(0))], kind=Empty)


def test_call_that_nobody_wants_any_more_is_given_up(access, serve):
    forever, asked = threading.Event(), threading.Event()

    def never(_):
        asked.set()
        forever.wait(60)
        return reply(0)

    try:
        with pytest.raises(CallAbandonedError):
            call(access, [serve(never)], abandoned=asked.is_set)
    finally:
        forever.set()


def test_a_deadline_is_kept(access, serve):
    forever = threading.Event()

    def never(_):
        forever.wait(60)
        return reply(0)

    try:
        with pytest.raises(PeerUnavailable):
            call(access, [serve(never)], deadline_seconds=0.3)
    finally:
        forever.set()
