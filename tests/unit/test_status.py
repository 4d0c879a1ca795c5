from __future__ import annotations

import asyncio

import pytest
from grpc import StatusCode
from grpc.aio import AioRpcError, Metadata

from deployments.transport.status import error_of, from_rpc_error, is_retryable, to_status
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
    VocabularyMismatchError,
)

EVERY_ERROR = [
    (InvalidArgumentError("top_p", "must be in (0, 1]"), StatusCode.INVALID_ARGUMENT),
    (VocabularyMismatchError("drafter", "token 7 differs"), StatusCode.INVALID_ARGUMENT),
    (UnsupportedModelError("no"), StatusCode.FAILED_PRECONDITION),
    (NotFoundError("no"), StatusCode.NOT_FOUND),
    (OverloadedError("no"), StatusCode.RESOURCE_EXHAUSTED),
    (PeerUnavailableError("no"), StatusCode.UNAVAILABLE),
    (DeadlineError("no"), StatusCode.DEADLINE_EXCEEDED),
    (CancelledError("no"), StatusCode.CANCELLED),
    (StaleMessageError("no"), StatusCode.ABORTED),
    (ProtocolError("no"), StatusCode.INTERNAL),
    (InvariantError("no"), StatusCode.INTERNAL),
]


def rpc_error(code: StatusCode, details: str) -> AioRpcError:
    return AioRpcError(code, Metadata(), Metadata(), details=details)


@pytest.mark.parametrize(
    ("error", "status"), EVERY_ERROR, ids=[type(error).__name__ for error, _ in EVERY_ERROR]
)
def test_every_error_has_its_status_and_says_why(error: SpecdecError, status: StatusCode) -> None:
    assert to_status(error) == (status, str(error))


@pytest.mark.parametrize("code", ErrorCode)
def test_every_code_names_an_error_of_that_code(code: ErrorCode) -> None:
    error = error_of(code, "what: why")

    assert error.code is code
    assert str(error) == "what: why"


def test_an_invalid_argument_keeps_its_field() -> None:
    error = error_of(ErrorCode.INVALID_ARGUMENT, "top_p: must be in (0, 1]")

    assert isinstance(error, InvalidArgumentError)
    assert (error.field, error.problem) == ("top_p", "must be in (0, 1]")
    assert str(error_of(ErrorCode.INVALID_ARGUMENT, "bad")) == "request: bad"


def test_text_is_one_line_of_at_most_256_characters() -> None:
    _, text = to_status(PeerUnavailableError("\n  " + "x" * 300 + "\nTraceback (most recent call)"))

    assert text == "x" * 256
    assert to_status(PeerUnavailableError(" \n")) == (StatusCode.UNAVAILABLE, "")


def test_the_text_of_an_error_that_is_not_ours_is_not_told() -> None:
    assert to_status(ValueError("/root/secret")) == (
        StatusCode.INTERNAL,
        "internal error (ValueError)",
    )


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (asyncio.CancelledError(), StatusCode.CANCELLED),
        (TimeoutError(), StatusCode.DEADLINE_EXCEEDED),
    ],
)
def test_cancels_and_timeouts_of_asyncio_have_their_status(
    error: BaseException, status: StatusCode
) -> None:
    assert to_status(error)[0] is status


@pytest.mark.parametrize(
    ("code", "details"),
    [
        (StatusCode.UNAVAILABLE, "Socket closed"),
        (StatusCode.CANCELLED, "RST_STREAM 8"),
        (StatusCode.CANCELLED, ""),
        (StatusCode.INTERNAL, "The actor died unexpectedly\n at actor.py:1"),
        (StatusCode.INTERNAL, "ray.exceptions.ActorDiedError: gone"),
    ],
)
def test_what_a_lost_replica_looks_like_is_unavailable(code: StatusCode, details: str) -> None:
    error = from_rpc_error(rpc_error(code, details))

    assert type(error) is PeerUnavailableError
    assert "\n" not in str(error)
    assert str(error)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (error, status)
        for error, status in EVERY_ERROR
        if not isinstance(error, CancelledError | ProtocolError | VocabularyMismatchError)
    ],
)
def test_a_status_comes_back_as_the_error_it_was(error: SpecdecError, status: StatusCode) -> None:
    back = from_rpc_error(rpc_error(status, str(error)))

    assert type(back) is type(error)
    assert str(back) == str(error)


def test_statuses_we_do_not_send_have_a_meaning_too() -> None:
    no_method = from_rpc_error(rpc_error(StatusCode.UNIMPLEMENTED, "Method not found!"))
    unknown = from_rpc_error(rpc_error(StatusCode.UNKNOWN, ""))

    assert type(no_method) is ProtocolError
    assert (type(unknown), str(unknown)) == (InvariantError, "unknown")


def test_overload_and_loss_are_worth_a_retry() -> None:
    assert {code for code in ErrorCode if is_retryable(code)} == {
        ErrorCode.OVERLOADED,
        ErrorCode.UNAVAILABLE,
    }
