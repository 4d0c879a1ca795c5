"""Every error the system raises on purpose, in one tree.

SpecdecError
├── InvalidArgumentError      a request or config value is wrong; names the field and what is allowed
│   └── VocabularyMismatchError   drafter and target map ids to different tokens
├── UnsupportedModelError     the model cannot be served (its cache cannot rewind, no safe weights)
├── NotFoundError             an unknown session, model or file
├── OverloadedError           no room now; retry later
├── PeerUnavailableError      a drafter or target is gone or unreachable; retry
├── DeadlineError             the time allowed ran out
├── CancelledError            the client gave up
├── StaleMessageError         a message of an older epoch or base length
├── ProtocolError             a peer broke the message contract
└── InvariantError            a bug of ours

Each class carries one stable ``code``; ``deployments.transport.status`` maps codes to gRPC statuses in one table.
"""

from __future__ import annotations

from enum import Enum
from typing import ClassVar


class ErrorCode(Enum):
    """Stable names of what went wrong, independent of any wire protocol."""

    INVALID_ARGUMENT = "invalid_argument"
    UNSUPPORTED = "unsupported"
    NOT_FOUND = "not_found"
    OVERLOADED = "overloaded"
    UNAVAILABLE = "unavailable"
    DEADLINE = "deadline"
    CANCELLED = "cancelled"
    STALE = "stale"
    PROTOCOL = "protocol"
    INTERNAL = "internal"


class SpecdecError(Exception):
    """Root of the tree; ``str(error)`` is one short line fit for a client."""

    code: ClassVar[ErrorCode] = ErrorCode.INTERNAL


class InvalidArgumentError(SpecdecError):
    """A value outside its allowed range.

    Args:
        field: Dotted name as the user wrote it, for example ``sampling.top_p``.
        problem: What is wrong and what is allowed, without the field name.
    """

    code = ErrorCode.INVALID_ARGUMENT

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem

    def __reduce__(self) -> tuple[type[InvalidArgumentError], tuple[str, str]]:
        """Exceptions cross processes pickled, and are rebuilt from the arguments of their constructor."""
        return type(self), (self.field, self.problem)


class VocabularyMismatchError(InvalidArgumentError):
    """Drafter and target disagree about what a token id means."""


class UnsupportedModelError(SpecdecError):
    """A model this system cannot serve without breaking its promise."""

    code = ErrorCode.UNSUPPORTED


class NotFoundError(SpecdecError):
    """Something named does not exist."""

    code = ErrorCode.NOT_FOUND


class OverloadedError(SpecdecError):
    """Capacity is used up; the same request may succeed later."""

    code = ErrorCode.OVERLOADED


class PeerUnavailableError(SpecdecError):
    """A peer is gone or unreachable; the same request may succeed elsewhere."""

    code = ErrorCode.UNAVAILABLE


class DeadlineError(SpecdecError):
    """The time allowed ran out."""

    code = ErrorCode.DEADLINE


class CancelledError(SpecdecError):
    """The client gave up."""

    code = ErrorCode.CANCELLED


class StaleMessageError(SpecdecError):
    """A message of an older epoch, or for a length the receiver does not hold."""

    code = ErrorCode.STALE


class ProtocolError(SpecdecError):
    """A peer broke the message contract."""

    code = ErrorCode.PROTOCOL


class InvariantError(SpecdecError):
    """A bug of ours: a state that must not exist."""

    code = ErrorCode.INTERNAL
