"""The promise on a tiny model: the output is the reference's for every drafter and draft length, and its law is the target's."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import product
from typing import TYPE_CHECKING

import pytest
from scipy.stats import chisquare

from specdec_core import reference
from specdec_core.drafters.lm import LmDrafter
from specdec_core.drafters.ngram import NgramDrafter
from specdec_core.params import GenerationParams, SamplingParams, SpeculationParams
from specdec_core.types import AcceptanceRule, FinishReason, NoiseKey
from tests.support.drafters import LyingDrafter, RandomDrafter, ScriptedDrafter, SilentDrafter
from tests.support.generation import Wish, generate
from tests.support.table_model import TableModel

if TYPE_CHECKING:
    from specdec_core.drafters.base import Drafter

TARGET = TableModel(1, eos=(11,))
PROMPT = (3, 1, 4, 1, 5)
GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.9, top_p=0.95, max_tokens=40, ignore_eos=True)
SHAPED = SamplingParams(
    temperature=0.8,
    top_k=9,
    min_p=0.01,
    repetition_penalty=1.2,
    presence_penalty=0.4,
    frequency_penalty=0.3,
    logit_bias=((2, 1.5), (7, -3.0)),
    bad_words=((4, 5), (6,)),
    min_tokens=12,
    max_tokens=40,
)
CHOSEN = SamplingParams(
    temperature=1.0, allowed_token_ids=(0, 2, 4, 6, 8, 11), min_tokens=3, max_tokens=40
)


@cache
def expected(params: SamplingParams, seed: int) -> tuple[int, ...]:
    resolved = params.with_eos(TARGET.spec.eos_token_ids)
    return tuple(
        reference.plain(TARGET.logits, PROMPT, resolved, NoiseKey(seed), TARGET.spec.max_context)
    )


def drafters(params: SamplingParams, seed: int) -> dict[str, Drafter]:
    sequence = [*PROMPT, *expected(params, seed)]
    vocab_size = TARGET.spec.vocab_size
    return {
        "equal": LmDrafter(TARGET, vocab_size=vocab_size),
        "good": LmDrafter(TARGET.perturbed(2, 0.1), vocab_size=vocab_size),
        "poor": LmDrafter(TARGET.perturbed(3, 1.0), vocab_size=vocab_size),
        "ngram": NgramDrafter(),
        "random": RandomDrafter(4, vocab_size),
        "always right": ScriptedDrafter(sequence, vocab_size),
        "always wrong": ScriptedDrafter(sequence, vocab_size, shift=1),
        "silent": SilentDrafter(),
    }


def wish(
    params: SamplingParams, seed: int, gamma: int, rule: AcceptanceRule = AcceptanceRule.COUPLED
) -> Wish:
    return Wish("s", PROMPT, GenerationParams(params, SpeculationParams(gamma, rule), seed))


@pytest.mark.parametrize("rule", AcceptanceRule)
@pytest.mark.parametrize("gamma", range(17))
def test_greedy_output_is_the_references_for_every_drafter_and_rule(
    gamma: int, rule: AcceptanceRule
) -> None:
    for name, drafter in drafters(GREEDY, 0).items():
        state = generate(TARGET, drafter, [wish(GREEDY, 0, gamma, rule)])["s"]
        assert state.output == expected(GREEDY, 0), name


@pytest.mark.parametrize("params", [SAMPLED, SHAPED, CHOSEN], ids=["sampled", "shaped", "chosen"])
@pytest.mark.parametrize("gamma", [0, 1, 2, 5, 16])
def test_coupled_output_depends_on_the_seed_alone(gamma: int, params: SamplingParams) -> None:
    for seed in (7, 8, 2**64 - 1):
        for name, drafter in drafters(params, seed).items():
            state = generate(TARGET, drafter, [wish(params, seed, gamma)])["s"]
            assert state.output == expected(params, seed), (name, seed)


def test_different_seeds_give_different_texts() -> None:
    assert expected(SAMPLED, 7) != expected(SAMPLED, 8)


def test_a_prompt_read_in_chunks_gives_the_same_text() -> None:
    long_prompt = tuple(index * 7 % 12 for index in range(100))
    wishes = [
        Wish(str(seed), long_prompt, GenerationParams(SAMPLED, seed=seed)) for seed in range(3)
    ]
    whole = generate(TARGET, None, wishes, token_budget=512)
    chunked = generate(TARGET, None, wishes, token_budget=8)
    assert {name: state.output for name, state in chunked.items()} == {
        name: state.output for name, state in whole.items()
    }


def test_sessions_with_different_options_do_not_disturb_each_other() -> None:
    options = [GREEDY, SAMPLED, SHAPED, CHOSEN]
    wishes = [
        Wish(
            f"{number}",
            PROMPT[: 1 + number % 5],
            GenerationParams(params, SpeculationParams(gamma, rule), seed=number),
        )
        for number, (params, gamma, rule) in enumerate(product(options, (0, 3), AcceptanceRule))
    ]
    drafter = TARGET.perturbed(2, 0.2)
    together = generate(TARGET, LmDrafter(drafter, vocab_size=12), wishes)
    for one in wishes:
        alone = generate(TARGET, LmDrafter(drafter, vocab_size=12), [one])[one.session_id]
        assert together[one.session_id].output == alone.output
        assert together[one.session_id].stats == alone.stats


@pytest.mark.parametrize("rule", AcceptanceRule)
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_drafter_equal_to_the_target_is_always_accepted(
    rule: AcceptanceRule, params: SamplingParams
) -> None:
    state = generate(TARGET, LmDrafter(TARGET, vocab_size=12), [wish(params, 5, 3, rule)])["s"]
    assert state.stats.num_draft_tokens == state.stats.num_accepted_tokens > 0


def test_a_drafter_that_is_always_wrong_costs_one_round_per_token() -> None:
    drafter = drafters(GREEDY, 0)["always wrong"]
    stats = generate(TARGET, drafter, [wish(GREEDY, 0, 4)])["s"].stats
    assert (stats.num_accepted_tokens, stats.num_rounds, stats.num_committed_tokens) == (0, 40, 40)


def test_a_generation_ends_exactly_at_the_end_of_the_context() -> None:
    small = TableModel(1, max_context=16)
    params = GenerationParams(replace(GREEDY, max_tokens=100), SpeculationParams(8))
    state = generate(small, LmDrafter(small, vocab_size=12), [Wish("s", PROMPT, params)])["s"]
    assert (len(state.tokens), state.finish) == (16, FinishReason.LENGTH)


def _joint_law(params: SamplingParams) -> dict[tuple[int, ...], float]:
    """Exact law of the first three output tokens."""
    law: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(3):
        law = {
            (*output, token): prob * p_token
            for output, prob in law.items()
            for token, p_token in enumerate(
                reference.law(
                    TARGET.logits((*PROMPT, *output)), (*PROMPT, *output), len(PROMPT), params
                )
            )
            if p_token
        }
    return law


def _p_value(drafter: Drafter, rule: AcceptanceRule, count: int) -> float:
    """Chi-square of the first three output tokens over seeds 0..count-1; bins that expect fewer than five are merged.

    The first round is plain; the second drafts two tokens, so the tokens compared are plain, tested, and tested or recovered.
    """
    params = SamplingParams(temperature=1.0, top_k=6, max_tokens=4, ignore_eos=True)
    wishes = [
        Wish(str(seed), PROMPT, GenerationParams(params, SpeculationParams(2, rule), seed))
        for seed in range(count)
    ]
    batches = (wishes[start : start + 1000] for start in range(0, count, 1000))
    seen = Counter(
        state.output[:3] for batch in batches for state in generate(TARGET, drafter, batch).values()
    )
    law = _joint_law(params)
    bins = [output for output, prob in law.items() if prob * count >= 5]
    observed = [seen[output] for output in bins]
    wanted = [law[output] * count for output in bins]
    return float(
        chisquare([*observed, count - sum(observed)], [*wanted, count - sum(wanted)]).pvalue
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["good", "poor", "random"])
@pytest.mark.parametrize("rule", AcceptanceRule)
def test_the_joint_law_of_three_tokens_is_the_targets(rule: AcceptanceRule, name: str) -> None:
    """False-alarm rate 1e-4 per case; seeds are fixed, so the outcome is too."""
    assert _p_value(drafters(SAMPLED, 0)[name], rule, 2000) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("rule", [rule for rule in AcceptanceRule if rule.tests_draft_law])
def test_the_law_test_notices_a_drafter_that_lies_about_its_law(rule: AcceptanceRule) -> None:
    assert _p_value(LyingDrafter(5, 12), rule, 2000) < 1e-4
