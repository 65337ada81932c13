"""The proxy that other tests rest on does to connections what it says."""

import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.distributed.faults.proxy import Direction, FaultyProxy, send_garbage
from tests.distributed.waiting import wait_until

SHORT = 0.3
LONG = 10.0


class Echo(socketserver.ThreadingTCPServer):
    """Sends back what it gets, and counts it."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self) -> None:
        self.received = 0
        super().__init__(("127.0.0.1", 0), EchoHandler)

    def handle_error(self, request, client_address):
        """Resets are what these tests are about."""


class EchoHandler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while block := self.request.recv(65536):
            self.server.received += len(block)
            self.request.sendall(block)


@pytest.fixture
def echo() -> Iterator[Echo]:
    with Echo() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[FaultyProxy]:
    with FaultyProxy(f"127.0.0.1:{echo.server_address[1]}") as proxy:
        yield proxy


@contextmanager
def call(address: str, timeout: float = LONG) -> Iterator[socket.socket]:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=timeout) as connection:
        yield connection


def receive(connection: socket.socket, num_bytes: int) -> bytes:
    data = b""
    while len(data) < num_bytes:
        block = connection.recv(num_bytes - len(data))
        if not block:
            break
        data += block
    return data


def send_until_it_blocks(connection: socket.socket, block: bytes) -> int:
    """How many bytes found room before nothing more went."""
    sent = 0
    while sent < 1 << 28:
        try:
            sent += connection.send(block)
        except TimeoutError:
            break
    return sent


def silent(connection: socket.socket) -> bool:
    """Nothing comes for a while, and the connection is still open."""
    connection.settimeout(SHORT)
    try:
        return connection.recv(1) is None
    except TimeoutError:
        return True
    finally:
        connection.settimeout(LONG)


def test_fair_weather_forwards_every_byte(proxy, echo):
    data = bytes(range(256)) * 8192
    with call(proxy.address) as connection:
        sender = threading.Thread(target=connection.sendall, args=(data,))
        sender.start()
        assert receive(connection, len(data)) == data
        sender.join()
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""
    assert proxy.traffic.bytes_to_target == proxy.traffic.bytes_to_caller == len(data)
    assert echo.received == len(data)


def test_a_cut_resets_open_and_new_connections_and_heals(proxy):
    with call(proxy.address) as connection:
        connection.sendall(b"a")
        assert receive(connection, 1) == b"a"
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    assert send_garbage(proxy.address, b"b") == b""
    assert proxy.traffic.refused == 1
    proxy.heal()
    with call(proxy.address) as connection:
        connection.sendall(b"c")
        assert receive(connection, 1) == b"c"


def test_a_single_reset_spares_the_next_connection(proxy):
    with call(proxy.address) as connection:
        connection.sendall(b"a")
        assert receive(connection, 1) == b"a"
        proxy.reset_once()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    with call(proxy.address) as connection:
        connection.sendall(b"b")
        assert receive(connection, 1) == b"b"


def test_a_stall_holds_everything_back_and_loses_nothing(proxy, echo):
    with call(proxy.address) as before:
        before.sendall(b"a")
        assert receive(before, 1) == b"a"
        proxy.stall()
        with call(proxy.address) as after:
            before.sendall(b"b")
            after.sendall(b"c")
            assert silent(before)
            assert silent(after)
            assert echo.received == 1
            proxy.heal()
            assert receive(before, 1) == b"b"
            assert receive(after, 1) == b"c"


def test_half_open_the_request_arrives_and_the_answer_does_not(proxy, echo):
    with call(proxy.address) as connection:
        proxy.half_open(Direction.TO_CALLER)
        connection.sendall(b"abc")
        wait_until(lambda: echo.received == 3)
        assert silent(connection)
        proxy.heal()
        assert receive(connection, 3) == b"abc"


def test_half_open_the_other_way(proxy, echo):
    with call(proxy.address) as connection:
        proxy.half_open(Direction.TO_TARGET)
        connection.sendall(b"abc")
        assert silent(connection)
        assert echo.received == 0
        proxy.heal()
        assert receive(connection, 3) == b"abc"


@pytest.mark.slow
def test_slow_is_as_slow_as_it_says(proxy):
    proxy.slow(bytes_per_second=100_000)
    data = b"x" * 50_000
    with call(proxy.address) as connection:
        began = time.monotonic()
        connection.sendall(data)
        assert receive(connection, len(data)) == data
        seconds = time.monotonic() - began
    # Blocks overlap on their two ways, so at least one way's time and at most both.
    assert 0.45 <= seconds < 5


def test_slow_blocks_arrive_at_once_when_healed(proxy):
    proxy.slow(delay_seconds=3600)
    with call(proxy.address) as connection:
        connection.sendall(b"late")
        assert silent(connection)
        proxy.heal()
        assert receive(connection, 4) == b"late"


def test_proxy_holds_a_bounded_amount_during_a_stall(proxy):
    proxy.stall()
    block = b"x" * (1 << 20)
    with call(proxy.address) as connection:
        connection.settimeout(SHORT)
        sent = send_until_it_blocks(connection, block)
    assert sent < 1 << 26
    assert proxy.traffic.bytes_to_target == 0


def test_a_target_that_does_not_listen_resets_the_caller():
    with socket.socket() as silent:
        # Bound all the while, so that nobody else gets the port.
        silent.bind(("127.0.0.1", 0))
        with (
            FaultyProxy(f"127.0.0.1:{silent.getsockname()[1]}") as proxy,
            # The reset may come before the call is even set up.
            pytest.raises(ConnectionResetError),
            call(proxy.address) as connection,
        ):
            connection.recv(1)


def test_proxy_can_be_pointed_at_another_target(proxy):
    with Echo() as other:
        thread = threading.Thread(target=other.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        proxy.retarget(f"127.0.0.1:{other.server_address[1]}")
        with call(proxy.address) as connection:
            connection.sendall(b"a")
            assert receive(connection, 1) == b"a"
        other.shutdown()
        thread.join()
        assert other.received == 1


def test_closing_resets_what_is_open(echo):
    proxy = FaultyProxy(f"127.0.0.1:{echo.server_address[1]}")
    with call(proxy.address) as connection:
        connection.sendall(b"a")
        assert receive(connection, 1) == b"a"
        proxy.stall()
        proxy.close()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    with pytest.raises(ConnectionRefusedError), call(proxy.address):
        pass
    proxy.close()


def test_garbage_is_sent_as_it_is(proxy):
    assert send_garbage(proxy.address, b"\x00\xff garbage") == b"\x00\xff garbage"
