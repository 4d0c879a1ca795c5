"""gRPC settings: of the data plane, the same in every process, and of a client of the public API."""

from __future__ import annotations

from deployments.transport.wire_limits import MAX_MESSAGE_BYTES

# Half-open connections are found within keepalive time + timeout. The server must accept pings as often as clients send them.
_KEEPALIVE_TIME_MS = 10_000
_KEEPALIVE_TIMEOUT_MS = 5_000

_SIZES: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
)
_BOTH: tuple[tuple[str, int], ...] = (
    *_SIZES,
    ("grpc.keepalive_time_ms", _KEEPALIVE_TIME_MS),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)

SERVER_OPTIONS = (
    *_BOTH,
    ("grpc.http2.min_ping_interval_without_data_ms", _KEEPALIVE_TIME_MS // 2),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", _KEEPALIVE_TIME_MS // 2),
    ("grpc.so_reuseport", 0),  # a port is one replica's
)

CLIENT_OPTIONS = (
    *_BOTH,
    ("grpc.enable_http_proxy", 0),  # peers are neighbours, whatever http_proxy says
    ("grpc.use_local_subchannel_pool", 1),  # one connection per stream, with a back-off of its own
    ("grpc.max_reconnect_backoff_ms", 1_000),
)

# Serve's proxy answers keep-alive pings with GOAWAY, so a client of the public API sends none.
API_CLIENT_OPTIONS = (*_SIZES, ("grpc.max_reconnect_backoff_ms", 1_000))
