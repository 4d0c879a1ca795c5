"""Validated request parameters. A value that exists is a value that is allowed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from specdec_core.errors import InvalidArgumentError
from specdec_core.types import AcceptanceRule

if TYPE_CHECKING:
    from collections.abc import Iterable

    from specdec_core.structured import StructuredOutput

GREEDY_TEMPERATURE = 1e-5  # below this a request is greedy
MAX_SEED = 2**64 - 1
MAX_SAMPLE_INDEX = 2**16 - 1
MAX_DRAFT_TOKENS = 32  # hard cap of one block, whatever the configuration says
MAX_LOGIT_BIAS = 1024
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARS = 256
MAX_BAD_WORDS = 256
MAX_BAD_WORD_TOKENS = 64
MAX_TOKEN_LIST = 65536
MAX_LOGPROBS = 20  # alternatives told with a token
MAX_PROMPT_LOGPROBS = 2**17  # entries for a whole prompt, so that they fit a message
MAX_SAMPLES = 16
_MAX_TOKENS = 2**20


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the target's law is shaped and when the generation ends; defaults sample the unmodified law.

    Raises:
        InvalidArgumentError: on construction, naming the field and the allowed range.
    """

    temperature: float = 1.0  # 0 is greedy
    top_k: int = 0  # 0 keeps every token
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, added to its logit)
    bad_words: tuple[
        tuple[int, ...], ...
    ] = ()  # token sequences that must not appear in the output
    allowed_token_ids: tuple[int, ...] = ()  # empty allows every token
    min_tokens: int = 0  # no stop token before this many output tokens
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True  # leave them out of the text
    logprobs: int | None = None  # alternatives told with each token; None tells nothing
    prompt_logprobs: int | None = None  # the same of each prompt token but the first
    structured: StructuredOutput | None = None  # what the output's text must be

    def __post_init__(self) -> None:
        _check_range("temperature", self.temperature, 0.0, 10.0)
        _check_int("top_k", self.top_k, 0, MAX_TOKEN_LIST * 16)
        _check_range("top_p", self.top_p, 0.0, 1.0, low_open=True)
        _check_range("min_p", self.min_p, 0.0, 1.0)
        _check_range("typical_p", self.typical_p, 0.0, 1.0, low_open=True)
        _check_range("repetition_penalty", self.repetition_penalty, 0.0, 10.0, low_open=True)
        _check_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check_int("max_tokens", self.max_tokens, 1, _MAX_TOKENS)
        _check_int("min_tokens", self.min_tokens, 0, self.max_tokens)
        _check_optional_int("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        _check_optional_int("prompt_logprobs", self.prompt_logprobs, 0, MAX_LOGPROBS)
        self._check_lists()

    def _check_lists(self) -> None:
        _check_count("logit_bias", self.logit_bias, MAX_LOGIT_BIAS)
        for _, bias in self.logit_bias:
            _check_range("logit_bias", bias, -100.0, 100.0)
        _check_tokens("logit_bias", (token for token, _ in self.logit_bias))
        _check_count("bad_words", self.bad_words, MAX_BAD_WORDS)
        for word in self.bad_words:
            if not 1 <= len(word) <= MAX_BAD_WORD_TOKENS:
                raise InvalidArgumentError(
                    "bad_words", f"each must be 1 to {MAX_BAD_WORD_TOKENS} tokens, got {len(word)}"
                )
            _check_tokens("bad_words", word)
        for name, tokens in (
            ("allowed_token_ids", self.allowed_token_ids),
            ("stop_token_ids", self.stop_token_ids),
        ):
            _check_count(name, tokens, MAX_TOKEN_LIST)
            _check_tokens(name, tokens)
        _check_count("stop", self.stop, MAX_STOP_STRINGS)
        for text in self.stop:
            if not 1 <= len(text) <= MAX_STOP_STRING_CHARS:
                raise InvalidArgumentError(
                    "stop", f"each must be 1 to {MAX_STOP_STRING_CHARS} characters, got {len(text)}"
                )

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_TEMPERATURE

    def with_eos(self, eos_token_ids: Iterable[int]) -> SamplingParams:
        """The same parameters with the model's end-of-sequence ids among the stop tokens, unless they are ignored."""
        if self.ignore_eos:
            return self
        return replace(self, stop_token_ids=tuple(sorted({*self.stop_token_ids, *eos_token_ids})))

    def check_vocabulary(self, vocab_size: int) -> None:
        """Refuse any token id that the target does not have."""
        named: tuple[tuple[str, Iterable[int]], ...] = (
            ("logit_bias", (token for token, _ in self.logit_bias)),
            ("bad_words", (token for word in self.bad_words for token in word)),
            ("allowed_token_ids", self.allowed_token_ids),
            ("stop_token_ids", self.stop_token_ids),
        )
        for name, tokens in named:
            check_token_ids(name, tokens, vocab_size)


@dataclass(frozen=True, slots=True)
class SpeculationParams:
    """How a request is speculated on; can change its speed only."""

    max_draft_tokens: int = 4  # 0 decodes plainly
    rule: AcceptanceRule = AcceptanceRule.COUPLED

    def __post_init__(self) -> None:
        _check_int("max_draft_tokens", self.max_draft_tokens, 0, MAX_DRAFT_TOKENS)


@dataclass(frozen=True, slots=True)
class GenerationParams:
    """All a client may ask of one generation."""

    sampling: SamplingParams = field(default_factory=SamplingParams)
    speculation: SpeculationParams = field(default_factory=SpeculationParams)
    seed: int | None = None  # None draws a random one, which the answer tells
    n: int = 1  # samples; sample i has the noise of NoiseKey(seed, i)
    echo: bool = False  # tell the prompt before the answer

    def __post_init__(self) -> None:
        _check_optional_int("seed", self.seed, 0, MAX_SEED)
        _check_int("n", self.n, 1, MAX_SAMPLES)


def check_prompt_logprobs(prompt: tuple[int, ...], params: SamplingParams) -> None:
    """Refuse to tell more of a prompt than fits a message."""
    num_tops = params.prompt_logprobs
    if num_tops is not None and len(prompt) * (num_tops + 1) > MAX_PROMPT_LOGPROBS:
        most = MAX_PROMPT_LOGPROBS // len(prompt) - 1
        allowed = f"must be at most {most}" if most >= 0 else "is not to be had"
        raise InvalidArgumentError(
            "prompt_logprobs", f"{allowed} with a prompt of {len(prompt)} tokens, got {num_tops}"
        )


def check_prompt(prompt: tuple[int, ...], *, vocab_size: int, max_context: int) -> None:
    """Refuse an empty prompt, one that leaves no room for a token, and ids outside the vocabulary."""
    if not prompt:
        raise InvalidArgumentError("prompt", "is empty; at least one token is needed")
    if len(prompt) >= max_context:
        raise InvalidArgumentError(
            "prompt",
            f"has {len(prompt)} tokens; at most {max_context - 1} fit a context of {max_context}",
        )
    check_token_ids("prompt", prompt, vocab_size)


def check_token_ids(name: str, tokens: Iterable[int], vocab_size: int) -> None:
    """Refuse ids that are not in [0, vocab_size)."""
    for token in tokens:
        if not 0 <= token < vocab_size:
            raise InvalidArgumentError(
                name, f"token id {token} is outside the vocabulary of {vocab_size}"
            )


def _check_range(
    name: str, value: float, low: float, high: float, *, low_open: bool = False
) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and (low < value if low_open else low <= value) and value <= high):
        raise InvalidArgumentError(
            name, f"must be in {'(' if low_open else '['}{low:g}, {high:g}], got {value!r}"
        )


def _check_int(name: str, value: int, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidArgumentError(name, f"must be an integer in [{low}, {high}], got {value!r}")


def _check_optional_int(name: str, value: int | None, low: int, high: int) -> None:
    if value is not None:
        _check_int(name, value, low, high)


def _check_count(name: str, values: tuple[object, ...], limit: int) -> None:
    if len(values) > limit:
        raise InvalidArgumentError(name, f"takes at most {limit} entries, got {len(values)}")


def _check_tokens(name: str, tokens: Iterable[int]) -> None:
    for token in tokens:
        _check_int(name, token, 0, 2**31 - 1)
