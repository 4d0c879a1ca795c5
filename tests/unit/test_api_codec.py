from __future__ import annotations

import pytest

from deployments.transport.api_records import (
    ChatMessage,
    ChatPrompt,
    Finished,
    GenerationCall,
    ModelInfo,
    TextPrompt,
)
from deployments.transport.codec_request import (
    decode_detokenize_request,
    decode_generate_request,
    decode_tokenize_request,
    encode_generate_request,
)
from deployments.transport.codec_response import (
    decode_event,
    decode_model_info,
    encode_event,
    encode_model_info,
)
from specdec_core.errors import InvalidArgumentError, ProtocolError
from specdec_core.params import GenerationParams, SamplingParams, SpeculationParams
from specdec_core.stats import FallbackReason, SpeculationStats
from specdec_core.types import AcceptanceRule, FinishReason
from specdec_proto.v1 import generation_pb2, types_pb2

Request = generation_pb2.GenerateRequest
Chat = generation_pb2.Chat
SERVER_DEFAULTS = SpeculationParams(max_draft_tokens=7, rule=AcceptanceRule.RATIO)


def decode(request: Request) -> GenerationCall:
    return decode_generate_request(request, SERVER_DEFAULTS)


def problem(request: Request) -> str:
    with pytest.raises((InvalidArgumentError, ProtocolError)) as caught:
        decode(request)
    return str(caught.value)


def test_a_request_of_a_text_alone_has_every_default() -> None:
    assert decode(Request(text="Hi")) == GenerationCall(
        TextPrompt("Hi"), GenerationParams(SamplingParams(), SERVER_DEFAULTS, seed=None)
    )


def test_what_is_set_to_zero_is_not_a_default() -> None:
    call = decode(
        Request(
            text="Hi",
            sampling=types_pb2.SamplingParams(temperature=0),
            seed=0,
            max_draft_tokens=0,
            acceptance_rule=types_pb2.ACCEPTANCE_RULE_COUPLED,
        )
    )

    assert call.params == GenerationParams(
        SamplingParams(temperature=0), SpeculationParams(0, AcceptanceRule.COUPLED), seed=0
    )


def test_a_conversation_keeps_its_order() -> None:
    chat = Chat(
        messages=[
            generation_pb2.ChatMessage(role="system", content="Be brief."),
            generation_pb2.ChatMessage(role="user", content=""),
        ]
    )

    assert decode(Request(chat=chat)).prompt == ChatPrompt(
        (ChatMessage("system", "Be brief."), ChatMessage("user", ""))
    )


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (Request(), "prompt: is missing; give text, token_ids or chat"),
        (Request(text=""), "prompt: must be 1 to 4194304 characters, got 0"),
        (Request(text="x" * (2**22 + 1)), "prompt: must be 1 to 4194304 characters, got 4194305"),
        (
            Request(token_ids=types_pb2.TokenIds()),
            "prompt: takes 1 to 1048576 entries, got 0",
        ),
        (
            Request(token_ids=types_pb2.TokenIds(ids=[2**31])),
            "prompt: each must be in [0, 2147483647]",
        ),
        (Request(chat=Chat()), "chat.messages: takes 1 to 1024 entries, got 0"),
        (
            Request(chat=Chat(messages=[generation_pb2.ChatMessage(content="x")])),
            "chat.role: must be 1 to 32 characters, got 0",
        ),
        (
            Request(
                chat=Chat(
                    messages=[generation_pb2.ChatMessage(role="user", content="x" * 2**21)] * 3
                )
            ),
            "chat.content: takes at most 4194304 characters over all messages",
        ),
        (
            Request(text="x", max_draft_tokens=33),
            "max_draft_tokens: must be an integer in [0, 32], got 33",
        ),
        (
            Request(text="x", bad_words_text=["a"] * 257),
            "bad_words_text: takes 0 to 256 entries, got 257",
        ),
        (
            Request(text="x", bad_words_text=[""]),
            "bad_words_text: must be 1 to 256 characters, got 0",
        ),
        (
            Request(text="x", sampling=types_pb2.SamplingParams(max_tokens=0)),
            "max_tokens: must be an integer in [1, 1048576], got 0",
        ),
        (
            Request(text="x", sampling=types_pb2.SamplingParams(stop=["s"] * 17)),
            "stop: takes 0 to 16 entries, got 17",
        ),
        (
            Request(text="x", sampling=types_pb2.SamplingParams(allowed_token_ids=[1] * 65537)),
            "allowed_token_ids: takes 0 to 65536 entries, got 65537",
        ),
    ],
)
def test_a_bad_request_is_told_its_field_and_what_is_allowed(
    request_: Request, expected: str
) -> None:
    assert problem(request_) == expected


def test_a_rule_of_a_newer_client_is_refused() -> None:
    request = Request.FromString(b"\x0a\x01x\x38\x09")

    assert problem(request) == "rule: unknown acceptance rule 9"


def test_text_that_is_not_unicode_is_not_sent() -> None:
    with pytest.raises(InvalidArgumentError, match="not Unicode"):
        encode_generate_request(GenerationCall(TextPrompt("\udcff"), GenerationParams()))


def test_tokenize_and_detokenize_check_their_input() -> None:
    assert decode_tokenize_request(generation_pb2.TokenizeRequest(text="")) == TextPrompt("")
    with pytest.raises(InvalidArgumentError, match="input: is missing"):
        decode_tokenize_request(generation_pb2.TokenizeRequest())
    assert decode_detokenize_request(generation_pb2.DetokenizeRequest(token_ids=[5, 6])) == (5, 6)
    with pytest.raises(InvalidArgumentError, match="token_ids: each must be in"):
        decode_detokenize_request(generation_pb2.DetokenizeRequest(token_ids=[2**31]))


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (generation_pb2.GenerateResponse(), "event: is missing"),
        (
            generation_pb2.GenerateResponse(finished=generation_pb2.GenerationFinished()),
            "finish_reason: unknown 0",
        ),
        (
            generation_pb2.GenerateResponse(
                tokens=generation_pb2.GeneratedTokens(
                    token_ids=[1], kinds=[types_pb2.TOKEN_KIND_UNSPECIFIED]
                )
            ),
            "tokens.kinds: unknown token kind 0",
        ),
        (
            generation_pb2.GenerateResponse(tokens=generation_pb2.GeneratedTokens(token_ids=[1])),
            "tokens.kinds: takes 1 to 1 entries, got 0",
        ),
    ],
)
def test_an_event_that_cannot_be_is_refused(
    response: generation_pb2.GenerateResponse, expected: str
) -> None:
    with pytest.raises((InvalidArgumentError, ProtocolError)) as caught:
        decode_event(response)

    assert str(caught.value) == expected


def test_a_fallback_reason_of_a_newer_server_is_passed_over() -> None:
    stats = SpeculationStats(num_rounds=3, fallbacks=((FallbackReason.DEADLINE, 2),))
    finished = Finished(FinishReason.LENGTH, 4, 5, stats)
    response = encode_event(finished)
    response.finished.speculation.fallbacks["moon_phase"] = 1

    assert decode_event(response) == finished


def test_model_info_survives_the_round_trip() -> None:
    info = ModelInfo(
        "smol",
        49152,
        8192,
        (2, 0),
        "lm",
        "smol-int4",
        8,
        SpeculationParams(3, AcceptanceRule.RATIO),
        True,
        "0.1.0",
    )

    assert decode_model_info(encode_model_info(info)) == info
