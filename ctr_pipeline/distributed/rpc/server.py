"""The serving side of a member: gRPC without generated code.

A handler that cannot answer yet returns a `LaterReply` and its thread is free: calls that wait for
something occupy nothing but their connection's stream.
"""

import contextlib
import itertools
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc

from ctr_pipeline.distributed.coordination.codec import MalformedMessage, decode, encode
from ctr_pipeline.distributed.coordination.spec import PROTOCOL_VERSION
from ctr_pipeline.distributed.rpc import wire
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.certificates import ROLES, Role, role_name
from ctr_pipeline.distributed.rpc.failures import Refusal
from ctr_pipeline.distributed.rpc.later import Finish, LaterReply
from ctr_pipeline.errors import CtrPipelineError
from ctr_pipeline.machine import is_refused_thread
from ctr_pipeline.tracebacks import summarize

_LOGGER = logging.getLogger(__name__)
_MAX_PORT = 65_535
_LONGEST_MESSAGE = 1000
"""Characters; the reason of a refusal travels as a header, and headers are bounded to 8 KiB."""

_MOST_CALLS = 2048
"""Calls that run or wait for a thread; further ones are told that the server is busy."""

_CALLS_A_CONNECTION = 64
"""Not all threads belong to one connection."""

_MESSAGE_SECONDS = 10.0
"""A call whose message has not come by then is given up once others want its thread."""

_SECONDS_BETWEEN_WARNINGS = 10.0
_NOT_ITS_ROLE = (
    grpc.StatusCode.PERMISSION_DENIED,
    "role",
    "the certificate of the caller is of a role that may not call this",
)


@dataclass(frozen=True)
class Method:
    """One method of a service.

    Attributes:
        name: Unique in its service.
        request: Type of its message; None: raw bytes.
        reply: Type of its answer; None: raw bytes.
        call: The handler; runs in any thread, several at once. Returns the answer or, where
            somebody else will have it, a `LaterReply`.
        callers: Roles that may call it, as their certificates prove; all of them without TLS.
    """

    name: str
    request: type | None
    reply: type | None
    call: Callable[[Any], Any]
    callers: tuple[Role, ...] = ROLES

    def read(self, data: bytes) -> Any:
        """The message of a call; raises `MalformedMessage` if the bytes are none."""
        kind: Any = self.request
        if kind is None:
            return data
        return kind.decode(data) if _is_packed(kind) else decode(kind, data)

    def write(self, reply: Any) -> bytes:
        """The bytes of an answer."""
        if self.reply is None:
            return bytes(reply)
        data: bytes = reply.encode() if _is_packed(self.reply) else encode(reply)
        return data


