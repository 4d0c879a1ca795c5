from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, TypeVar

import msgpack
import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import given
from hypothesis import strategies as st

from deployments.transport import codec_drafter, codec_request, codec_response, codec_target
from deployments.transport.codec_round import SPARSE_LIMITS, decode_draft
from deployments.transport.tensor_codec import (
    Dtype,
    TensorFrame,
    float32_frame,
    int32_frame,
    pack,
    unpack,
)
from specdec_core.errors import InvalidArgumentError, ProtocolError
from specdec_core.messages import Failed
from specdec_core.params import SpeculationParams
from specdec_core.types import Sparse
from specdec_proto.v1 import drafter_pb2, generation_pb2, target_pb2, types_pb2
from tests.support import wire_records

if TYPE_CHECKING:
    from collections.abc import Callable

    from deployments.transport.api_records import (
        ChatPrompt,
        GenerationCall,
        GenerationEvent,
        TextPrompt,
    )
    from specdec_core.messages import DrafterMessage, RoleReply, TargetMessage

MessageT = TypeVar("MessageT", bound=Message)


def over_the_wire(message: MessageT) -> MessageT:
    return type(message).FromString(message.SerializeToString())


def comparable(reply: object) -> object:
    """Errors compare by identity; what must survive is class and text."""
    if isinstance(reply, Failed):
        return (
            reply.session_id,
            reply.epoch,
            reply.base_len,
            type(reply.error),
            str(reply.error),
        )
    return reply


@given(st.lists(wire_records.target_messages, max_size=4))
def test_target_messages_survive_the_round_trip(messages: list[TargetMessage]) -> None:
    frame = target_pb2.ExtendRequest()
    for message in messages:
        frame.MergeFrom(codec_target.encode_request(message))

    assert codec_target.decode_request(over_the_wire(frame)) == messages


@given(st.lists(wire_records.drafter_messages, max_size=4))
def test_drafter_messages_survive_the_round_trip(messages: list[DrafterMessage]) -> None:
    frame = drafter_pb2.ProposeRequest()
    for message in messages:
        frame.MergeFrom(codec_drafter.encode_request(message))

    assert codec_drafter.decode_request(over_the_wire(frame)) == messages


@given(st.lists(wire_records.target_replies, max_size=4))
def test_target_replies_survive_the_round_trip(replies: list[RoleReply]) -> None:
    frame = over_the_wire(codec_target.encode_response(replies))

    decoded = codec_target.decode_response(frame)

    assert [comparable(reply) for reply in decoded] == [comparable(reply) for reply in replies]


@given(st.lists(wire_records.drafter_replies, max_size=4))
def test_drafter_replies_survive_the_round_trip(replies: list[RoleReply]) -> None:
    frame = over_the_wire(codec_drafter.encode_response(replies))

    decoded = codec_drafter.decode_response(frame)

    assert [comparable(reply) for reply in decoded] == [comparable(reply) for reply in replies]


@given(wire_records.calls)
def test_calls_survive_the_round_trip(call: GenerationCall) -> None:
    request = over_the_wire(codec_request.encode_generate_request(call))

    assert codec_request.decode_generate_request(request, SpeculationParams()) == call


@given(wire_records.events)
def test_events_survive_the_round_trip(event: GenerationEvent) -> None:
    response = over_the_wire(codec_response.encode_event(event))

    assert codec_response.decode_event(response) == event


@given(st.one_of(wire_records.text_prompts, wire_records.chats))
def test_tokenize_requests_survive_the_round_trip(prompt: TextPrompt | ChatPrompt) -> None:
    request = over_the_wire(codec_request.encode_tokenize_request(prompt))

    assert codec_request.decode_tokenize_request(request) == prompt


@given(st.data(), st.sampled_from(Dtype), st.lists(st.integers(0, 8), max_size=2).map(tuple))
def test_tensor_frames_survive_the_round_trip(
    data: st.DataObject, dtype: Dtype, shape: tuple[int, ...]
) -> None:
    size = math.prod(shape) * dtype.itemsize
    frame = TensorFrame(dtype, shape, data.draw(st.binary(min_size=size, max_size=size)))

    assert unpack(pack(frame), SPARSE_LIMITS) == frame


