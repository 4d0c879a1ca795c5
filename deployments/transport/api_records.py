"""The public API as records: what a client asks and what it is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdec_core.params import GenerationParams, SpeculationParams
    from specdec_core.stats import SpeculationStats
    from specdec_core.types import CommittedToken, FinishReason, TokenLogprobs


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Text to continue, taken as it is."""

    text: str


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids to continue."""

    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation, to be rendered with the model's chat template."""

    messages: tuple[ChatMessage, ...]


Prompt = TextPrompt | TokenPrompt | ChatPrompt


@dataclass(frozen=True, slots=True)
class GenerationCall:
    """One request. ``bad_words_text`` still has to be turned into ``params.sampling.bad_words``."""

    prompt: Prompt
    params: GenerationParams
    bad_words_text: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Started:
    """The generation is admitted; ``seed`` repeats it."""

    session_id: str
    seed: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Prompted:
    """The prompt as the model reads it, once and before the first sample produces anything, where asked for."""

    token_ids: tuple[int, ...]  # of a call that echoes
    text: str  # likewise
    logprobs: tuple[
        TokenLogprobs, ...
    ]  # of each token but the first, of a call with prompt_logprobs


@dataclass(frozen=True, slots=True)
class Produced:
    """The next committed tokens of a sample and the text they settle, either of which may be empty."""

    first_index: int  # place of the first token in the output
    tokens: tuple[CommittedToken, ...]
    text: str
    sample_index: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """A sample is over; the generation is when all of them are."""

    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    speculation: SpeculationStats
    sample_index: int = 0


GenerationEvent = Started | Prompted | Produced | Finished


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The model served and how it is speculated on."""

    name: str
    vocab_size: int
    max_context: int
    eos_token_ids: tuple[int, ...]
    drafter: str  # its kind; "none" if there is none
    drafter_model: str  # empty for a drafter without a model
    max_draft_tokens: int  # of a request; 0 without a drafter
    default_speculation: SpeculationParams  # of a request that says nothing of it
    has_chat_template: bool
    version: str
