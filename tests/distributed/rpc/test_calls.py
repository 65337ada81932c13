"""Server and client together, over the loopback device."""

import contextlib
import datetime
import gc
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import grpc
import pytest

from ctr_pipeline.distributed.coordination.codec import encode
from ctr_pipeline.distributed.coordination.messages import Empty
from ctr_pipeline.distributed.rpc import wire
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.certificates import ROLES, SERVING_ROLES
from ctr_pipeline.distributed.rpc.client import RpcClient
from ctr_pipeline.distributed.rpc.failures import CallRefused, PeerUnavailable, Refusal
from ctr_pipeline.distributed.rpc.later import LaterReply
from ctr_pipeline.distributed.rpc.server import Method, RpcServer
from ctr_pipeline.errors import CtrPipelineError
from tests.distributed.waiting import wait_until


@dataclass(frozen=True)
class Ask:
    number: int


@dataclass(frozen=True)
class Answer:
    text: str


class Service:
    """What the tests call."""

    def __init__(self):
        self.calls = 0
        self.gate = threading.Event()
        self.later = []
        self.abandoned = []

    def double(self, ask):
        self.calls += 1
        return Answer(str(2 * ask.number))

    def refuse(self, _):
        raise Refusal("stale", "Größe: " + "x" * 5000)

    def stumble(self, _):
        raise KeyError("secret of the server")

    def user_error(self, _):
        raise CtrPipelineError("the disk is full", place="/data")

    def wait(self, _):
        self.gate.wait(60)
        return b"done"

    def ask_later(self, _):
        self.later.append(LaterReply(self.abandoned.append))
        return self.later[-1]

    def know_already(self, ask):
        later = LaterReply()
        later.give(Answer(str(ask.number)))
        later.refuse(Refusal("second", "the first answer counts"))
        return later

    @property
    def methods(self):
        return (
            Method("Double", Ask, Answer, self.double),
            Method("Reverse", None, None, lambda data: data[::-1]),
            Method("Refuse", Empty, Empty, self.refuse),
            Method("Stumble", Empty, Empty, self.stumble),
            Method("UserError", Empty, Empty, self.user_error),
            Method("Wait", None, None, self.wait),
            Method("AskLater", Empty, Answer, self.ask_later),
            Method("KnowAlready", Ask, Answer, self.know_already),
        )


@pytest.fixture(autouse=True)
def known_service(monkeypatch):
    monkeypatch.setitem(SERVING_ROLES, "Test", "launcher")


class Pair:
    """A served `Service` and a client of it."""

    def __init__(self, access, *, max_answer_bytes=wire.MAX_MESSAGE_BYTES, **options):
        self.access, self.max_answer_bytes = access, max_answer_bytes
        self.service = Service()
        self.server = RpcServer(
            "Test",
            self.service.methods,
            address="127.0.0.1:0",
            access=access,
            **{"num_threads": 4, **options},
        )
        self.address = self.server.start()
        self.clients = []
        self.client = self.connect(access)

    def connect(self, access, **options):
        options = {"max_answer_bytes": self.max_answer_bytes, **options}
        self.clients.append(RpcClient("Test", self.address, access, **options))
        return self.clients[-1]

    def close(self):
        self.service.gate.set()
        for client in self.clients:
            client.close()
        self.server.stop(0)


@pytest.fixture(params=[False, True], ids=["open", "tls"])
def pair(request, tmp_path):
    pair = Pair(Access.create(tmp_path, request.param))
    yield pair
    pair.close()


@pytest.fixture
def open_pair(tmp_path):
    pair = Pair(Access.create(tmp_path, False))
    yield pair
    pair.close()


@pytest.fixture
def refused_threads(monkeypatch):
    """Begins to refuse threads, until its end."""

    @contextlib.contextmanager
    def refuse():
        def start(_):
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patched:
            patched.setattr("threading.Thread.start", start)
            yield

    return refuse


