"""Grammars through llguidance: compiled once per demand, copied per session, advanced and rolled back token by token.

llguidance (https://github.com/guidance-ai/llguidance) walks the tokenizer's prefix tree with a lexer of derivatives and an Earley
parser. Its limits bound the cost of one step, so that a hostile schema is refused and not computed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, assert_never

from llguidance import LLMatcher, LLTokenizer

from specdec_core.errors import InvalidArgumentError, InvariantError, UnsupportedModelError
from specdec_core.structured import Choice, Grammar, JsonSchema, NoGrammars, Regex

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdec_core.models.tokenizer import Tokenizer
    from specdec_core.structured import GrammarBackend, StructuredOutput

_MAX_COMPILED = 64  # demands kept ready, the least recently used dropped first
_MAX_REASON_CHARS = 200


def load_grammars(tokenizer: Tokenizer, eos_token_ids: Sequence[int]) -> GrammarBackend:
    """What enforces structure on the text of this tokenizer; takes 0.3 s for a vocabulary of 50k.

    Args:
        tokenizer: The target's.
        eos_token_ids: Tokens that end a structure; they must end a generation too.
    """
    if not eos_token_ids:
        return NoGrammars("the model has no end-of-sequence token")
    try:
        library_tokenizer = LLTokenizer(tokenizer.definition(), eos_token=list(eos_token_ids))
    except (UnsupportedModelError, ValueError) as error:
        return NoGrammars(f"the tokenizer is not supported: {_one_line(str(error))}")
    return LlGuidanceGrammars(library_tokenizer, eos_token_ids)


@dataclass(frozen=True, slots=True)
class _Ending:
    """The tokens that end a structure, and the mask that allows nothing else."""

    token_ids: frozenset[int]
    mask: bytes


class LlGuidanceGrammars:
    """Compiles demands for one tokenizer and keeps the latest of them; ``load_grammars`` makes it."""

    def __init__(self, tokenizer: LLTokenizer, eos_token_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._ending = _Ending(frozenset(eos_token_ids), _packed(eos_token_ids))
        self._compiled = lru_cache(maxsize=_MAX_COMPILED)(self._compile)

    def compile(self, structured: StructuredOutput) -> LlGuidanceState:
        matcher = self._compiled(structured).deep_copy()
        return LlGuidanceState(matcher, self._ending, self._tokenizer.vocab_size)

    def _compile(self, structured: StructuredOutput) -> LLMatcher:
        try:
            matcher = LLMatcher(self._tokenizer, _library_grammar(structured), log_level=0)
        except ValueError as error:
            raise _refused(structured, str(error)) from error
        mask = b"" if matcher.is_error() else matcher.compute_bitmask()  # copies inherit its work
        if matcher.is_error():
            raise _refused(structured, matcher.get_error())
        if not any(mask):
            raise _refused(structured, "the vocabulary has no token to begin with")
        return matcher


class LlGuidanceState:
    """One output in llguidance's matcher. End-of-sequence tokens are counted here: the library does not roll them back."""

    def __init__(self, matcher: LLMatcher, ending: _Ending, vocab_size: int) -> None:
        self._matcher = matcher
        self._ending = ending
        self._vocab_size = vocab_size  # the matcher breaks at ids beyond it
        self._num_taken = 0
        self._num_eos = 0

    def advance(self, token: int) -> bool:
        if token in self._ending.token_ids:
            is_allowed = self._num_eos > 0 or self._matcher.is_accepting()
            self._num_eos += is_allowed
            return is_allowed
        if self._num_eos or token >= self._vocab_size:
            return False
        if self._matcher.try_consume_tokens([token]) == 0:
            return False
        self._num_taken += 1
        return True

    def rollback(self, num_tokens: int) -> None:
        if num_tokens > self._num_taken + self._num_eos:
            raise InvariantError(
                f"cannot roll back {num_tokens} of {self._num_taken + self._num_eos} tokens"
            )
        ends = min(num_tokens, self._num_eos)
        self._num_eos -= ends
        if num_tokens > ends:
            self._matcher.rollback(num_tokens - ends)
            self._num_taken -= num_tokens - ends

    def mask(self) -> bytes:
        if self._num_eos:
            return self._ending.mask
        mask = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            raise InvalidArgumentError("structured", _one_line(self._matcher.get_error()))
        return mask


def _library_grammar(structured: StructuredOutput) -> str:
    """The demand inside a grammar that turns forcing off.

    Where only one text can follow, the library would allow the first token of its usual tokenization alone. That is no function
    of the text: it would shape the law beyond what was demanded.
    """
    outer = {"name": "outer", "lark_grammar": '%llguidance {"no_forcing": true}\nstart: @demand'}
    return json.dumps(
        {"grammars": [outer, {**_demand(structured), "name": "demand"}]}, allow_nan=False
    )


def _demand(structured: StructuredOutput) -> dict[str, object]:
    match structured:
        case JsonSchema(text=text):
            return {"json_schema": json.loads(text)}
        case Regex(pattern=pattern):
            (demand,) = json.loads(LLMatcher.grammar_from_regex(pattern))["grammars"]
            return {"lark_grammar": demand["lark_grammar"]}
        case Grammar(text=text):
            return {"lark_grammar": text}
        case Choice(options=options):
            quoted = " | ".join(json.dumps(option, ensure_ascii=False) for option in options)
            return {"lark_grammar": f"start: {quoted}"}
        case _ as unreachable:
            assert_never(unreachable)


def _refused(structured: StructuredOutput, reason: str) -> InvalidArgumentError:
    return InvalidArgumentError(structured.field, f"is refused: {_one_line(reason)}")


def _one_line(message: str) -> str:
    """What the library says, without the dump of its state."""
    return " ".join(message.partition("<state>")[0].split())[:_MAX_REASON_CHARS]


def _packed(token_ids: Sequence[int]) -> bytes:
    """A mask that allows these tokens alone."""
    bits = bytearray(max(token_ids) // 8 + 1)
    for token in token_ids:
        bits[token // 8] |= 1 << token % 8
    return bytes(bits)
