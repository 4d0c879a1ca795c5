"""From a client's call to a session, and from a session's effects to what the client is told.

The in-process engine and the coordinator share this, so that both serve the same API.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, assert_never

from deployments.config import NoDrafterConfig
from deployments.transport.api_records import (
    ChatPrompt,
    Finished,
    ModelInfo,
    Produced,
    Prompted,
    Started,
    TextPrompt,
    TokenPrompt,
)
from specdec_core import __version__
from specdec_core.errors import InvalidArgumentError
from specdec_core.params import MAX_SEED, SpeculationParams
from specdec_core.session.events import Emit, EmitPrompt, Finish
from specdec_core.session.request import prepare
from specdec_core.types import NoiseKey

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from deployments.config import Config
    from deployments.locator import TargetFacts
    from deployments.transport.api_records import GenerationCall, GenerationEvent, Prompt
    from specdec_core.models.tokenizer import Tokenizer
    from specdec_core.params import GenerationParams
    from specdec_core.session.events import Output
    from specdec_core.session.request import ServedModel
    from specdec_core.session.state import SessionSpec, SessionState
    from specdec_core.types import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Generation:
    """A call let in: a session for each of its samples, and what the client is told of them."""

    specs: tuple[SessionSpec, ...]  # by sample index
    echoes: bool

    def opening(self) -> tuple[GenerationEvent, ...]:
        """What the client is told first."""
        first = self.specs[0]
        started = Started(first.session_id, first.noise.seed, len(first.prompt))
        if self.echoes and first.params.prompt_logprobs is None:
            return (started, self._prompted(()))
        return (started,)

    def told(self, state: SessionState, output: Output) -> GenerationEvent:
        """What the client is told of a session's output.

        Raises:
            SpecdecError: the error that ended the session.
        """
        spec = state.spec
        index = spec.noise.sample_index
        match output:
            case EmitPrompt(logprobs=logprobs):
                return self._prompted(logprobs)
            case Emit(tokens=tokens, text=text):
                return Produced(state.num_output_tokens - len(tokens), tokens, text, index)
            case Finish(error=error) if error is not None:
                raise error
            case Finish(reason=reason):
                return Finished(
                    reason, len(spec.prompt), state.num_output_tokens, state.stats, index
                )
            case _ as unreachable:
                assert_never(unreachable)

    def _prompted(self, logprobs: Sequence[TokenLogprobs]) -> Prompted:
        first = self.specs[0]
        echoed = first.prompt if self.echoes else ()
        return Prompted(echoed, first.decode(echoed), tuple(logprobs))


@dataclass(frozen=True, slots=True)
class SessionFactory:
    """Makes sessions out of calls."""

    tokenizer: Tokenizer
    model: ServedModel
    new_session_id: Callable[[], str]
    random_bits: Callable[[int], int]  # for requests without a seed

    def make(self, call: GenerationCall) -> Generation:
        """Check a call and make a session for each of its samples.

        Raises:
            InvalidArgumentError: naming the field and what is allowed.
        """
        if _is_empty(call.prompt):  # a tokenizer or a template may make tokens of it all the same
            raise InvalidArgumentError("prompt", "is empty; at least one token is needed")
        seed = call.params.seed
        if seed is None:
            seed = self.random_bits(MAX_SEED.bit_length())
        prompt = prompt_tokens(call.prompt, self.tokenizer)
        params = _with_bad_words(call, self.tokenizer)
        session_id = self.new_session_id()
        first = prepare(session_id, prompt, params, model=self.model, noise=NoiseKey(seed))
        others = (
            replace(
                first,
                session_id=f"{session_id}.{index}",
                noise=NoiseKey(seed, index),
                params=replace(first.params, prompt_logprobs=None),  # told once
            )
            for index in range(1, params.n)
        )
        return Generation((first, *others), params.echo)


def default_speculation(config: Config) -> SpeculationParams:
    """What a request gets that says nothing of speculation."""
    drafter, rule = config.drafter, config.coordinator.acceptance_rule
    gamma = 0 if isinstance(drafter, NoDrafterConfig) else drafter.num_draft_tokens
    return SpeculationParams(gamma, rule)


def model_info(config: Config, facts: TargetFacts, tokenizer: Tokenizer) -> ModelInfo:
    """The model served and how it is speculated on, for clients."""
    drafter = config.drafter
    return ModelInfo(
        name=facts.name,
        vocab_size=facts.vocab_size,
        max_context=facts.max_context,
        eos_token_ids=facts.eos_token_ids,
        drafter=drafter.kind,
        drafter_model=drafter.model if drafter.kind == "lm" else "",
        max_draft_tokens=config.max_draft_tokens,
        default_speculation=default_speculation(config),
        has_chat_template=tokenizer.has_chat_template,
        version=__version__,
    )


def _is_empty(prompt: Prompt) -> bool:
    match prompt:
        case TextPrompt(text=text):
            return not text
        case TokenPrompt(token_ids=token_ids):
            return not token_ids
        case ChatPrompt(messages=messages):
            return not messages or not messages[-1].content
        case _ as unreachable:
            assert_never(unreachable)


def prompt_tokens(prompt: Prompt, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The token ids the model reads for a prompt."""
    match prompt:
        case TextPrompt(text=text):
            return tokenizer.encode(_unicode(text))
        case TokenPrompt(token_ids=token_ids):
            return token_ids
        case ChatPrompt(messages=messages):
            return tokenizer.encode_chat(
                [{"role": each.role, "content": _unicode(each.content)} for each in messages]
            )
        case _ as unreachable:
            assert_never(unreachable)


def _unicode(text: str) -> str:
    """The text, known to hold no lone surrogate, as an argument from a shell may."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError("prompt", "is not Unicode") from error
    return text


def _with_bad_words(call: GenerationCall, tokenizer: Tokenizer) -> GenerationParams:
    """A word is forbidden at the beginning of a text and behind a space."""
    if not call.bad_words_text:
        return call.params
    variants = (
        tokenizer.encode(f"{space}{word}", add_special_tokens=False)
        for word in call.bad_words_text
        for space in ("", " ")
    )
    words = dict.fromkeys((*call.params.sampling.bad_words, *variants))
    return replace(call.params, sampling=replace(call.params.sampling, bad_words=tuple(words)))