class ByteCount:
    """A sum that many threads add to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._total = 0

    def add(self, num_bytes: int) -> None:
        """Adds."""
        with self._lock:
            self._total += num_bytes

    @property
    def total(self) -> int:
        """Bytes so far."""
        return self._total


class _Handlers(ThreadPoolExecutor):
    """Threads of which the system may refuse all but the first: calls wait for those there are.

    gRPC hands calls over in the one thread by which it takes them, and an error would end that.
    """

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except RuntimeError as error:
            if not (self._threads and is_refused_thread(error)):
                raise
            _LOGGER.warning("The system allows no more threads: calls wait for those there are")


class RpcServer:
    """Serves one service to members of the job, and to nobody else.

    Args:
        service: Its name.
        address: `host:port` to bind; port 0 takes a free one.
        access: Secrets of the job.
        num_threads: Calls that are handled at once; others wait, but for those that are to be
            answered later.
        most_calls: Calls that run or wait for a thread; further ones are refused as busy.
        calls_a_connection: Further ones of one caller wait there.
        max_request_bytes: A longer request is refused.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        service: str,
        methods: Sequence[Method],
        *,
        address: str,
        access: Access,
        num_threads: int = 128,
        most_calls: int = _MOST_CALLS,
        calls_a_connection: int = _CALLS_A_CONNECTION,
        max_request_bytes: int = wire.MAX_MESSAGE_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address = address
        self._access = access
        self._received = ByteCount()
        self._sent = ByteCount()
        self._unread = _UnreadCalls(clock)
        self._threads = _Handlers(num_threads, thread_name_prefix=service)
        self._server = grpc.server(
            self._threads,
            interceptors=[_Gate(access, self._unread, clock)],
            options=(
                # With shared ports a second server would take half of the calls of the first.
                ("grpc.so_reuseport", 0),
                ("grpc.max_concurrent_streams", calls_a_connection),
                *wire.connection_options(max_request_bytes),
            ),
            maximum_concurrent_rpcs=most_calls,
        )
        handlers = {method.name: self._handler(method) for method in methods}
        generic = grpc.method_handlers_generic_handler(f"ctrpipe.{service}", handlers)
        self._server.add_generic_rpc_handlers((generic,))

    @property
    def bytes_received(self) -> int:
        """Payload of requests so far."""
        return self._received.total

    @property
    def bytes_sent(self) -> int:
        """Payload of answers so far."""
        return self._sent.total

    def start(self) -> str:
        """Begins to serve.

        Returns:
            `host:port` as bound.

        Raises:
            CtrPipelineError: The port is taken, the address is not one of this machine, or others
                than this machine reach it and the job has no TLS.
        """
        host, _, wanted = self._address.rpartition(":")
        if not host or not wanted.isdecimal() or int(wanted) > _MAX_PORT:
            # gRPC would take port 70000 for 4464, and a name for a service of /etc/services.
            raise CtrPipelineError(
                "is no address to serve on",
                place=self._address,
                remedy="It is written HOST:PORT, such as 127.0.0.1:0",
            )
        self._access.require_protected(self._address)
        try:
            port = self._bind()
        except RuntimeError:
            raise _explain_bind(self._address) from None
        # One thread that is sure to be there, before the first call.
        self._threads.submit(bool)
        self._server.start()
        return f"{host}:{port}"

    def stop(self, grace_seconds: float) -> None:
        """Takes no more calls and returns when those that run are over or the grace is."""
        self._server.stop(grace_seconds).wait()

    def _bind(self) -> int:
        files = self._access.tls
        if files is None:
            return self._server.add_insecure_port(self._address)
        credentials = grpc.ssl_server_credentials(
            [(files.key, files.certificate)], files.authority, require_client_auth=True
        )
        return self._server.add_secure_port(self._address, credentials)

    def _handler(self, method: Method) -> Any:
        def answer(
            requests: Iterator[bytes],
            context: grpc.ServicerContext,
            send: Callable[[bytes | None], None],
        ) -> None:
            if not self._may_call(method, context):
                _refuse(context, *_NOT_ITS_ROLE)
            data = self._unread.read(requests, context)
            if data is None:
                return
            self._received.add(len(data))

            answer = _Answering(method, context, send, self._threads, self._sent)
            answer(lambda: method.call(method.read(data)))

        # What makes gRPC hand over `send` instead of waiting for what is returned.
        answer.experimental_non_blocking = True  # type: ignore[attr-defined]
        return grpc.stream_stream_rpc_method_handler(answer)

    def _may_call(self, method: Method, context: grpc.ServicerContext) -> bool:
        if self._access.tls is None:
            return True
        proved = context.auth_context().get("x509_subject_alternative_name", ())
        return any(role_name(role).encode() in proved for role in method.callers)


@dataclass(frozen=True)
class _Answering:
    """What makes the answer of a call and sends it.

    What is left of a call has no reference to itself, which only the collector would find: until
    then its connection counts it, and refuses others once it counts too many.
    """

    method: Method
    context: grpc.ServicerContext
    send: Callable[[bytes | None], None]
    threads: ThreadPoolExecutor
    sent: ByteCount

    def __call__(self, make: Finish) -> None:
        context = self.context
        try:
            reply = make()
            if isinstance(reply, LaterReply):
                if not context.add_callback(reply.abandon):
                    reply.abandon()
                reply.send_with(self._soon)
                return
            sent = self.method.write(reply)
        except Exception as error:  # noqa: BLE001  the caller is told
            status, code, message = _explain(self.method, context, error)
            context.set_trailing_metadata(((wire.REFUSAL_KEY, code),))
            context.set_code(status)
            context.set_details(message[:_LONGEST_MESSAGE])
        else:
            self.sent.add(len(sent))
            self.send(sent)
        self.send(None)

    def _soon(self, make: Finish) -> None:
        # Not in the thread of whoever has the answer: the receiver may be slow.
        with contextlib.suppress(RuntimeError):
            self.threads.submit(self, make)


def _is_packed(kind: Any) -> bool:
    """Whether a message carries tensors, and its own way to become bytes."""
    return hasattr(kind, "KIND")


