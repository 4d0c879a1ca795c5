"""What ``GenerationService`` tells clients ⇄ protobuf."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from deployments.transport.api_records import Finished, ModelInfo, Produced, Prompted, Started
from deployments.transport.codec_logprobs import decode_token_logprobs, encode_token_logprobs
from deployments.transport.codec_params import decode_rule, encode_rule
from deployments.transport.wire_limits import (
    MAX_SESSION_ID_CHARS,
    MAX_TOKENS,
    check_chars,
    check_count,
    token_ids,
)
from specdec_core.errors import ProtocolError
from specdec_core.params import MAX_DRAFT_TOKENS, MAX_PROMPT_LOGPROBS, SpeculationParams
from specdec_core.stats import FallbackReason, SpeculationStats
from specdec_core.types import CommittedToken, FinishReason, TokenKind
from specdec_proto.v1 import generation_pb2, types_pb2

if TYPE_CHECKING:
    from deployments.transport.api_records import GenerationEvent
    from specdec_core.types import TokenLogprobs

_KINDS = {
    TokenKind.ACCEPTED: types_pb2.TOKEN_KIND_ACCEPTED,
    TokenKind.RECOVERED: types_pb2.TOKEN_KIND_RECOVERED,
    TokenKind.BONUS: types_pb2.TOKEN_KIND_BONUS,
    TokenKind.PLAIN: types_pb2.TOKEN_KIND_PLAIN,
}
_KINDS_BACK: dict[int, TokenKind] = {number: kind for kind, number in _KINDS.items()}
_REASONS = {
    FinishReason.STOP: types_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: types_pb2.FINISH_REASON_LENGTH,
    FinishReason.CANCELLED: types_pb2.FINISH_REASON_CANCELLED,
    FinishReason.ERROR: types_pb2.FINISH_REASON_ERROR,
}
_REASONS_BACK: dict[int, FinishReason] = {number: reason for reason, number in _REASONS.items()}
_FALLBACKS = {reason.value: reason for reason in FallbackReason}


def encode_event(event: GenerationEvent) -> generation_pb2.GenerateResponse:
    """One event of a generation's stream."""
    match event:
        case Started(session_id, seed, prompt_tokens):
            started = generation_pb2.GenerationStarted(
                session_id=session_id, seed=seed, prompt_tokens=prompt_tokens
            )
            return generation_pb2.GenerateResponse(started=started)
        case Prompted(token_ids, text, logprobs):
            prompt = generation_pb2.GenerationPrompt(
                token_ids=token_ids, text=text, logprobs=encode_token_logprobs(logprobs)
            )
            return generation_pb2.GenerateResponse(prompt=prompt)
        case Produced():
            return generation_pb2.GenerateResponse(tokens=_encode_produced(event))
        case Finished():
            return generation_pb2.GenerateResponse(finished=_encode_finished(event))
        case _:
            assert_never(event)


def decode_event(response: generation_pb2.GenerateResponse) -> GenerationEvent:
    """The event.

    Raises:
        InvalidArgumentError: if a bound is exceeded.
        ProtocolError: if there is none, or it names what this version does not know.
    """
    match response.WhichOneof("event"):
        case "started":
            started = response.started
            check_chars("session_id", started.session_id, 1, MAX_SESSION_ID_CHARS)
            return Started(started.session_id, started.seed, started.prompt_tokens)
        case "prompt":
            return _decode_prompted(response.prompt)
        case "tokens":
            return _decode_produced(response.tokens)
        case "finished":
            return _decode_finished(response.finished)
        case _:
            raise ProtocolError("event: is missing")


def encode_model_info(info: ModelInfo) -> generation_pb2.GetModelResponse:
    """The description as it is."""
    return generation_pb2.GetModelResponse(
        name=info.name,
        vocab_size=info.vocab_size,
        max_context=info.max_context,
        eos_token_ids=info.eos_token_ids,
        drafter=info.drafter,
        drafter_model=info.drafter_model,
        max_draft_tokens=info.max_draft_tokens,
        default_draft_tokens=info.default_speculation.max_draft_tokens,
        default_acceptance_rule=encode_rule(info.default_speculation.rule),
        has_chat_template=info.has_chat_template,
        version=info.version,
    )