class TestNoThreads:
    """The system allows no more threads."""

    def test_calls_wait_for_the_thread_that_there_is(self, open_pair, refused_threads):
        with refused_threads():
            for number in range(3):
                answer = open_pair.client.call("Double", Ask(number), Answer, deadline_seconds=60)
                assert answer == Answer(str(2 * number))
        assert open_pair.client.call("Double", Ask(21), Answer, deadline_seconds=60) == Answer("42")

    def test_a_call_that_nobody_can_wait_for_is_tried_again_with_success(
        self, open_pair, refused_threads
    ):
        with refused_threads(), pytest.raises(PeerUnavailable, match="no thread"):
            open_pair.client.start_bytes("Reverse", b"abc", deadline_seconds=60)
        call = open_pair.client.start_bytes("Reverse", b"abc", deadline_seconds=60)
        assert call.result() == b"cba"


class TestCalls:
    def test_control_messages(self, pair):
        assert pair.client.call("Double", Ask(21), Answer, deadline_seconds=60) == Answer("42")

    def test_bytes(self, pair):
        assert pair.client.call_bytes("Reverse", b"abc", deadline_seconds=60) == b"cba"
        assert pair.client.call_bytes("Reverse", b"", deadline_seconds=60) == b""

    def test_several_under_way(self, pair):
        calls = [
            pair.client.start_bytes("Reverse", str(number).encode() * 2, deadline_seconds=60)
            for number in range(10, 30)
        ]
        assert [call.result() for call in calls] == [
            (str(number) * 2)[::-1].encode() for number in range(10, 30)
        ]

    def test_many_threads_share_a_client(self, open_pair):
        with ThreadPoolExecutor(8) as pool:
            found = pool.map(
                lambda number: open_pair.client.call(
                    "Double", Ask(number), Answer, deadline_seconds=60
                ),
                range(100),
            )
            assert [answer.text for answer in found] == [str(2 * number) for number in range(100)]
        assert open_pair.service.calls == 100

    def test_payload_is_counted(self, open_pair):
        open_pair.client.call_bytes("Reverse", b"x" * 1000, deadline_seconds=60)
        assert open_pair.server.bytes_received == 1000
        assert open_pair.server.bytes_sent == 1000

    def test_64_mb_pass(self, open_pair):
        data = bytes(1 << 20) * 64
        found = open_pair.client.call_bytes("Reverse", data, deadline_seconds=60)
        assert len(found) == len(data)


