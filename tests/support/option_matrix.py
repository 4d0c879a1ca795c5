"""Runs one request under every rule, drafter and draft length, and says what is wrong with an outcome.

The oracle is ``specdec_core.reference`` and a log-softmax in float64; the text of tokens is that of a byte-level vocabulary in which
characters may be split and stop strings may lie across tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from typing import TYPE_CHECKING

from specdec_core import reference
from specdec_core.drafters.lm import LmDrafter
from specdec_core.drafters.ngram import NgramDrafter
from specdec_core.engine import Engine
from specdec_core.params import GenerationParams, SamplingParams, SpeculationParams
from specdec_core.roles.drafter import DrafterRole
from specdec_core.roles.target import TargetRole
from specdec_core.session.events import Emit, EmitPrompt, Finish
from specdec_core.session.request import prepare
from specdec_core.types import AcceptanceRule, FinishReason, NoiseKey
from tests.support.drafters import (
    ConstantDrafter,
    DrafterBySession,
    RandomDrafter,
    ScriptedDrafter,
    SilentDrafter,
)
from tests.support.generation import served
from tests.support.table_model import TableModel

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from specdec_core.drafters.base import Drafter
    from specdec_core.types import CommittedToken, TokenLogprobs

EOS = 11
TARGET = TableModel(1, eos=(EOS,))
PROMPT = (0, 7, 2, 8, 1)
GAMMAS = (0, 1, 2, 5, 16)
BYTES = (b"a", b"b", b" ", b"\xe2\x82", b"\xc3", b"\xa9", b"\xac", b"ab", b"c", b"d", b"e")
TOLERANCE = 1e-4


def decode(tokens: Sequence[int], *, skip_special_tokens: bool) -> str:
    special = b"" if skip_special_tokens else b"<eos>"
    pieces = (special if token == EOS else BYTES[token] for token in tokens)
    return b"".join(pieces).decode("utf-8", "replace")


@dataclass(frozen=True)
class Cell:
    drafter: str
    rule: AcceptanceRule
    gamma: int

    @property
    def session_id(self) -> str:
        return f"{self.drafter}/{self.rule.value}/{self.gamma}"


@dataclass
class Outcome:
    """All that a client was told."""

    tokens: list[CommittedToken] = field(default_factory=list)
    text: str = ""
    finish: FinishReason | None = None
    usage: int = 0
    prompt: list[tuple[TokenLogprobs, ...]] = field(default_factory=list)

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(each.token for each in self.tokens)


def drafters(expected: Sequence[int]) -> dict[str, Drafter]:
    """Every kind of drafter; ``expected`` is the plain output, which the adversary contradicts."""
    vocab_size = TARGET.spec.vocab_size
    return {
        "good": LmDrafter(TARGET.perturbed(2, 0.1), vocab_size=vocab_size),
        "random": RandomDrafter(4, vocab_size),
        "always wrong": ScriptedDrafter([*PROMPT, *expected], vocab_size, shift=1),
        "ngram": NgramDrafter(),
        "eos": ConstantDrafter(EOS),
        "silent": SilentDrafter(),
    }


def run_plain(params: SamplingParams, noise: NoiseKey, prompt: tuple[int, ...] = PROMPT) -> Outcome:
    cell = Cell("none", AcceptanceRule.COUPLED, 0)
    return run(params, noise, None, [cell], prompt)[cell]


def run_all(
    params: SamplingParams, noise: NoiseKey, expected: Sequence[int]
) -> dict[Cell, Outcome]:
    """Every cell; they share their steps, so each batch mixes rules, draft lengths and sessions that opted out."""
    by_name = drafters(expected)
    cells = [Cell(*each) for each in product(by_name, AcceptanceRule, GAMMAS)]
    return run(params, noise, DrafterBySession(by_name), cells)


def run(
    params: SamplingParams,
    noise: NoiseKey,
    drafter: Drafter | None,
    cells: Iterable[Cell],
    prompt: tuple[int, ...] = PROMPT,
) -> dict[Cell, Outcome]:
    """The same request once per cell, all at once."""
    target = TargetRole(TARGET, max_sessions=128, token_budget=512)
    drafting = DrafterRole(drafter, max_sessions=128) if drafter else None
    by_name = {cell.session_id: cell for cell in cells}
    outcomes = {cell: Outcome() for cell in by_name.values()}
    specs = [
        prepare(
            name,
            prompt,
            GenerationParams(params, SpeculationParams(cell.gamma, cell.rule)),
            model=served(TARGET, decode=decode),
            noise=noise,
        )
        for name, cell in by_name.items()
    ]
    for delivered in Engine(target, drafting).run(specs):
        delivered.state.check_integrity()
        outcome = outcomes[by_name[delivered.state.spec.session_id]]
        match delivered.effect:
            case EmitPrompt(logprobs):
                assert not outcome.tokens
                outcome.prompt.append(logprobs)
            case Emit(tokens, text):
                outcome.tokens += tokens
                outcome.text += text
            case Finish(reason):
                outcome.finish = reason
                outcome.usage = delivered.state.num_output_tokens
    assert (target.num_sessions, drafting.num_sessions if drafting else 0) == (0, 0)
    return outcomes


def differences(outcome: Outcome, plain: Outcome) -> list[str]:
    """In what an outcome is not that of plain decoding."""
    facts = {
        "token ids": outcome.ids == plain.ids,
        "text": outcome.text == plain.text,
        "finish reason": outcome.finish == plain.finish,
        "usage": outcome.usage == plain.usage,
        "logprobs": all(
            _agree(one.logprobs, other.logprobs)
            for one, other in zip(outcome.tokens, plain.tokens, strict=False)
        ),
        "prompt logprobs": len(outcome.prompt) == len(plain.prompt)
        and all(
            _agree(*pair)
            for ours, theirs in zip(outcome.prompt, plain.prompt, strict=True)
            for pair in zip(ours, theirs, strict=True)
        ),
    }
    return [fact for fact, holds in facts.items() if not holds]


def broken(outcome: Outcome, params: SamplingParams) -> list[str]:
    """Which of the options an outcome does not keep to, at whatever position."""
    params = params.with_eos(TARGET.spec.eos_token_ids)
    prefixes = [(*PROMPT, *outcome.ids[:end]) for end in range(len(outcome.ids))]
    shown = outcome.ids
    if shown[-1] in params.stop_token_ids and not params.include_stop_str_in_output:
        shown = shown[:-1]
    whole = _text((*PROMPT, *shown), params)[len(_text(PROMPT, params)) :]
    facts = {
        "usage counts what was delivered": outcome.usage == len(outcome.ids),
        "every token may follow": all(
            law(prefix, params)[token] > 0
            for prefix, token in zip(prefixes, outcome.ids, strict=True)
        ),
        "nothing follows a stop token": not set(outcome.ids[:-1]) & set(params.stop_token_ids),
        "the text is that of the tokens": whole.startswith(outcome.text),
        "the end is as stated": _is_ending(outcome, params, whole),
        "logprobs": all(
            _is_told(each.logprobs, prefix, each.token, params.logprobs)
            for each, prefix in zip(outcome.tokens, prefixes, strict=True)
        ),
        "prompt logprobs": _is_prompt_told(outcome, params),
    }
    return [fact for fact, holds in facts.items() if not holds]


@cache
def law(prefix: tuple[int, ...], params: SamplingParams) -> list[float]:
    return reference.law(TARGET.logits(prefix), prefix, len(PROMPT), params)


@cache
def raw_logprobs(prefix: tuple[int, ...]) -> list[float]:
    logits = TARGET.logits(prefix)
    total = math.log(math.fsum(map(math.exp, logits)))
    return [logit - total for logit in logits]


def _text(tokens: Sequence[int], params: SamplingParams) -> str:
    return decode(tokens, skip_special_tokens=params.skip_special_tokens)


def _is_ending(outcome: Outcome, params: SamplingParams, whole: str) -> bool:
    if outcome.finish is FinishReason.LENGTH:
        return len(outcome.ids) == params.max_tokens and outcome.text == whole
    if outcome.finish is not FinishReason.STOP or len(outcome.ids) < params.min_tokens:
        return False
    if params.include_stop_str_in_output and outcome.text.endswith(params.stop or ("",)):
        return True
    if whole[len(outcome.text) :].startswith(params.stop or ("\0",)):
        return True
    return outcome.ids[-1] in params.stop_token_ids and outcome.text == whole


def _is_told(
    told: TokenLogprobs | None, prefix: tuple[int, ...], token: int, num_top: int | None
) -> bool:
    if told is None or num_top is None:
        return told is None and num_top is None
    raw = raw_logprobs(prefix)
    likeliest = sorted(range(len(raw)), key=lambda each: (-raw[each], each))[:num_top]
    numbers = [raw[token], *(raw[each] for each in likeliest)]
    said = [told.logprob, *(logprob for _, logprob in told.top)]
    return [each for each, _ in told.top] == likeliest and _are_close(numbers, said)


def _is_prompt_told(outcome: Outcome, params: SamplingParams) -> bool:
    if params.prompt_logprobs is None:
        return outcome.prompt == []
    (told,) = outcome.prompt
    return len(told) == len(PROMPT) - 1 and all(
        _is_told(each, PROMPT[:place], PROMPT[place], params.prompt_logprobs)
        for place, each in enumerate(told, start=1)
    )


def _agree(one: TokenLogprobs | None, other: TokenLogprobs | None) -> bool:
    if one is None or other is None:
        return one is other
    return [token for token, _ in one.top] == [token for token, _ in other.top] and _are_close(
        [one.logprob, *(each for _, each in one.top)],
        [other.logprob, *(each for _, each in other.top)],
    )


def _are_close(some: list[float], others: list[float]) -> bool:
    return all(
        math.isclose(one, other, abs_tol=TOLERANCE) for one, other in zip(some, others, strict=True)
    )