def decode_model_info(response: generation_pb2.GetModelResponse) -> ModelInfo:
    """The description.

    Raises:
        InvalidArgumentError: if a bound is exceeded.
    """
    return ModelInfo(
        name=response.name,
        vocab_size=response.vocab_size,
        max_context=response.max_context,
        eos_token_ids=token_ids("eos_token_ids", response.eos_token_ids, 0, MAX_TOKENS),
        drafter=response.drafter,
        drafter_model=response.drafter_model,
        max_draft_tokens=response.max_draft_tokens,
        default_speculation=SpeculationParams(
            response.default_draft_tokens, decode_rule(response.default_acceptance_rule)
        ),
        has_chat_template=response.has_chat_template,
        version=response.version,
    )


def _encode_produced(event: Produced) -> generation_pb2.GeneratedTokens:
    told = [each.logprobs for each in event.tokens if each.logprobs is not None]
    return generation_pb2.GeneratedTokens(
        first_index=event.first_index,
        token_ids=[each.token for each in event.tokens],
        kinds=[_KINDS[each.kind] for each in event.tokens],
        text=event.text,
        sample_index=event.sample_index,
        logprobs=encode_token_logprobs(told),
    )


def _encode_finished(event: Finished) -> generation_pb2.GenerationFinished:
    return generation_pb2.GenerationFinished(
        finish_reason=_REASONS[event.finish_reason],
        usage=types_pb2.Usage(
            prompt_tokens=event.prompt_tokens, completion_tokens=event.completion_tokens
        ),
        speculation=_encode_stats(event.speculation),
        sample_index=event.sample_index,
    )


def _encode_stats(stats: SpeculationStats) -> types_pb2.SpeculationStats:
    return types_pb2.SpeculationStats(
        num_rounds=stats.num_rounds,
        num_drafts=stats.num_drafts,
        num_draft_tokens=stats.num_draft_tokens,
        num_accepted_tokens=stats.num_accepted_tokens,
        num_accepted_tokens_per_pos=stats.num_accepted_tokens_per_pos,
        num_committed_tokens=stats.num_committed_tokens,
        fallbacks={reason.value: count for reason, count in stats.fallbacks},
        num_stale_messages=stats.num_stale_messages,
    )


def _decode_produced(message: generation_pb2.GeneratedTokens) -> Produced:
    ids = token_ids("tokens.token_ids", message.token_ids, 0, MAX_TOKENS)
    check_count("tokens.kinds", len(message.kinds), len(ids), len(ids))
    kinds = map(_decode_kind, message.kinds)
    logprobs: tuple[TokenLogprobs | None, ...] = (None,) * len(ids)
    if message.logprobs:
        logprobs = decode_token_logprobs("tokens.logprobs", message.logprobs, len(ids))
        check_count("tokens.logprobs", len(logprobs), len(ids), len(ids))
    tokens = tuple(map(CommittedToken, ids, kinds, logprobs))
    return Produced(message.first_index, tokens, message.text, message.sample_index)


def _decode_prompted(message: generation_pb2.GenerationPrompt) -> Prompted:
    ids = token_ids("prompt.token_ids", message.token_ids, 0, MAX_TOKENS)
    return Prompted(
        ids,
        message.text,
        decode_token_logprobs("prompt.logprobs", message.logprobs, MAX_PROMPT_LOGPROBS),
    )


def _decode_kind(number: int) -> TokenKind:
    kind = _KINDS_BACK.get(number)
    if kind is None:
        raise ProtocolError(f"tokens.kinds: unknown token kind {number}")
    return kind


def _decode_finished(message: generation_pb2.GenerationFinished) -> Finished:
    reason = _REASONS_BACK.get(message.finish_reason)
    if reason is None:
        raise ProtocolError(f"finish_reason: unknown {message.finish_reason}")
    return Finished(
        finish_reason=reason,
        prompt_tokens=message.usage.prompt_tokens,
        completion_tokens=message.usage.completion_tokens,
        speculation=_decode_stats(message.speculation),
        sample_index=message.sample_index,
    )


def _decode_stats(message: types_pb2.SpeculationStats) -> SpeculationStats:
    per_pos = message.num_accepted_tokens_per_pos
    check_count("num_accepted_tokens_per_pos", len(per_pos), 0, MAX_DRAFT_TOKENS)
    # A newer server may know more reasons; a client must not break on them.
    known = [
        (_FALLBACKS[name], count) for name, count in message.fallbacks.items() if name in _FALLBACKS
    ]
    return SpeculationStats(
        num_rounds=message.num_rounds,
        num_drafts=message.num_drafts,
        num_draft_tokens=message.num_draft_tokens,
        num_accepted_tokens=message.num_accepted_tokens,
        num_accepted_tokens_per_pos=tuple(per_pos),
        num_committed_tokens=message.num_committed_tokens,
        fallbacks=tuple(sorted(known)),
        num_stale_messages=message.num_stale_messages,
    )