class TestLaterReplies:
    def test_many_more_calls_wait_than_there_are_threads(self, pair):
        calls = [pair.client.start_bytes("AskLater", b"{}", deadline_seconds=60) for _ in range(40)]
        wait_until(lambda: len(pair.service.later) == 40)
        # There are four threads.
        assert pair.client.call_bytes("Reverse", b"ab", deadline_seconds=60) == b"ba"
        for number, later in enumerate(pair.service.later):
            later.give(Answer(str(number)))
        found = {call.result() for call in calls}
        assert found == {f'{{"text":"{number}"}}'.encode() for number in range(40)}
        assert all(later.is_over for later in pair.service.later)

    def test_an_answer_that_is_there_already(self, open_pair):
        found = open_pair.client.call("KnowAlready", Ask(7), Answer, deadline_seconds=60)
        assert found == Answer("7")

    def test_a_refusal(self, open_pair, caplog):
        for error, code, said in (
            (Refusal("gone", "no such thing"), "gone", "no such thing"),
            (CtrPipelineError("the disk is full"), "failed", "the disk is full"),
            (KeyError("x"), "bug", "AskLater failed: KeyError"),
        ):
            call = open_pair.client.start_bytes("AskLater", b"{}", deadline_seconds=60)
            wait_until(lambda: open_pair.service.later)
            open_pair.service.later.pop().refuse(error)
            with pytest.raises(CallRefused, match=said) as caught:
                call.result()
            assert caught.value.code == code
        assert "KeyError: 'x'" in caplog.text

    def test_an_answer_of_another_type_is_a_bug(self, open_pair):
        call = open_pair.client.start_bytes("AskLater", b"{}", deadline_seconds=60)
        wait_until(lambda: open_pair.service.later)
        open_pair.service.later[0].give(object())
        with pytest.raises(CallRefused) as caught:
            call.result()
        assert caught.value.code == "bug"

    def test_the_deadline_ends_the_call(self, open_pair):
        with pytest.raises(PeerUnavailable):
            open_pair.client.call_bytes("AskLater", b"{}", deadline_seconds=0.2)
        (later,) = open_pair.service.later
        wait_until(lambda: later.is_over)
        assert open_pair.service.abandoned == [later]
        later.give(Answer("too late"))
        assert open_pair.client.call_bytes("Reverse", b"ab", deadline_seconds=60) == b"ba"

    def test_a_caller_that_leaves_ends_the_call(self, open_pair):
        call = open_pair.client.start_bytes("AskLater", b"{}", deadline_seconds=60)
        wait_until(lambda: open_pair.service.later)
        call.cancel()
        wait_until(lambda: open_pair.service.later[0].is_over)

    def test_caller_that_begins_a_call_is_told_of_its_end(self, pair):
        told = threading.Event()
        pending = pair.client.start(
            "AskLater", Empty(), Answer, deadline_seconds=60, on_done=told.set
        )
        wait_until(lambda: pair.service.later)
        assert not pending.done()
        pair.service.later[0].give(Answer("at last"))
        assert told.wait(60)
        assert (pending.done(), pending.result()) == (True, Answer("at last"))
        assert pair.service.abandoned == []

    def test_an_answer_that_is_no_such_message_is_refused(self, open_pair):
        pending = open_pair.client.start(
            "AskLater", Empty(), Ask, deadline_seconds=60, on_done=lambda: None
        )
        wait_until(lambda: open_pair.service.later)
        open_pair.service.later[0].give(Answer("no number"))
        with pytest.raises(CallRefused) as caught:
            pending.result()
        assert caught.value.code == "malformed"

    def test_the_server_stops_meanwhile(self, open_pair):
        call = open_pair.client.start_bytes("AskLater", b"{}", deadline_seconds=60)
        wait_until(lambda: open_pair.service.later)
        open_pair.server.stop(0)
        with pytest.raises(PeerUnavailable):
            call.result()
        open_pair.service.later[0].give(Answer("too late"))


def is_unanswered(client):
    """Whether no thread of the server is free for a call."""
    try:
        client.call_bytes("Reverse", b"ab", deadline_seconds=0.5)
    except PeerUnavailable:
        return True
    return False


class HeadersOnly:
    """Calls of a member whose messages never come.

    Args:
        pair: Whose server is called.
        connections: To it.
        calls: On each connection.
    """

    def __init__(self, pair, connections, calls):
        metadata = ((wire.TOKEN_KEY, pair.access.token), (wire.PROTOCOL_KEY, "1"))
        self.over = threading.Event()
        # Each with a pool of its own: subchannels would be shared otherwise.
        options = (("grpc.use_local_subchannel_pool", 1),)
        self.channels = [
            grpc.insecure_channel(pair.address, options=options) for _ in range(connections)
        ]
        self.calls = [
            channel.stream_unary("/ctrpipe.Test/Reverse").future(
                self.nothing(), metadata=metadata, timeout=60
            )
            for channel in self.channels
            for _ in range(calls)
        ]

    def nothing(self):
        self.over.wait(60)
        yield from ()

    def close(self):
        self.over.set()
        for channel in self.channels:
            channel.close()


@pytest.fixture
def no_collector():
    gc.disable()
    yield
    gc.enable()


