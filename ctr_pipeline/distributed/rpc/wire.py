"""What both ends of a call agree on: metadata keys, limits, settings of the connection."""

TOKEN_KEY = "ctrpipe-token"  # noqa: S105  the name of the field, not its content
PROTOCOL_KEY = "ctrpipe-protocol"
REFUSAL_KEY = "ctrpipe-refusal"
"""Trailing metadata of a refused call: the code of the `Refusal`."""

MAX_MESSAGE_BYTES = 256 << 20

_CONNECTION_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A peer that is stopped, or whose host vanished, sends nothing: pings notice it in about 3 s.
    ("grpc.keepalive_time_ms", 1000),
    ("grpc.keepalive_timeout_ms", 2000),
    # gRPC also pings to measure bandwidth; whichever ping is unanswered has to count.
    ("grpc.http2.ping_timeout_ms", 2000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 500),
    ("grpc.http2.max_ping_strikes", 0),
)


def connection_options(max_received_bytes: int) -> tuple[tuple[str, int], ...]:
    """Options of gRPC for either end of a connection."""
    return (("grpc.max_receive_message_length", max_received_bytes), *_CONNECTION_OPTIONS)


def method_path(service: str, method: str) -> str:
    """The path of a method in HTTP/2."""
    return f"/ctrpipe.{service}/{method}"
