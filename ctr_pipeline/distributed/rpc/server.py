"""The serving side of a member: gRPC without generated code."""

import logging
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc

from ctr_pipeline.distributed.coordination.spec import PROTOCOL_VERSION
from ctr_pipeline.distributed.rpc import wire
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.control import decode, encode
from ctr_pipeline.distributed.rpc.failures import MalformedMessage, Refusal
from ctr_pipeline.errors import CtrPipelineError

_LOGGER = logging.getLogger(__name__)
_MAX_PORT = 65_535
_LONGEST_MESSAGE = 1000
"""Characters; the reason of a refusal travels as a header, and headers are bounded to 8 KiB."""


@dataclass(frozen=True)
class Method:
    """One method of a service.

    Attributes:
        name: Unique in its service.
        request: Type of its control message; None: raw bytes.
        reply: Type of its answer; None: raw bytes.
        call: The handler; runs in any thread, several at once.
        streams: `call` returns an iterator of answers.
    """

    name: str
    request: type | None
    reply: type | None
    call: Callable[[Any], Any]
    streams: bool = False


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
        """So far."""
        return self._total


class RpcServer:
    """Serves one service to members of the job, and to nobody else.

    Args:
        service: Its name.
        methods: What it offers.
        address: `host:port` to bind; port 0 takes a free one.
        access: Secrets of the job.
        num_threads: Calls that are handled at once; others wait.
    """

    def __init__(
        self,
        service: str,
        methods: Sequence[Method],
        *,
        address: str,
        access: Access,
        num_threads: int = 32,
    ) -> None:
        self._address = address
        self._access = access
        self._received = ByteCount()
        self._sent = ByteCount()
        self._server = grpc.server(
            ThreadPoolExecutor(num_threads, thread_name_prefix=service),
            interceptors=[_Gate(access)],
            # With shared ports a second server would take half of the calls of the first.
            options=(("grpc.so_reuseport", 0), *wire.CONNECTION_OPTIONS),
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
            CtrPipelineError: The port is taken, or the address is not one of this machine.
        """
        host, _, wanted = self._address.rpartition(":")
        if not host or not wanted.isdecimal() or int(wanted) > _MAX_PORT:
            # gRPC would take port 70000 for 4464, and a name for a service of /etc/services.
            raise CtrPipelineError(
                "is no address to serve on",
                place=self._address,
                remedy="It is written HOST:PORT, such as 127.0.0.1:0",
            )
        try:
            port = self._bind()
        except RuntimeError:
            raise _explain_bind(self._address) from None
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
        def answer(data: bytes, context: grpc.ServicerContext) -> bytes:
            with _Explained(method, context):
                self._received.add(len(data))
                request = data if method.request is None else decode(method.request, data)
                reply = method.call(request)
                sent = bytes(reply) if method.reply is None else encode(reply)
                self._sent.add(len(sent))
                return sent

        def answer_each(data: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
            with _Explained(method, context):
                self._received.add(len(data))
                request = data if method.request is None else decode(method.request, data)
                for reply in method.call(request):
                    sent = bytes(reply) if method.reply is None else encode(reply)
                    self._sent.add(len(sent))
                    yield sent

        if method.streams:
            return grpc.unary_stream_rpc_method_handler(answer_each)
        return grpc.unary_unary_rpc_method_handler(answer)


class _Explained:
    """Turns what a handler raises into an answer that the caller's program understands."""

    def __init__(self, method: Method, context: grpc.ServicerContext) -> None:
        self._method = method
        self._context = context

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        if kind is None or kind is GeneratorExit:
            return
        if isinstance(error, Refusal):
            _refuse(self._context, grpc.StatusCode.FAILED_PRECONDITION, error.code, error.message)
        if isinstance(error, MalformedMessage):
            _LOGGER.warning(
                "%s from %s is malformed: %s", self._method.name, self._context.peer(), error
            )
            _refuse(self._context, grpc.StatusCode.INVALID_ARGUMENT, "malformed", str(error))
        if isinstance(error, CtrPipelineError):
            _LOGGER.error("%s failed: %s", self._method.name, error)
            _refuse(self._context, grpc.StatusCode.FAILED_PRECONDITION, "failed", str(error))
        if isinstance(error, Exception):
            _LOGGER.error("%s failed", self._method.name, exc_info=error)
            summary = f"{self._method.name} failed: {type(error).__name__}: {error}"
            _refuse(self._context, grpc.StatusCode.INTERNAL, "bug", summary)


class _Gate(grpc.ServerInterceptor):  # type: ignore[type-arg]
    """Lets in callers that carry the token and speak our protocol, before reading their message."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """Answers callers that are not let in; passes the others on."""
        given = dict(handler_call_details.invocation_metadata)
        if not self._access.admits(str(given.get(wire.TOKEN_KEY, ""))):
            return _refusing(
                grpc.StatusCode.UNAUTHENTICATED, "token", "the token is not the one of this job"
            )
        spoken = str(given.get(wire.PROTOCOL_KEY, "none"))[:20]
        if spoken != str(PROTOCOL_VERSION):
            message = f"it speaks protocol {PROTOCOL_VERSION} and the caller protocol {spoken}"
            return _refusing(grpc.StatusCode.FAILED_PRECONDITION, "version", message)
        return continuation(handler_call_details)


def _refusing(status: grpc.StatusCode, code: str, message: str) -> Any:
    def refuse(_: Iterator[bytes], context: grpc.ServicerContext) -> NoReturn:
        _LOGGER.warning("refused a call from %s: %s", context.peer(), message)
        _refuse(context, status, code, message)

    # As a stream, so that the message of a stranger is never read into memory.
    return grpc.stream_unary_rpc_method_handler(refuse)


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