class TestCrowds:
    def test_a_connection_does_not_get_all_threads(self, tmp_path):
        pair = Pair(Access.create(tmp_path, False), num_threads=80)
        crowd = HeadersOnly(pair, connections=1, calls=100)
        try:
            for _ in range(20):
                assert pair.client.call_bytes("Reverse", b"ab", deadline_seconds=60) == b"ba"
        finally:
            crowd.close()
            pair.close()

    def test_a_connection_takes_any_number_of_calls_one_after_another(
        self, open_pair, no_collector
    ):
        """Nothing is left of a call that the collector would have to find first."""
        client, service = open_pair.client, open_pair.service
        for number in range(100):
            assert client.call("Double", Ask(1), Answer, deadline_seconds=60).text == "2"
            assert client.call("KnowAlready", Ask(1), Answer, deadline_seconds=60).text == "1"
            later = client.start_bytes("AskLater", encode(Empty()), deadline_seconds=60)
            wait_until(lambda number=number: len(service.later) > number)
            service.later[number].give(Answer("late"))
            assert later.result()
            service.later[number] = None
            with pytest.raises(CallRefused, match="Größe"):
                client.call("Refuse", Empty(), Empty, deadline_seconds=60)

    def test_calls_whose_message_never_comes_are_ended(self, tmp_path):
        now = [0.0]
        pair = Pair(Access.create(tmp_path, False), num_threads=4, clock=lambda: now[0])
        crowd = HeadersOnly(pair, connections=1, calls=4)
        try:
            wait_until(lambda: is_unanswered(pair.client))
            now[0] = 11.0
            assert pair.client.call_bytes("Reverse", b"ab", deadline_seconds=60) == b"ba"
            assert all(call.exception(timeout=60) is not None for call in crowd.calls)
        finally:
            crowd.close()
            pair.close()

    def test_a_server_with_too_many_calls_is_busy(self, tmp_path):
        pair = Pair(Access.create(tmp_path, False), num_threads=1, most_calls=2)
        try:
            held = [pair.client.start_bytes("Wait", b"x", deadline_seconds=60) for _ in range(2)]
            wait_until(lambda: pair.server.bytes_received)
            with pytest.raises(PeerUnavailable, match="busy"):
                pair.client.call_bytes("Reverse", b"ab", deadline_seconds=60)
            pair.service.gate.set()
            assert [call.result() for call in held] == [b"done"] * 2
            assert pair.client.call_bytes("Reverse", b"ab", deadline_seconds=60) == b"ba"
        finally:
            pair.close()

    def test_refusals_are_logged_now_and_then(self, tmp_path, caplog):
        now = [0.0]
        pair = Pair(Access.create(tmp_path, False), clock=lambda: now[0])
        stranger = pair.connect(Access.create(tmp_path / "other", False))
        try:
            for _ in range(50):
                with pytest.raises(CallRefused):
                    stranger.call_bytes("Reverse", b"", deadline_seconds=60)
            assert caplog.text.count("refused a call") == 1
            now[0] = 11.0
            with pytest.raises(CallRefused):
                stranger.call_bytes("Reverse", b"", deadline_seconds=60)
            assert "(and 49 others since the last such line)" in caplog.text
        finally:
            pair.close()


