"""Target messages and answers ⇄ protobuf frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from deployments.transport.codec_frame import decode_frame, decode_open, encode_open
from deployments.transport.codec_round import (
    decode_draft,
    decode_evidence,
    decode_failure,
    encode_draft,
    encode_evidence,
    encode_failure,
)
from deployments.transport.wire_limits import MAX_TOKENS, token_ids
from specdec_core.errors import InvariantError, ProtocolError
from specdec_core.messages import Close, Extend, Failed, Open, Proposed, Verified
from specdec_proto.v1 import target_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deployments.transport.codec_frame import Stamp
    from specdec_core.messages import RoleReply, TargetMessage


def encode_request(message: TargetMessage) -> target_pb2.ExtendRequest:
    """A frame of one message; frames are joined with ``MergeFrom``.

    A draft's epoch counts the openings at the drafter and means nothing to a target, so it is not sent.

    Raises:
        ProtocolError: if the draft does not follow the tokens it is sent with.
    """
    item = target_pb2.TargetItem(session_id=message.session_id, epoch=message.epoch)
    match message:
        case Open():
            item.open.CopyFrom(encode_open(message))
        case Extend():
            _check_draft_follows(message)
            item.base_len = message.base_len
            item.extend.tokens.extend(message.tokens)
            item.extend.draft.CopyFrom(encode_draft(message.draft))
        case Close():
            item.close.SetInParent()
        case _:
            assert_never(message)
    return target_pb2.ExtendRequest(items=[item])


def decode_request(request: target_pb2.ExtendRequest) -> list[TargetMessage | Failed]:
    """The messages in order; one that is malformed as the ``Failed`` to answer it with.

    Raises:
        InvalidArgumentError: if there are too many items, or one names no valid session.
    """
    return decode_frame(request.items, _message)


def encode_response(replies: Sequence[RoleReply]) -> target_pb2.ExtendResponse:
    """One frame of answers.

    Raises:
        InvariantError: on an answer no target gives.
    """
    return target_pb2.ExtendResponse(results=[_result(reply) for reply in replies])


def decode_response(response: target_pb2.ExtendResponse) -> list[Verified | Failed]:
    """The answers; one that is malformed as a ``Failed``.

    Raises:
        InvalidArgumentError: if there are too many results, or one names no valid session.
    """
    return decode_frame(response.results, _reply)


def _message(item: target_pb2.TargetItem, stamp: Stamp) -> TargetMessage:
    match item.WhichOneof("body"):
        case "open":
            return decode_open(item.open, stamp)
        case "extend":
            tokens = token_ids("extend.tokens", item.extend.tokens, 1, MAX_TOKENS)
            draft = decode_draft(item.extend.draft, stamp.base_len + len(tokens), stamp.epoch)
            return Extend(*stamp, tokens, draft)
        case "close":
            return Close(stamp.session_id, stamp.epoch)
        case _:
            raise ProtocolError("body: is missing")


def _result(reply: RoleReply) -> target_pb2.TargetResult:
    match reply:
        case Verified(session_id, evidence):
            return target_pb2.TargetResult(
                session_id=session_id,
                epoch=evidence.epoch,
                base_len=evidence.base_len,
                verified=encode_evidence(evidence),
            )
        case Failed(session_id, epoch, base_len, error):
            return target_pb2.TargetResult(
                session_id=session_id,
                epoch=epoch,
                base_len=base_len,
                failed=encode_failure(error),
            )
        case Proposed():
            raise InvariantError("a target does not propose")
        case _:
            assert_never(reply)


def _reply(result: target_pb2.TargetResult, stamp: Stamp) -> Verified | Failed:
    match result.WhichOneof("body"):
        case "verified":
            evidence = decode_evidence(result.verified, stamp.base_len, stamp.epoch)
            return Verified(stamp.session_id, evidence)
        case "failed":
            return Failed(*stamp, decode_failure(result.failed))
        case _:
            raise ProtocolError("body: is missing")


def _check_draft_follows(message: Extend) -> None:
    end = message.base_len + len(message.tokens)
    if message.draft.base_len != end:
        raise ProtocolError(f"draft: follows {message.draft.base_len} tokens, not {end}")
