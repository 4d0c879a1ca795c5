"""The one table between our error codes and gRPC statuses, both ways."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from grpc import StatusCode

from specdec_core.errors import (
    CancelledError,
    DeadlineError,
    ErrorCode,
    InvalidArgumentError,
    InvariantError,
    NotFoundError,
    OverloadedError,
    PeerUnavailableError,
    ProtocolError,
    SpecdecError,
    StaleMessageError,
    UnsupportedModelError,
)

if TYPE_CHECKING:
    from collections.abc import Callable


MAX_TEXT_CHARS = 256
_ACTOR_DEATH = ("actor died", "actordied")  # what a Serve proxy says when a replica is killed


def _invalid_argument(text: str) -> InvalidArgumentError:
    field, separator, problem = text.partition(": ")
    return (
        InvalidArgumentError(field, problem) if separator else InvalidArgumentError("request", text)
    )


@dataclass(frozen=True, slots=True)
class _Mapping:
    status: StatusCode
    build: Callable[[str], SpecdecError]
    retryable: bool = False  # the same request may succeed, later or elsewhere


_TABLE = {
    ErrorCode.INVALID_ARGUMENT: _Mapping(StatusCode.INVALID_ARGUMENT, _invalid_argument),
    ErrorCode.UNSUPPORTED: _Mapping(StatusCode.FAILED_PRECONDITION, UnsupportedModelError),
    ErrorCode.NOT_FOUND: _Mapping(StatusCode.NOT_FOUND, NotFoundError),
    ErrorCode.OVERLOADED: _Mapping(StatusCode.RESOURCE_EXHAUSTED, OverloadedError, retryable=True),
    ErrorCode.UNAVAILABLE: _Mapping(StatusCode.UNAVAILABLE, PeerUnavailableError, retryable=True),
    ErrorCode.DEADLINE: _Mapping(StatusCode.DEADLINE_EXCEEDED, DeadlineError),
    ErrorCode.CANCELLED: _Mapping(StatusCode.CANCELLED, CancelledError),
    ErrorCode.STALE: _Mapping(StatusCode.ABORTED, StaleMessageError),
    ErrorCode.PROTOCOL: _Mapping(StatusCode.INTERNAL, ProtocolError),
    ErrorCode.INTERNAL: _Mapping(StatusCode.INTERNAL, InvariantError),
}
# A status of two codes means the later one; a peer without the method speaks another protocol.
_BY_STATUS = {mapping.status: mapping for mapping in _TABLE.values()} | {
    StatusCode.UNIMPLEMENTED: _TABLE[ErrorCode.PROTOCOL]
}


class RpcFailure(Protocol):
    """A failed call, of a blocking or an asynchronous client."""

    def code(self) -> StatusCode: ...
    def details(self) -> str | None: ...


def to_status(error: BaseException) -> tuple[StatusCode, str]:
    """Status and one line of at most 256 characters for a client; never a stack trace.

    The text of an error that is not ours could hold anything, so only its kind is told.
    """
    match error:
        case SpecdecError():
            return _TABLE[error.code].status, one_line(str(error))
        case asyncio.CancelledError():
            return StatusCode.CANCELLED, "cancelled"
        case TimeoutError():
            return StatusCode.DEADLINE_EXCEEDED, "the time allowed ran out"
        case _:
            return StatusCode.INTERNAL, f"internal error ({type(error).__name__})"


def from_rpc_error(error: RpcFailure) -> SpecdecError:
    """What a failed call means to its caller.

    CANCELLED counts as the loss of the peer: a call we cancel ourselves ends with ``asyncio.CancelledError`` instead, and a
    killed replica behind HAProxy shows as CANCELLED, one behind Serve's own proxy as INTERNAL with "actor died".
    """
    text = one_line(error.details() or "")
    status = error.code()
    replica_died = status is StatusCode.INTERNAL and any(
        sign in (error.details() or "").lower() for sign in _ACTOR_DEATH
    )
    if replica_died or status is StatusCode.CANCELLED:
        return PeerUnavailableError(text or "the peer is gone")
    mapping = _BY_STATUS.get(status, _TABLE[ErrorCode.INTERNAL])
    return mapping.build(text or status.name.lower())


def error_of(code: ErrorCode, text: str) -> SpecdecError:
    """The error a peer reported as ``code`` and ``str(error)``."""
    return _TABLE[code].build(one_line(text))


def is_retryable(code: ErrorCode) -> bool:
    """Whether the same request may succeed later or elsewhere."""
    return _TABLE[code].retryable


def one_line(text: str) -> str:
    """The first non-empty line, at most 256 characters of it."""
    lines = text.strip().splitlines()
    return lines[0][:MAX_TEXT_CHARS] if lines else ""