class TestRefusals:
    def test_carry_their_code_and_reason(self, pair):
        with pytest.raises(CallRefused, match="Größe: xxx") as caught:
            pair.client.call("Refuse", Empty(), Empty, deadline_seconds=60)
        assert caught.value.code == "stale"
        assert caught.value.place == pair.address

    def test_a_bug_is_logged_there_and_named_here(self, open_pair, caplog):
        with pytest.raises(CallRefused, match="Stumble failed: KeyError") as caught:
            open_pair.client.call("Stumble", Empty(), Empty, deadline_seconds=60)
        assert caught.value.code == "bug"
        assert "Traceback" in caplog.text

    def test_an_error_of_the_user_keeps_its_words(self, open_pair):
        with pytest.raises(CallRefused, match="/data: the disk is full") as caught:
            open_pair.client.call("UserError", Empty(), Empty, deadline_seconds=60)
        assert caught.value.code == "failed"

    def test_an_unknown_method(self, open_pair):
        with pytest.raises(CallRefused) as caught:
            open_pair.client.call("Triple", Empty(), Empty, deadline_seconds=60)
        assert caught.value.code == "unknown_method"

    @pytest.mark.parametrize("data", [b"", b"{}", b'{"number": "1"}', b"\xff", b"[" * 10**5])
    def test_a_malformed_request(self, open_pair, data):
        with pytest.raises(CallRefused) as caught:
            open_pair.client.call_bytes("Double", data, deadline_seconds=60)
        assert caught.value.code == "malformed"
        assert open_pair.service.calls == 0

    def test_a_malformed_answer(self, open_pair):
        with pytest.raises(CallRefused, match=r"Ask\.number is missing") as caught:
            open_pair.client.call("Double", Ask(1), Ask, deadline_seconds=60)
        assert caught.value.code == "malformed"

    @pytest.mark.parametrize("limit", ["max_request_bytes", "max_answer_bytes"])
    def test_a_message_beyond_the_limit(self, tmp_path, limit):
        pair = Pair(Access.create(tmp_path, False), **{limit: 1000})
        try:
            with pytest.raises(CallRefused) as caught:
                pair.client.call_bytes("Reverse", bytes(2000), deadline_seconds=60)
            assert caught.value.code == "too_large"
            assert pair.client.call_bytes("Reverse", b"ab", deadline_seconds=60) == b"ba"
        finally:
            pair.close()


class TestStrangers:
    def test_another_job_s_token(self, open_pair, tmp_path, caplog):
        stranger = Access.create(tmp_path / "other", False)
        with pytest.raises(CallRefused, match="not the one of this job") as caught:
            open_pair.connect(stranger).call("Double", Ask(1), Answer, deadline_seconds=60)
        assert caught.value.code == "token"
        assert open_pair.service.calls == 0
        assert "refused a call from ipv4:127.0.0.1:" in caplog.text
        assert stranger.token not in caplog.text
        assert open_pair.access.token not in caplog.text

    def test_a_stranger_s_message_is_not_read(self, open_pair, tmp_path):
        stranger = open_pair.connect(Access.create(tmp_path / "other", False))
        with pytest.raises((CallRefused, PeerUnavailable)):
            stranger.call_bytes("Reverse", bytes(100 << 20), deadline_seconds=60)
        assert open_pair.server.bytes_received == 0

    def test_another_job_s_certificate(self, tmp_path):
        pair = Pair(Access.create(tmp_path / "job", True))
        other = Access.create(tmp_path / "other", True)
        try:
            # With the right token: the certificate alone keeps it out.
            stranger = pair.connect(Access(pair.access.token, other.tls))
            with pytest.raises(PeerUnavailable):
                stranger.call("Double", Ask(1), Answer, deadline_seconds=3)
            with pytest.raises(PeerUnavailable):
                pair.connect(Access(pair.access.token, None)).call(
                    "Double", Ask(1), Answer, deadline_seconds=3
                )
            assert pair.service.calls == 0
        finally:
            pair.close()

    def test_another_version_names_both(self, open_pair, caplog):
        stranger = open_pair.connect(open_pair.access, protocol=99)
        with pytest.raises(CallRefused, match="protocol 1 and the caller protocol 99") as caught:
            stranger.call("Double", Ask(1), Answer, deadline_seconds=60)
        assert caught.value.code == "version"
        assert "same version of ctrpipe" in str(caught.value)
        assert open_pair.service.calls == 0

    def test_garbage_on_the_port(self, pair):
        chance = random.Random(1)
        host, _, port = pair.address.rpartition(":")
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        for trial in range(40):
            data = bytes(chance.randrange(256) for _ in range(chance.choice((0, 1, 9, 300, 5000))))
            with socket.create_connection((host, int(port)), timeout=60) as stranger:
                stranger.sendall((preface if trial % 2 else b"") + data)
        assert pair.client.call("Double", Ask(4), Answer, deadline_seconds=60) == Answer("8")

    def test_connections_that_say_nothing(self, open_pair):
        host, _, port = open_pair.address.rpartition(":")
        silent = [socket.create_connection((host, int(port)), timeout=60) for _ in range(50)]
        try:
            answer = open_pair.client.call("Double", Ask(4), Answer, deadline_seconds=60)
            assert answer == Answer("8")
        finally:
            for one in silent:
                one.close()


