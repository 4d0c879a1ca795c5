"""Drafter messages and answers ⇄ protobuf frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from deployments.transport.codec_frame import decode_frame, decode_open, encode_open
from deployments.transport.codec_round import (
    decode_draft,
    decode_failure,
    encode_draft,
    encode_failure,
)
from deployments.transport.wire_limits import MAX_TOKENS, token_ids
from specdec_core.errors import InvalidArgumentError, InvariantError, ProtocolError
from specdec_core.messages import Close, Failed, Open, Propose, Proposed, Verified
from specdec_core.params import MAX_DRAFT_TOKENS
from specdec_proto.v1 import drafter_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deployments.transport.codec_frame import Stamp
    from specdec_core.messages import DrafterMessage, RoleReply


def encode_request(message: DrafterMessage) -> drafter_pb2.ProposeRequest:
    """A frame of one message; frames are joined with ``MergeFrom``."""
    item = drafter_pb2.DrafterItem(session_id=message.session_id, epoch=message.epoch)
    match message:
        case Open():
            item.open.CopyFrom(encode_open(message))
        case Propose():
            item.base_len = message.base_len
            item.propose.tokens.extend(message.tokens)
            item.propose.num_draft_tokens = message.num_draft_tokens
        case Close():
            item.close.SetInParent()
        case _:
            assert_never(message)
    return drafter_pb2.ProposeRequest(items=[item])


def decode_request(request: drafter_pb2.ProposeRequest) -> list[DrafterMessage | Failed]:
    """The messages in order; one that is malformed as the ``Failed`` to answer it with.

    Raises:
        InvalidArgumentError: if there are too many items, or one names no valid session.
    """
    return decode_frame(request.items, _message)


def encode_response(replies: Sequence[RoleReply]) -> drafter_pb2.ProposeResponse:
    """One frame of answers.

    Raises:
        InvariantError: on an answer no drafter gives.
    """
    return drafter_pb2.ProposeResponse(results=[_result(reply) for reply in replies])


def decode_response(response: drafter_pb2.ProposeResponse) -> list[Proposed | Failed]:
    """The answers; one that is malformed as a ``Failed``.

    Raises:
        InvalidArgumentError: if there are too many results, or one names no valid session.
    """
    return decode_frame(response.results, _reply)


def _message(item: drafter_pb2.DrafterItem, stamp: Stamp) -> DrafterMessage:
    match item.WhichOneof("body"):
        case "open":
            return decode_open(item.open, stamp)
        case "propose":
            tokens = token_ids("propose.tokens", item.propose.tokens, 0, MAX_TOKENS)
            wanted = item.propose.num_draft_tokens
            if wanted > MAX_DRAFT_TOKENS:
                raise InvalidArgumentError(
                    "propose.num_draft_tokens", f"must be in [0, {MAX_DRAFT_TOKENS}], got {wanted}"
                )
            return Propose(*stamp, tokens, wanted)
        case "close":
            return Close(stamp.session_id, stamp.epoch)
        case _:
            raise ProtocolError("body: is missing")


def _result(reply: RoleReply) -> drafter_pb2.DrafterResult:
    match reply:
        case Proposed(session_id, block):
            return drafter_pb2.DrafterResult(
                session_id=session_id,
                epoch=block.epoch,
                base_len=block.base_len,
                proposed=encode_draft(block),
            )
        case Failed(session_id, epoch, base_len, error):
            return drafter_pb2.DrafterResult(
                session_id=session_id,
                epoch=epoch,
                base_len=base_len,
                failed=encode_failure(error),
            )
        case Verified():
            raise InvariantError("a drafter does not verify")
        case _:
            assert_never(reply)


def _reply(result: drafter_pb2.DrafterResult, stamp: Stamp) -> Proposed | Failed:
    match result.WhichOneof("body"):
        case "proposed":
            block = decode_draft(result.proposed, stamp.base_len, stamp.epoch)
            return Proposed(stamp.session_id, block)
        case "failed":
            return Failed(*stamp, decode_failure(result.failed))
        case _:
            raise ProtocolError("body: is missing")