DECODERS: dict[str, Callable[[bytes], object]] = {
    "target request": lambda data: codec_target.decode_request(
        target_pb2.ExtendRequest.FromString(data)
    ),
    "target response": lambda data: codec_target.decode_response(
        target_pb2.ExtendResponse.FromString(data)
    ),
    "drafter request": lambda data: codec_drafter.decode_request(
        drafter_pb2.ProposeRequest.FromString(data)
    ),
    "drafter response": lambda data: codec_drafter.decode_response(
        drafter_pb2.ProposeResponse.FromString(data)
    ),
    "generate request": lambda data: codec_request.decode_generate_request(
        generation_pb2.GenerateRequest.FromString(data), SpeculationParams()
    ),
    "generate response": lambda data: codec_response.decode_event(
        generation_pb2.GenerateResponse.FromString(data)
    ),
    "tokenize request": lambda data: codec_request.decode_tokenize_request(
        generation_pb2.TokenizeRequest.FromString(data)
    ),
    "detokenize request": lambda data: codec_request.decode_detokenize_request(
        generation_pb2.DetokenizeRequest.FromString(data)
    ),
    "model": lambda data: codec_response.decode_model_info(
        generation_pb2.GetModelResponse.FromString(data)
    ),
    "tensor": lambda data: unpack(data, SPARSE_LIMITS),
}
VALID = st.one_of(
    wire_records.target_messages.map(codec_target.encode_request),
    wire_records.drafter_messages.map(codec_drafter.encode_request),
    wire_records.target_replies.map(lambda reply: codec_target.encode_response([reply])),
    wire_records.drafter_replies.map(lambda reply: codec_drafter.encode_response([reply])),
    wire_records.calls.map(codec_request.encode_generate_request),
    wire_records.events.map(codec_response.encode_event),
).map(lambda message: message.SerializeToString())


@pytest.mark.parametrize("decoder", DECODERS)
@given(data=st.binary(max_size=200))
def test_arbitrary_bytes_raise_nothing_but_our_errors(decoder: str, data: bytes) -> None:
    with contextlib.suppress(DecodeError, InvalidArgumentError, ProtocolError):
        DECODERS[decoder](data)


@pytest.mark.parametrize("decoder", DECODERS)
@given(valid=VALID, position=st.integers(0, 10**6), byte=st.integers(0, 255), cut=st.booleans())
def test_mutated_messages_raise_nothing_but_our_errors(
    decoder: str, valid: bytes, position: int, byte: int, *, cut: bool
) -> None:
    at = position % (len(valid) + 1)
    mutated = valid[:at] if cut else valid[:at] + bytes([byte]) + valid[at + 1 :]

    with contextlib.suppress(DecodeError, InvalidArgumentError, ProtocolError):
        DECODERS[decoder](mutated)


FRAMES = st.one_of(
    st.binary(max_size=64),
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.binary(),
        lambda inner: st.lists(inner, max_size=4),
        max_leaves=8,
    ).map(msgpack.packb),
    st.tuples(
        st.sampled_from(Dtype).map(int),
        st.lists(st.integers(-1, 65), max_size=3),
        st.binary(max_size=64),
    ).map(msgpack.packb),
)


@given(st.lists(wire_records.tokens, max_size=4), FRAMES, FRAMES)
def test_hostile_sparse_frames_raise_nothing_but_our_errors(
    drafted: list[int], ids: bytes, probs: bytes
) -> None:
    block = types_pb2.DraftBlock(
        tokens=drafted, sparse=types_pb2.Sparse(ids_frame=ids, probs_frame=probs)
    )

    with contextlib.suppress(InvalidArgumentError, ProtocolError):
        decode_draft(block, 0, 1)


@given(
    st.lists(st.lists(st.integers(-2, 4), min_size=2, max_size=2), max_size=3),
    st.lists(
        st.lists(
            st.sampled_from([0.0, -0.0, 0.5, 1.0, -0.5, math.nan, math.inf]), min_size=2, max_size=2
        ),
        max_size=3,
    ),
    st.lists(st.integers(0, 4), max_size=3),
)
def test_whatever_law_is_decoded_is_a_law(
    ids: list[list[int]], probs: list[list[float]], drafted: list[int]
) -> None:
    block = types_pb2.DraftBlock(
        tokens=drafted,
        sparse=types_pb2.Sparse(
            ids_frame=pack(int32_frame(tuple(map(tuple, ids)), 2)),
            probs_frame=pack(float32_frame(tuple(map(tuple, probs)), 2)),
        ),
    )

    try:
        proposal = decode_draft(block, 0, 1).proposal
    except (InvalidArgumentError, ProtocolError):
        return

    assert isinstance(proposal, Sparse)
    assert len(proposal.support) == len(proposal.probs) == len(drafted)
    for token, support, law in zip(drafted, proposal.support, proposal.probs, strict=True):
        assert len(support) == len(law) == len(set(support))
        assert token in support
        assert min(law) > 0
        assert math.isclose(math.fsum(law), 1.0, abs_tol=1e-3)