class TestUnavailable:
    def test_peer_is_unavailable_if_nobody_listens(self, tmp_path):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        client = RpcClient("Test", address, Access.create(tmp_path, False))
        with pytest.raises(PeerUnavailable, match=address):
            client.call("Double", Ask(1), Answer, deadline_seconds=60)
        client.close()

    def test_peer_is_unavailable_if_it_is_too_slow(self, open_pair):
        with pytest.raises(PeerUnavailable):
            open_pair.client.call_bytes("Wait", b"", deadline_seconds=0.1)

    def test_the_server_stops_meanwhile(self, open_pair):
        call = open_pair.client.start_bytes("Wait", b"", deadline_seconds=60)
        while not open_pair.server.bytes_received and not call.done():
            open_pair.client.call_bytes("Reverse", b"x", deadline_seconds=60)
        open_pair.server.stop(0)
        with pytest.raises(PeerUnavailable):
            call.result()

    def test_our_side_closes_meanwhile(self, open_pair):
        call = open_pair.client.start_bytes("Wait", b"", deadline_seconds=60)
        assert not call.done()
        open_pair.client.close()
        with pytest.raises(PeerUnavailable):
            call.result()
        for use in (
            lambda: open_pair.client.call("Double", Ask(1), Answer, deadline_seconds=1),
            lambda: open_pair.client.start_bytes("Reverse", b"", deadline_seconds=1),
        ):
            with pytest.raises(PeerUnavailable):
                use()

    def test_a_cancelled_call(self, open_pair):
        call = open_pair.client.start_bytes("Wait", b"", deadline_seconds=60)
        call.cancel()
        with pytest.raises(PeerUnavailable):
            call.result()

    def test_a_restarted_server_is_found_again(self, open_pair):
        open_pair.client.call("Double", Ask(1), Answer, deadline_seconds=60)
        open_pair.server.stop(0)
        with pytest.raises(PeerUnavailable):
            open_pair.client.call("Double", Ask(1), Answer, deadline_seconds=60)
        second = RpcServer(
            "Test", open_pair.service.methods, address=open_pair.address, access=open_pair.access
        )
        assert second.start() == open_pair.address
        until = time.monotonic() + 60
        while True:
            try:
                found = open_pair.client.call("Double", Ask(2), Answer, deadline_seconds=60)
                break
            except PeerUnavailable:
                assert time.monotonic() < until
                time.sleep(0.01)
        assert found == Answer("4")
        second.stop(0)


class TestPorts:
    def test_a_taken_port_is_told(self, open_pair):
        second = RpcServer("Test", (), address=open_pair.address, access=open_pair.access)
        with pytest.raises(CtrPipelineError, match=r"address already in use.*--bind"):
            second.start()

    def test_an_address_of_another_machine(self, tmp_path):
        access = Access.create(tmp_path, True)
        server = RpcServer("Test", (), address="198.51.100.1:0", access=access)
        with pytest.raises(CtrPipelineError, match=r"cannot be served on \(cannot assign"):
            server.start()

    @pytest.mark.parametrize(
        "address", ["127.0.0.1:99999", "127.0.0.1:http", "127.0.0.1", ":80", "127.0.0.1:-1", ""]
    )
    def test_address_that_is_none_is_refused(self, open_pair, address):
        server = RpcServer("Test", (), address=address, access=open_pair.access)
        with pytest.raises(CtrPipelineError, match="is no address to serve on"):
            server.start()


STOPPED_SERVER = """
import sys, time
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.certificates import ROLES, SERVING_ROLES
from ctr_pipeline.distributed.rpc import wire
from ctr_pipeline.distributed.rpc.later import LaterReply
from ctr_pipeline.distributed.rpc.server import Method, RpcServer

server = RpcServer(
    "Test",
    (Method("Wait", None, None, lambda _: time.sleep(60)), Method("Ok", None, None, lambda d: d)),
    address="127.0.0.1:0",
    access=Access("open-x", None),
)
print(server.start(), flush=True)
time.sleep(600)
"""


