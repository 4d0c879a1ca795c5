"""Request parameters ⇄ protobuf. Decoding refuses what the parameters themselves do not allow."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from deployments.transport.wire_limits import check_count
from specdec_core.errors import InvalidArgumentError, ProtocolError
from specdec_core.params import (
    MAX_BAD_WORD_TOKENS,
    MAX_BAD_WORDS,
    MAX_LOGIT_BIAS,
    MAX_SAMPLE_INDEX,
    MAX_STOP_STRINGS,
    MAX_TOKEN_LIST,
    SamplingParams,
)
from specdec_core.structured import Choice, Grammar, JsonSchema, Regex
from specdec_core.types import AcceptanceRule, NoiseKey
from specdec_proto.v1 import types_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable

    from specdec_core.structured import StructuredOutput

_RULES = {
    AcceptanceRule.COUPLED: types_pb2.ACCEPTANCE_RULE_COUPLED,
    AcceptanceRule.RATIO: types_pb2.ACCEPTANCE_RULE_RATIO,
    AcceptanceRule.BLOCK: types_pb2.ACCEPTANCE_RULE_BLOCK,
}
_RULES_BACK = {number: rule for rule, number in _RULES.items()}


def encode_rule(rule: AcceptanceRule) -> types_pb2.AcceptanceRule.ValueType:
    """The rule's number on the wire."""
    return _RULES[rule]


def decode_rule(number: int) -> AcceptanceRule:
    """The rule named by a peer.

    Raises:
        ProtocolError: if it is unspecified or unknown.
    """
    for known, rule in _RULES_BACK.items():
        if known == number:
            return rule
    raise ProtocolError(f"rule: unknown acceptance rule {number}")


def encode_noise(noise: NoiseKey) -> types_pb2.NoiseKey:
    """The key as it is."""
    return types_pb2.NoiseKey(seed=noise.seed, sample_index=noise.sample_index)


def decode_noise(message: types_pb2.NoiseKey) -> NoiseKey:
    """The noise key.

    Raises:
        InvalidArgumentError: if the sample index is above its limit.
    """
    if message.sample_index > MAX_SAMPLE_INDEX:
        raise InvalidArgumentError("noise.sample_index", f"must be in [0, {MAX_SAMPLE_INDEX}]")
    return NoiseKey(seed=message.seed, sample_index=message.sample_index)


def encode_sampling(params: SamplingParams) -> types_pb2.SamplingParams:
    """Every field set, so that the receiver's defaults do not matter."""
    message = types_pb2.SamplingParams(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        logit_bias=[
            types_pb2.LogitBias(token_id=token, bias=bias) for token, bias in params.logit_bias
        ],
        bad_words=[types_pb2.TokenIds(ids=word) for word in params.bad_words],
        allowed_token_ids=params.allowed_token_ids,
        min_tokens=params.min_tokens,
        max_tokens=params.max_tokens,
        stop=params.stop,
        include_stop_str_in_output=params.include_stop_str_in_output,
        stop_token_ids=params.stop_token_ids,
        ignore_eos=params.ignore_eos,
        typical_p=params.typical_p,
        skip_special_tokens=params.skip_special_tokens,
        logprobs=params.logprobs,
        prompt_logprobs=params.prompt_logprobs,
    )
    if params.structured is not None:
        _encode_structured(params.structured, message)
    return message


_DEFAULTS = encode_sampling(SamplingParams())


def decode_sampling(message: types_pb2.SamplingParams) -> SamplingParams:
    """The parameters, absent fields at their defaults.

    Raises:
        InvalidArgumentError: naming the field and what is allowed.
    """
    _check_counts(message)
    filled = types_pb2.SamplingParams()
    filled.CopyFrom(_DEFAULTS)
    filled.MergeFrom(message)
    return SamplingParams(
        temperature=filled.temperature,
        top_k=filled.top_k,
        top_p=filled.top_p,
        min_p=filled.min_p,
        repetition_penalty=filled.repetition_penalty,
        presence_penalty=filled.presence_penalty,
        frequency_penalty=filled.frequency_penalty,
        logit_bias=tuple((entry.token_id, entry.bias) for entry in filled.logit_bias),
        bad_words=_words(filled.bad_words),
        allowed_token_ids=tuple(filled.allowed_token_ids),
        min_tokens=filled.min_tokens,
        max_tokens=filled.max_tokens,
        stop=tuple(filled.stop),
        include_stop_str_in_output=filled.include_stop_str_in_output,
        stop_token_ids=tuple(filled.stop_token_ids),
        ignore_eos=filled.ignore_eos,
        typical_p=filled.typical_p,
        skip_special_tokens=filled.skip_special_tokens,
        logprobs=filled.logprobs if filled.HasField("logprobs") else None,
        prompt_logprobs=filled.prompt_logprobs if filled.HasField("prompt_logprobs") else None,
        structured=_decode_structured(message),
    )


def _encode_structured(structured: StructuredOutput, message: types_pb2.SamplingParams) -> None:
    match structured:
        case JsonSchema(text=text):
            message.json_schema = text
        case Regex(pattern=pattern):
            message.regex = pattern
        case Grammar(text=text):
            message.grammar = text
        case Choice(options=options):
            message.choice.options.extend(options)
        case _ as unreachable:
            assert_never(unreachable)


def _decode_structured(message: types_pb2.SamplingParams) -> StructuredOutput | None:
    match message.WhichOneof("structured"):
        case "json_schema":
            return JsonSchema(message.json_schema)
        case "regex":
            return Regex(message.regex)
        case "grammar":
            return Grammar(message.grammar)
        case "choice":
            return Choice(tuple(message.choice.options))
        case _:
            return None


def _check_counts(message: types_pb2.SamplingParams) -> None:
    check_count("logit_bias", len(message.logit_bias), 0, MAX_LOGIT_BIAS)
    check_count("bad_words", len(message.bad_words), 0, MAX_BAD_WORDS)
    check_count("allowed_token_ids", len(message.allowed_token_ids), 0, MAX_TOKEN_LIST)
    check_count("stop", len(message.stop), 0, MAX_STOP_STRINGS)
    check_count("stop_token_ids", len(message.stop_token_ids), 0, MAX_TOKEN_LIST)


def _words(messages: Iterable[types_pb2.TokenIds]) -> tuple[tuple[int, ...], ...]:
    words: list[tuple[int, ...]] = []
    for message in messages:
        check_count("bad_words", len(message.ids), 1, MAX_BAD_WORD_TOKENS)
        words.append(tuple(message.ids))
    return tuple(words)
