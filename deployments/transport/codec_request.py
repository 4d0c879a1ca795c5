"""What clients ask of ``GenerationService`` ⇄ protobuf."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from deployments.transport.api_records import (
    ChatMessage,
    ChatPrompt,
    GenerationCall,
    TextPrompt,
    TokenPrompt,
)
from deployments.transport.codec_params import (
    decode_rule,
    decode_sampling,
    encode_rule,
    encode_sampling,
)
from deployments.transport.wire_limits import (
    MAX_BAD_WORD_CHARS,
    MAX_CHAT_MESSAGES,
    MAX_ROLE_CHARS,
    MAX_TEXT_CHARS,
    MAX_TOKENS,
    check_chars,
    check_count,
    token_ids,
)
from specdec_core.errors import InvalidArgumentError
from specdec_core.params import MAX_BAD_WORDS, GenerationParams, SpeculationParams
from specdec_proto.v1 import generation_pb2, types_pb2

if TYPE_CHECKING:
    from deployments.transport.api_records import Prompt


def encode_generate_request(call: GenerationCall) -> generation_pb2.GenerateRequest:
    """The request with every parameter set.

    Raises:
        InvalidArgumentError: if a text holds a lone surrogate, as a shell argument may.
    """
    params = call.params
    try:
        request = generation_pb2.GenerateRequest(
            sampling=encode_sampling(params.sampling),
            seed=params.seed,
            max_draft_tokens=params.speculation.max_draft_tokens,
            acceptance_rule=encode_rule(params.speculation.rule),
            bad_words_text=call.bad_words_text,
            n=params.n,
            echo=params.echo,
        )
        _set_prompt(request, call.prompt)
    except UnicodeEncodeError as error:
        raise InvalidArgumentError("prompt", "a text of the request is not Unicode") from error
    return request


def decode_generate_request(
    request: generation_pb2.GenerateRequest, defaults: SpeculationParams
) -> GenerationCall:
    """The call; what it leaves out is ``SamplingParams``' own default, or the server's of speculation.

    Raises:
        InvalidArgumentError: naming the field and what is allowed.
        ProtocolError: on an acceptance rule this version does not know.
    """
    check_count("bad_words_text", len(request.bad_words_text), 0, MAX_BAD_WORDS)
    for word in request.bad_words_text:
        check_chars("bad_words_text", word, 1, MAX_BAD_WORD_CHARS)
    params = GenerationParams(
        sampling=decode_sampling(request.sampling),
        speculation=_decode_speculation(request, defaults),
        seed=request.seed if request.HasField("seed") else None,
        n=request.n if request.HasField("n") else 1,
        echo=request.echo,
    )
    return GenerationCall(_decode_prompt(request), params, tuple(request.bad_words_text))


def encode_tokenize_request(prompt: TextPrompt | ChatPrompt) -> generation_pb2.TokenizeRequest:
    """A wish to see the token ids of a prompt."""
    match prompt:
        case TextPrompt(text):
            return generation_pb2.TokenizeRequest(text=text)
        case ChatPrompt():
            return generation_pb2.TokenizeRequest(chat=_encode_chat(prompt))
        case _:
            assert_never(prompt)


def decode_tokenize_request(request: generation_pb2.TokenizeRequest) -> TextPrompt | ChatPrompt:
    """What to tokenise.

    Raises:
        InvalidArgumentError: if it is missing or too large.
    """
    match request.WhichOneof("input"):
        case "text":
            check_chars("text", request.text, 0, MAX_TEXT_CHARS)
            return TextPrompt(request.text)
        case "chat":
            return _decode_chat(request.chat)
        case _:
            raise InvalidArgumentError("input", "is missing; give text or chat")


def decode_detokenize_request(request: generation_pb2.DetokenizeRequest) -> tuple[int, ...]:
    """The token ids to turn into text.

    Raises:
        InvalidArgumentError: if there are too many, or one is out of range.
    """
    return token_ids("token_ids", request.token_ids, 0, MAX_TOKENS)


def _set_prompt(request: generation_pb2.GenerateRequest, prompt: Prompt) -> None:
    match prompt:
        case TextPrompt(text):
            request.text = text
        case TokenPrompt(ids):
            request.token_ids.CopyFrom(types_pb2.TokenIds(ids=ids))
        case ChatPrompt():
            request.chat.CopyFrom(_encode_chat(prompt))
        case _:
            assert_never(prompt)


def _encode_chat(prompt: ChatPrompt) -> generation_pb2.Chat:
    return generation_pb2.Chat(
        messages=[
            generation_pb2.ChatMessage(role=message.role, content=message.content)
            for message in prompt.messages
        ]
    )


def _decode_prompt(request: generation_pb2.GenerateRequest) -> Prompt:
    match request.WhichOneof("prompt"):
        case "text":
            check_chars("prompt", request.text, 1, MAX_TEXT_CHARS)
            return TextPrompt(request.text)
        case "token_ids":
            return TokenPrompt(token_ids("prompt", request.token_ids.ids, 1, MAX_TOKENS))
        case "chat":
            return _decode_chat(request.chat)
        case _:
            raise InvalidArgumentError("prompt", "is missing; give text, token_ids or chat")


def _decode_chat(chat: generation_pb2.Chat) -> ChatPrompt:
    check_count("chat.messages", len(chat.messages), 1, MAX_CHAT_MESSAGES)
    for message in chat.messages:
        check_chars("chat.role", message.role, 1, MAX_ROLE_CHARS)
    if sum(len(message.content) for message in chat.messages) > MAX_TEXT_CHARS:
        raise InvalidArgumentError(
            "chat.content", f"takes at most {MAX_TEXT_CHARS} characters over all messages"
        )
    return ChatPrompt(
        tuple(ChatMessage(message.role, message.content) for message in chat.messages)
    )


def _decode_speculation(
    request: generation_pb2.GenerateRequest, defaults: SpeculationParams
) -> SpeculationParams:
    unspecified = request.acceptance_rule == types_pb2.ACCEPTANCE_RULE_UNSPECIFIED
    return SpeculationParams(
        max_draft_tokens=request.max_draft_tokens
        if request.HasField("max_draft_tokens")
        else defaults.max_draft_tokens,
        rule=defaults.rule if unspecified else decode_rule(request.acceptance_rule),
    )