def _explain(
    method: Method, context: grpc.ServicerContext, error: Exception
) -> tuple[grpc.StatusCode, str, str]:
    """What a handler raised, as the caller's program understands it."""
    if isinstance(error, Refusal):
        return grpc.StatusCode.FAILED_PRECONDITION, error.code, error.message
    if isinstance(error, MalformedMessage):
        _LOGGER.warning("%s from %s is malformed: %s", method.name, context.peer(), error)
        return grpc.StatusCode.INVALID_ARGUMENT, "malformed", str(error)
    if isinstance(error, CtrPipelineError):
        _LOGGER.error("%s failed: %s", method.name, error)
        return grpc.StatusCode.FAILED_PRECONDITION, "failed", str(error)
    _LOGGER.error("%s failed", method.name, exc_info=error)
    summary = f"{method.name} failed: {summarize(error)}"
    return grpc.StatusCode.INTERNAL, "bug", summary


class _UnreadCalls:
    """Calls whose headers have come and whose message has not; each occupies a thread.

    Args:
        clock: Seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        # In the order of their arrival.
        self._since: dict[grpc.ServicerContext, float] = {}

    def read(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes | None:
        """The message of a call, empty if the caller sends none; None if the call ended."""
        with self._lock:
            self._since[context] = self._clock()
        try:
            return next(requests, b"")
        except grpc.RpcError:
            return None
        finally:
            with self._lock:
                del self._since[context]

    def end_overdue(self) -> None:
        """Ends the calls that have waited for too long."""
        limit = self._clock() - _MESSAGE_SECONDS
        with self._lock:
            overdue = list(itertools.takewhile(lambda call: self._since[call] < limit, self._since))
        for context in overdue:
            context.cancel()


class _Gate(grpc.ServerInterceptor):  # type: ignore[type-arg]
    """Lets in callers that carry the token and speak our protocol, before reading their message."""

    def __init__(self, access: Access, unread: _UnreadCalls, clock: Callable[[], float]) -> None:
        self._access = access
        self._unread = unread
        self._warnings = _RareWarnings(clock)

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """Answers callers that are not let in; passes the others on."""
        self._unread.end_overdue()
        given = dict(handler_call_details.invocation_metadata)
        if not self._access.admits(str(given.get(wire.TOKEN_KEY, ""))):
            return self._refusing(
                grpc.StatusCode.UNAUTHENTICATED, "token", "the token is not the one of this job"
            )
        spoken = str(given.get(wire.PROTOCOL_KEY, "none"))[:20]
        if spoken != str(PROTOCOL_VERSION):
            message = f"it speaks protocol {PROTOCOL_VERSION} and the caller protocol {spoken}"
            return self._refusing(grpc.StatusCode.FAILED_PRECONDITION, "version", message)
        return continuation(handler_call_details)

    def _refusing(self, status: grpc.StatusCode, code: str, message: str) -> Any:
        def refuse(_: Iterator[bytes], context: grpc.ServicerContext) -> NoReturn:
            self._warnings.warn(f"refused a call from {context.peer()}: {message}")
            _refuse(context, status, code, message)

        # As a stream, so that the message of a stranger is never read into memory.
        return grpc.stream_unary_rpc_method_handler(refuse)


class _RareWarnings:
    """Logs a warning now and then, and how many there were meanwhile.

    Args:
        clock: Seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._next = clock()
        self._num_kept_back = 0

    def warn(self, message: str) -> None:
        """Logs the message, or counts it."""
        with self._lock:
            now = self._clock()
            if now < self._next:
                self._num_kept_back += 1
                return
            self._next = now + _SECONDS_BETWEEN_WARNINGS
            num_kept_back, self._num_kept_back = self._num_kept_back, 0
        others = f" (and {num_kept_back} others since the last such line)" if num_kept_back else ""
        _LOGGER.warning("%s%s", message, others)


def _refuse(
    context: grpc.ServicerContext, status: grpc.StatusCode, code: str, message: str
) -> NoReturn:
    context.set_trailing_metadata(((wire.REFUSAL_KEY, code),))
    context.abort(status, message[:_LONGEST_MESSAGE])


def _explain_bind(address: str) -> CtrPipelineError:
    """Why an address could not be bound; gRPC itself does not say."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    remedy = "Choose another one with --bind, or port 0 for any that is free"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, int(port)))
    except OSError as error:
        message = f"cannot be served on ({(error.strerror or str(error)).lower()})"
        return CtrPipelineError(message, place=address, remedy=remedy)
    return CtrPipelineError("was taken by another program", place=address, remedy=remedy)
