"""A TCP proxy on a loopback port that behaves as bad networks do: cut, stalled, slow, half-open.

It forwards between whoever connects to `address` and one target. Faults are switched while it runs
and act on open connections, too. Nothing is dropped or made up: bytes that a stall held back arrive
once it is healed, as TCP would have it. At most `2 * _BLOCK_BYTES` a direction wait in memory; then
the sender is not read from, and its own buffers fill.
"""

import asyncio
import contextlib
import enum
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

_BLOCK_BYTES = 64 * 1024
_START_SECONDS = 10.0


class Direction(enum.Enum):
    """Which way bytes go."""

    TO_TARGET = "to the target"
    TO_CALLER = "to the caller"


@dataclass(frozen=True)
class Weather:
    """What the network does now.

    Attributes:
        refuses: New connections are reset.
        dead: Directions in which nothing arrives.
        bytes_per_second: Most a direction of one connection carries; 0: any number.
        delay_seconds: Before each block is handed on.
    """

    refuses: bool = False
    dead: frozenset[Direction] = frozenset()
    bytes_per_second: float = 0.0
    delay_seconds: float = 0.0


FAIR = Weather()


@dataclass
class Traffic:
    """What went through so far."""

    connections: int = 0
    refused: int = 0
    bytes_to_target: int = 0
    bytes_to_caller: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, direction: Direction, num_bytes: int) -> None:
        """Counts a block."""
        with self._lock:
            if direction is Direction.TO_TARGET:
                self.bytes_to_target += num_bytes
            else:
                self.bytes_to_caller += num_bytes


class FaultyProxy:
    """Forwards between callers and a target until told otherwise.

    Args:
        target: `host:port`; it need not listen yet.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self.traffic = Traffic()
        self._weather = FAIR
        self._changed: asyncio.Event | None = None
        self._loop = asyncio.new_event_loop()
        self._streams: set[asyncio.StreamWriter] = set()
        self._calls: set[asyncio.Task[None]] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._ready = threading.Event()
        self._closing: asyncio.Event | None = None
        self._thread.start()
        if not self._ready.wait(_START_SECONDS):
            raise RuntimeError("the proxy does not start")

    @property
    def address(self) -> str:
        """`host:port` that callers are to be told."""
        host, port = self._listener_name
        return f"{host}:{port}"

    def __enter__(self) -> "FaultyProxy":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def heal(self) -> None:
        """Everything flows again; what was held back arrives."""
        self._set(FAIR)

    def cut(self) -> None:
        """Open connections are reset, new ones too."""
        self._set(Weather(refuses=True))
        self._on_loop(self._abort_all)

    def reset_once(self) -> None:
        """Open connections are reset; new ones are welcome."""
        self._on_loop(self._abort_all)

    def stall(self) -> None:
        """Connections are accepted and stay open, and nothing arrives in either direction."""
        self._set(Weather(dead=frozenset(Direction)))

    def half_open(self, dead: Direction) -> None:
        """Nothing arrives in one direction; the other flows."""
        self._set(Weather(dead=frozenset({dead})))

    def slow(self, *, bytes_per_second: float = 0.0, delay_seconds: float = 0.0) -> None:
        """Each direction of each connection is late, or narrow."""
        self._set(Weather(bytes_per_second=bytes_per_second, delay_seconds=delay_seconds))

    def retarget(self, target: str) -> None:
        """New connections go there: the target has restarted elsewhere."""
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))

    def close(self) -> None:
        """Resets every connection and ends the thread."""
        if self._thread.is_alive():
            closing = self._closing
            assert closing is not None
            self._loop.call_soon_threadsafe(closing.set)
            self._thread.join()

    def _set(self, weather: Weather) -> None:
        def apply() -> None:
            self._weather = replace(weather)
            assert self._changed is not None
            self._changed.set()
            self._changed = asyncio.Event()

        self._on_loop(apply)

    def _on_loop(self, call: Callable[[], None]) -> None:
        """Runs it in the proxy's thread; it has been done when this returns."""
        done = threading.Event()

        def run() -> None:
            call()
            done.set()

        self._loop.call_soon_threadsafe(run)
        if not done.wait(_START_SECONDS):
            raise RuntimeError("the proxy does not answer")

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        self._changed = asyncio.Event()
        self._closing = asyncio.Event()
        name = self._listener.getsockname()
        self._listener_name = (str(name[0]), int(name[1]))
        server = await asyncio.start_server(self._accept, sock=self._listener, limit=_BLOCK_BYTES)
        self._ready.set()
        await self._closing.wait()
        server.close()
        self._abort_all()
        for call in tuple(self._calls):
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        call = asyncio.current_task()
        assert call is not None
        self._calls.add(call)
        try:
            await self._forward(reader, writer)
        except asyncio.CancelledError:
            pass  # only `close` cancels
        finally:
            _abort(writer)
            self._calls.discard(call)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._weather.refuses:
            self.traffic.refused += 1
            return
        self.traffic.connections += 1
        self._streams.add(writer)
        out: asyncio.StreamWriter | None = None
        try:
            back, out = await asyncio.open_connection(*self._target, limit=_BLOCK_BYTES)
            self._streams.add(out)
            if self._weather.refuses:
                self._abort_all()
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(reader, out, Direction.TO_TARGET))
                pumps.create_task(self._pump(back, writer, Direction.TO_CALLER))
            # Both sides have said all: an orderly end.
            for stream in (writer, out):
                stream.close()
                with contextlib.suppress(OSError):
                    await stream.wait_closed()
        except* OSError:
            pass  # either side reset: so is the other
        finally:
            self._streams.discard(writer)
            if out is not None:
                self._streams.discard(out)
                _abort(out)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction
    ) -> None:
        while True:
            await self._until_alive(direction)
            block = await reader.read(_BLOCK_BYTES)
            # The weather may have turned while the read waited.
            await self._until_alive(direction)
            if not block:
                if writer.can_write_eof():
                    writer.write_eof()
                return
            await self._dawdle(len(block))
            await self._until_alive(direction)
            writer.write(block)
            await writer.drain()
            self.traffic.add(direction, len(block))

    async def _until_alive(self, direction: Direction) -> None:
        while direction in self._weather.dead:
            assert self._changed is not None
            await self._changed.wait()

    async def _dawdle(self, num_bytes: int) -> None:
        weather = self._weather
        seconds = weather.delay_seconds
        if weather.bytes_per_second:
            seconds += num_bytes / weather.bytes_per_second
        if seconds and (changed := self._changed) is not None:
            # A block that was slow to come is not held back once the network is well.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), seconds)

    def _abort_all(self) -> None:
        for stream in tuple(self._streams):
            _abort(stream)


def _abort(stream: asyncio.StreamWriter) -> None:
    """Resets a connection, so that its peer sees an error and no orderly end."""
    transport = stream.transport
    if transport.is_closing():
        return
    raw = stream.get_extra_info("socket")
    if raw is not None:
        with contextlib.suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def send_garbage(address: str, data: bytes, *, timeout_seconds: float = 5.0) -> bytes:
    """Sends bytes that mean nothing to a port and returns what comes back before it ends."""
    host, _, port = address.rpartition(":")
    answer = b""
    with (
        contextlib.suppress(ConnectionError, TimeoutError),
        socket.create_connection((host, int(port)), timeout=timeout_seconds) as connection,
    ):
        connection.sendall(data)
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_WR)  # a connection that was reset is none: ENOTCONN
        while block := connection.recv(_BLOCK_BYTES):
            answer += block
    return answer
