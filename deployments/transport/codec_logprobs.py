"""Log-probabilities ⇄ protobuf; they are rounded to float32, which is what they were computed in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deployments.transport.wire_limits import check_count, token_ids
from specdec_core.errors import InvalidArgumentError
from specdec_core.params import MAX_DRAFT_TOKENS, MAX_LOGPROBS
from specdec_core.types import DraftLogprobs, TokenLogprobs
from specdec_proto.v1 import types_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_LOGPROB = 1e-3  # a log-probability may round to a little above 0


def encode_token_logprobs(
    logprobs: Iterable[TokenLogprobs],
) -> list[types_pb2.TokenLogprobs]:
    """One message per token."""
    return [
        types_pb2.TokenLogprobs(logprob=each.logprob, top=_encode_top(each.top))
        for each in logprobs
    ]


def decode_token_logprobs(
    field: str, messages: Sequence[types_pb2.TokenLogprobs], most: int
) -> tuple[TokenLogprobs, ...]:
    """The records, at most ``most`` of them.

    Raises:
        InvalidArgumentError: if a bound is exceeded or a number is no log-probability.
    """
    check_count(field, len(messages), 0, most)
    check_logprobs(field, [message.logprob for message in messages])
    return tuple(
        TokenLogprobs(message.logprob, _decode_top(field, message.top)) for message in messages
    )


def encode_draft_logprobs(logprobs: DraftLogprobs) -> types_pb2.DraftLogprobs:
    """The record as it is."""
    return types_pb2.DraftLogprobs(
        draft=logprobs.draft,
        emitted=logprobs.emitted,
        top=[_encode_top(top) for top in logprobs.top],
    )


def decode_draft_logprobs(message: types_pb2.DraftLogprobs) -> DraftLogprobs:
    """The record; whether it fits the draft is for ``decide`` to tell.

    Raises:
        InvalidArgumentError: if a bound is exceeded or a number is no log-probability.
    """
    field = "evidence.logprobs"
    check_count(field, len(message.draft), 0, MAX_DRAFT_TOKENS)
    check_count(field, len(message.emitted), 1, MAX_DRAFT_TOKENS + 1)
    check_count(field, len(message.top), 1, MAX_DRAFT_TOKENS + 1)
    check_logprobs(field, (*message.draft, *message.emitted))
    return DraftLogprobs(
        draft=tuple(message.draft),
        emitted=tuple(message.emitted),
        top=tuple(_decode_top(field, top) for top in message.top),
    )


def check_logprobs(field: str, logprobs: Sequence[float]) -> None:
    """Refuse what is no log-probability, NaN included."""
    if not all(logprob <= MAX_LOGPROB for logprob in logprobs):
        raise InvalidArgumentError(field, "each must be a log probability, at most 0")


def _encode_top(top: Iterable[tuple[int, float]]) -> types_pb2.TopLogprobs:
    pairs = list(top)
    return types_pb2.TopLogprobs(
        token_ids=[token for token, _ in pairs], logprobs=[logprob for _, logprob in pairs]
    )


def _decode_top(field: str, message: types_pb2.TopLogprobs) -> tuple[tuple[int, float], ...]:
    ids = token_ids(field, message.token_ids, 0, MAX_LOGPROBS)
    check_count(field, len(message.logprobs), len(ids), len(ids))
    check_logprobs(field, message.logprobs)
    return tuple(zip(ids, message.logprobs, strict=True))