@pytest.mark.slow
class TestHalfOpen:
    def test_a_stopped_process_is_noticed_within_seconds(self):
        with subprocess.Popen(
            [sys.executable, "-c", STOPPED_SERVER], stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                client = RpcClient(
                    "Test", process.stdout.readline().strip(), Access("open-x", None)
                )
                assert client.call_bytes("Ok", b"x", deadline_seconds=60) == b"x"
                call = client.start_bytes("Wait", b"", deadline_seconds=50)
                os.kill(process.pid, signal.SIGSTOP)
                start = time.monotonic()
                with pytest.raises(PeerUnavailable):
                    call.result()
                # Long before its deadline.
                assert time.monotonic() - start < 25
                client.close()
            finally:
                process.kill()


class TestRoles:
    """With TLS: who may serve what, and who may call it."""

    @pytest.fixture
    def job(self, tmp_path):
        Access.create(tmp_path, True)
        return lambda role: Access.load(tmp_path, role)

    @pytest.fixture
    def serve(self):
        servers = []

        def serve(service, methods, access):
            servers.append(RpcServer(service, methods, address="127.0.0.1:0", access=access))
            return servers[-1].start()

        yield serve
        for server in servers:
            server.stop(0)

    @pytest.fixture
    def ask(self):
        def ask(service, address, access, method="Do"):
            client = RpcClient(service, address, access)
            try:
                return client.call(method, Ask(1), Answer, deadline_seconds=3)
            finally:
                client.close()

        return ask

    def test_a_method_is_called_by_its_roles_alone(self, job, serve, ask):
        for_master = Method("Do", Ask, Answer, lambda ask: Answer("done"), callers=("master",))
        address = serve("PsService", [for_master], job("ps"))
        assert ask("PsService", address, job("master")) == Answer("done")
        for role in set(ROLES) - {"master"}:
            with pytest.raises(CallRefused) as refused:
                ask("PsService", address, job(role))
            assert refused.value.code == "role"
            assert not refused.value.may_pass

    @pytest.mark.parametrize("role", ["ps", "worker", "launcher", "client"])
    def test_no_other_key_serves_as_the_master(self, job, serve, ask, role):
        called = []
        method = Method("Do", Ask, Answer, lambda ask: called.append(ask) or Answer("caught"))
        address = serve("MasterService", [method], job(role))
        with pytest.raises(PeerUnavailable):
            ask("MasterService", address, job("worker"))
        assert not called

    def test_expired_certificates_are_refused_and_new_ones_are_not(
        self, tmp_path, serve, ask, monkeypatch
    ):
        method = Method("Do", Ask, Answer, lambda ask: Answer("done"))
        with monkeypatch.context() as patch:
            patch.setattr(
                "ctr_pipeline.distributed.rpc.certificates.VALID_FOR",
                -datetime.timedelta(minutes=1),
            )
            expired = Access.create(tmp_path, True)
        address = serve("LauncherService", [method], expired)
        with pytest.raises(PeerUnavailable):
            ask("LauncherService", address, expired)
        renewed = Access.create(tmp_path, True)
        address = serve("LauncherService", [method], renewed)
        assert ask("LauncherService", address, renewed) == Answer("done")

    def test_calls_without_tls_neither_leave_nor_are_served_beyond_this_machine(self, tmp_path):
        access = Access.create(tmp_path, False)
        with pytest.raises(CtrPipelineError, match="the job has no TLS"):
            RpcServer("PsService", [], address="0.0.0.0:0", access=access).start()
        with pytest.raises(CtrPipelineError, match="the job has no TLS"):
            RpcClient("MasterService", "master.example:7000", access)
        insisted = Access.create(tmp_path, False, insecure=True)
        server = RpcServer("PsService", [], address="0.0.0.0:0", access=insisted)
        server.start()
        server.stop(0)
