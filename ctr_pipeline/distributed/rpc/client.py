"""The calling side of a member."""

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import grpc

from ctr_pipeline.distributed.coordination.codec import MalformedMessage, decode, encode
from ctr_pipeline.distributed.coordination.spec import PROTOCOL_VERSION
from ctr_pipeline.distributed.rpc import wire
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.certificates import SERVING_ROLES, Role, role_name
from ctr_pipeline.distributed.rpc.failures import CallRefused, PeerUnavailable
from ctr_pipeline.machine import is_refused_thread

T = TypeVar("T")

_OPTIONS = (
    # Reconnect at once and often: a restarted member is back within a second.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # This one also bounds an attempt to connect, handshake included: on a machine where hundreds of
    # members start at once, a second is too short for TLS. Calls of members wait no longer.
    ("grpc.min_reconnect_backoff_ms", 5000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Members are on this machine or in this cluster; a web proxy never stands between them.
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
)
_REFUSED = {
    grpc.StatusCode.UNAUTHENTICATED: "token",
    grpc.StatusCode.INVALID_ARGUMENT: "malformed",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "too_large",
    grpc.StatusCode.UNIMPLEMENTED: "unknown_method",
}
"""Answers of gRPC itself that trying again does not change."""

_BUSY = "Concurrent RPC limit exceeded!"
"""gRPC's words for a server that has as many calls as it takes; the status means other things."""

_REMEDIES = {
    "token": "It belongs to another job, or the job was started again meanwhile",
    "version": "Start all members of the job with the same version of ctrpipe",
}


class PendingCall:
    """The answer to a call that is under way."""

    def __init__(self, call: Any, address: str) -> None:
        self._call = call
        self._address = address

    def result(self) -> bytes:
        """Waits for the answer, at most until the call's deadline.

        Raises:
            PeerUnavailable: There is none.
            CallRefused: It is no.
        """
        try:
            return cast("bytes", self._call.result())
        except (grpc.RpcError, grpc.FutureCancelledError) as error:
            raise _explain(error, self._address) from None

    def done(self) -> bool:
        """Whether `result` would return or raise at once."""
        return bool(self._call.done())

    def add_done_callback(self, on_done: Callable[[], None]) -> None:
        """Has `on_done` called, by any thread, when `done` becomes true."""
        self._call.add_done_callback(lambda _: on_done())

    def cancel(self) -> None:
        """Nobody wants the answer any more."""
        self._call.cancel()


class PendingReply(Generic[T]):
    """The answer to a control message that is under way."""

    def __init__(self, call: PendingCall, reply: type[T], address: str) -> None:
        self._call = call
        self._reply = reply
        self._address = address

    def result(self) -> T:
        """Waits for the answer, at most until the call's deadline; raises as `RpcClient.call`."""
        return _decode(self._reply, self._call.result(), self._address)

    def done(self) -> bool:
        """Whether `result` would return or raise at once."""
        return self._call.done()

    def cancel(self) -> None:
        """Nobody wants the answer any more."""
        self._call.cancel()


class RpcClient:
    """Calls the methods of one service of one member; may be used by several threads.

    Args:
        service: Its name.
        address: `host:port`.
        access: Secrets of the job.
        protocol: Version that the caller says it speaks.
        max_answer_bytes: A longer answer is refused.

    Raises:
        CtrPipelineError: The address is not of this machine alone, and the job has no TLS.
    """

    def __init__(
        self,
        service: str,
        address: str,
        access: Access,
        *,
        protocol: int = PROTOCOL_VERSION,
        max_answer_bytes: int = wire.MAX_MESSAGE_BYTES,
    ) -> None:
        self.address = address
        self._service = service
        self._channel = _open_channel(address, access, SERVING_ROLES[service], max_answer_bytes)
        self._metadata = (
            (wire.TOKEN_KEY, access.token),
            (wire.PROTOCOL_KEY, str(protocol)),
        )

    def call(self, method: str, message: object, reply: type[T], *, deadline_seconds: float) -> T:
        """Sends a control message and waits for the answer.

        Raises:
            PeerUnavailable: There is none within the deadline.
            CallRefused: It is no, or no answer of that type.
        """
        data = self.call_bytes(method, encode(message), deadline_seconds=deadline_seconds)
        return _decode(reply, data, self.address)

    def start(
        self,
        method: str,
        message: object,
        reply: type[T],
        *,
        deadline_seconds: float,
        on_done: Callable[[], None],
    ) -> PendingReply[T]:
        """Sends a control message and returns at once.

        Args:
            message: To it.
            reply: Type of its answer.
            deadline_seconds: For the answer to come.
            on_done: Called, by any thread, when there is something to take from what is returned.

        Raises:
            PeerUnavailable: The client was closed.
        """
        call = self.start_bytes(method, encode(message), deadline_seconds=deadline_seconds)
        call.add_done_callback(on_done)
        return PendingReply(call, reply, self.address)

    def call_bytes(self, method: str, data: bytes, *, deadline_seconds: float) -> bytes:
        """Sends bytes and waits for the answer; raises as `call` does."""
        # Waiting in place costs a third of what a future and its thread do.
        try:
            return self._unary(method)(data, timeout=deadline_seconds, metadata=self._metadata)
        except grpc.RpcError as error:
            raise _explain(error, self.address) from None
        except ValueError as error:
            raise _closed(error, self.address) from None

    def start_bytes(self, method: str, data: bytes, *, deadline_seconds: float) -> PendingCall:
        """Sends bytes and returns at once.

        Raises:
            PeerUnavailable: The client was closed, or the system allows no more threads.
        """
        self._require_thread()
        invoke = self._unary(method)
        try:
            call = invoke.future(data, timeout=deadline_seconds, metadata=self._metadata)
        except ValueError as error:
            raise _closed(error, self.address) from None
        return PendingCall(call, self.address)

    def _require_thread(self) -> None:
        """Makes sure that gRPC can start the thread that takes the answers of a connection.

        Where it is refused that, it never starts another, and no answer arrives any more.
        """
        try:
            thread = threading.Thread(target=bool, daemon=True)
            thread.start()
        except RuntimeError as error:
            if not is_refused_thread(error):
                raise
            raise PeerUnavailable("no thread to wait for it", place=self.address) from error
        thread.join()

    def close(self) -> None:
        """Ends the connection; calls under way become `PeerUnavailable`."""
        self._channel.close()

    def _unary(self, method: str) -> "grpc.UnaryUnaryMultiCallable[bytes, bytes]":
        return self._channel.unary_unary(wire.method_path(self._service, method))


def _open_channel(
    address: str, access: Access, server: Role, max_answer_bytes: int
) -> grpc.Channel:
    access.require_protected(address)
    options = (*wire.connection_options(max_answer_bytes), *_OPTIONS)
    files = access.tls
    if files is None:
        return grpc.insecure_channel(address, options=options)
    credentials = grpc.ssl_channel_credentials(files.authority, files.key, files.certificate)
    # A member is known by the job that signed it and by its role: its host may be any.
    expected = ("grpc.ssl_target_name_override", role_name(server))
    return grpc.secure_channel(address, credentials, options=(*options, expected))


def _decode(reply: type[T], data: bytes, address: str) -> T:
    try:
        return decode(reply, data)
    except MalformedMessage as error:
        raise CallRefused("malformed", str(error), place=address) from None


def _closed(error: ValueError, address: str) -> PeerUnavailable:
    return PeerUnavailable(f"not connected ({error})", place=address)


def _explain(error: Any, address: str) -> PeerUnavailable | CallRefused:
    if isinstance(error, grpc.FutureCancelledError):
        return PeerUnavailable("the call was cancelled", place=address)
    status = error.code()
    details = str(error.details() or status.name.lower().replace("_", " "))
    if status is grpc.StatusCode.RESOURCE_EXHAUSTED and details == _BUSY:
        return PeerUnavailable("is busy with other calls", place=address)
    trailing = dict(error.trailing_metadata() or ())
    code = trailing.get(wire.REFUSAL_KEY) or _REFUSED.get(status)
    if code is None:
        return PeerUnavailable(f"no answer ({details})", place=address)
    return CallRefused(str(code), details, place=address, remedy=_REMEDIES.get(str(code)))
