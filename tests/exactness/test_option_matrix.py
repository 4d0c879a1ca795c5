"""Every option under every rule, drafter and draft length is what plain decoding makes of it.

Under ``coupled``, and greedily under every rule, an outcome is plain decoding's in ids, text, end, usage and log-probabilities. Sampled
under ``ratio`` and ``block`` it is another draw of the same law: there each token must be one that the options allow in its place,
whatever is told of it must be the target's, and for some options the law of whole outputs is tested.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from scipy.stats import chisquare

from specdec_core.params import GenerationParams, SamplingParams, SpeculationParams
from specdec_core.roles import target as target_role
from specdec_core.sampling.logprobs import draft_logprobs
from specdec_core.sampling.process import Row, process
from specdec_core.types import AcceptanceRule, FinishReason, NoiseKey
from tests.support.generation import Wish, generate
from tests.support.option_matrix import (
    EOS,
    GAMMAS,
    PROMPT,
    TARGET,
    broken,
    differences,
    drafters,
    law,
    run_all,
    run_plain,
)
from tests.support.option_table import OPTIONS, RUNNING, STOPPING, sampled

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from specdec_core.sampling.logprobs import LogprobRequest
    from specdec_core.types import DraftLogprobs

FALSE_ALARM = 1e-4  # of each chi-square test, for seeds drawn at random; they are fixed


SEEDS = {"seed 0": NoiseKey(0), "the largest seed": NoiseKey(2**64 - 1)} | {
    f"sample {index} of n": NoiseKey(7, index) for index in (0, 1, 15)
}


def mistakes(params: SamplingParams, noise: NoiseKey) -> dict[Any, list[str]]:
    """What is wrong with which cells."""
    plain = run_plain(params, noise)
    outcomes = run_all(params, noise, plain.ids)
    assert len(outcomes) == len(AcceptanceRule) * len(GAMMAS) * len(drafters(()))
    found: dict[Any, list[str]] = {"plain": broken(plain, params)}
    for cell, outcome in outcomes.items():
        found[cell] = broken(outcome, params)
        if params.is_greedy or cell.rule is AcceptanceRule.COUPLED:
            found[cell] += differences(outcome, plain)
    return {cell: wrong for cell, wrong in found.items() if wrong}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_sampled_request_keeps_to_its_options_in_every_cell(name: str) -> None:
    assert mistakes(OPTIONS[name], NoiseKey(1)) == {}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_greedy_request_is_plain_decodings_in_every_cell(name: str) -> None:
    assert mistakes(replace(OPTIONS[name], temperature=0.0), NoiseKey(1)) == {}


@pytest.mark.parametrize("name", SEEDS)
def test_a_seed_and_a_sample_index_give_their_output_in_every_cell(name: str) -> None:
    assert mistakes(sampled(logprobs=1), SEEDS[name]) == {}


def test_every_sample_of_one_seed_is_another_draw() -> None:
    assert len({run_plain(sampled(), NoiseKey(7, index)).ids for index in range(16)}) == 16


@pytest.mark.parametrize("name", STOPPING)
def test_the_stopping_options_stop_what_would_run_on(name: str) -> None:
    outcomes = [run_plain(STOPPING[name], NoiseKey(seed)) for seed in range(1, 5)]

    assert [outcome.finish for outcome in outcomes].count(FinishReason.STOP) >= 2


@pytest.mark.parametrize(
    "name", [name for name in RUNNING if name not in {"nothing", "everything"}]
)
def test_the_other_options_change_the_law_the_length_or_what_is_told(name: str) -> None:
    bare = sampled()
    prefixes = [(*PROMPT, *run_plain(bare, NoiseKey(1)).ids[:end]) for end in range(16)]
    params = RUNNING[name].with_eos((EOS,))

    told = (params.max_tokens, params.logprobs, params.prompt_logprobs)

    assert told != (16, None, None) or any(
        law(prefix, params) != law(prefix, bare) for prefix in prefixes
    )


def test_sessions_that_opt_out_are_what_each_is_alone_beside_those_that_speculate() -> None:
    wishes = [
        Wish(
            f"{rule.value} {gamma} {seed}",
            PROMPT,
            GenerationParams(sampled(top_p=0.9), SpeculationParams(gamma, rule), seed),
        )
        for rule in AcceptanceRule
        for gamma in (0, 4)
        for seed in range(3)
    ]

    together = generate(TARGET, drafters(())["good"], wishes)

    for wish in wishes:
        state = together[wish.session_id]
        alone = generate(TARGET, drafters(())["good"], [wish])[wish.session_id]
        assert (state.output, state.stats) == (alone.output, alone.stats)
        opted_out = wish.params.speculation.max_draft_tokens == 0
        assert (state.stats.num_draft_tokens == 0) == opted_out


# Negative controls: the matrix notices what it is there for.


def blind_to_the_draft(logits: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
    """Every row of a draft sees the prefix of the draft's first row, as where penalties ignore the draft."""
    blind = list(rows)
    for index, row in enumerate(rows[1:], start=1):
        before = rows[index - 1]
        if row.params is before.params and len(row.prefix) == len(before.prefix) + 1:
            blind[index] = replace(row, prefix=blind[index - 1].prefix)
    return process(logits, blind)


def of_the_emitted_tokens(
    logits: torch.Tensor, requests: Sequence[LogprobRequest]
) -> list[DraftLogprobs]:
    """Tells of an accepted draft token what belongs to the token in its stead."""
    told = draft_logprobs(logits, requests)
    return [replace(each, draft=each.emitted[:-1]) for each in told]


@pytest.mark.parametrize("name", ["frequency_penalty", "bad_words", "min_tokens"])
def test_a_sampler_blind_to_the_draft_is_noticed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_role, "process", blind_to_the_draft)

    wrong = mistakes(OPTIONS[name], NoiseKey(1))

    assert AcceptanceRule.COUPLED in {cell.rule for cell in wrong}


@pytest.mark.parametrize("name", ["frequency_penalty", "bad_words"])
def test_a_sampler_blind_to_the_draft_is_noticed_under_every_rule_when_greedy(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_role, "process", blind_to_the_draft)

    wrong = mistakes(replace(OPTIONS[name], temperature=0.0), NoiseKey(1))

    assert {cell.rule for cell in wrong} == set(AcceptanceRule)


def test_logprobs_of_another_token_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_role, "draft_logprobs", of_the_emitted_tokens)

    wrong = mistakes(OPTIONS["logprobs 5"], NoiseKey(1))

    assert {cell.rule for cell in wrong} == {AcceptanceRule.RATIO, AcceptanceRule.BLOCK}


# The law of sampled outputs under the rules that draw anew.

LAWS: dict[str, SamplingParams] = {
    "truncated": sampled(1.2, top_k=6, top_p=0.9, min_p=0.03, typical_p=0.85),
    "penalised": sampled(1.0, repetition_penalty=1.5, frequency_penalty=0.8, top_k=5),
    "masked": sampled(1.0, bad_words=((2, 9), (9, 2), (10,)), min_tokens=3, top_k=6),
}


def joint_law(params: SamplingParams) -> dict[tuple[int, ...], float]:
    """The law of the first three output tokens, by enumeration."""
    outputs: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(3):
        outputs = {
            (*output, token): prob * chance
            for output, prob in outputs.items()
            for token, chance in enumerate(law((*PROMPT, *output), params))
            if chance
        }
    return outputs


def p_value(params: SamplingParams, rule: AcceptanceRule, count: int = 1500) -> float:
    """Chi-square of the first three output tokens over ``count`` seeds; bins that expect fewer than five are merged."""
    params = replace(params, max_tokens=4, ignore_eos=True)
    wishes = [
        Wish(str(seed), PROMPT, GenerationParams(params, SpeculationParams(2, rule), seed))
        for seed in range(count)
    ]
    batches = [wishes[start : start + 500] for start in range(0, count, 500)]
    drafter = drafters(())["good"]
    seen = Counter(
        state.output[:3] for batch in batches for state in generate(TARGET, drafter, batch).values()
    )
    wanted = joint_law(params)
    bins = [output for output, prob in wanted.items() if prob * count >= 5]
    observed, expected = [seen[each] for each in bins], [wanted[each] * count for each in bins]
    if (rest := count - sum(expected)) >= 1:
        observed, expected = [*observed, count - sum(observed)], [*expected, rest]
    assert sum(observed) == count
    return float(chisquare(observed, expected).pvalue)


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("rule", [AcceptanceRule.RATIO, AcceptanceRule.BLOCK])
def test_the_joint_law_under_the_options_is_the_targets(name: str, rule: AcceptanceRule) -> None:
    assert p_value(LAWS[name], rule) > FALSE_ALARM


def test_the_law_test_notices_a_sampler_blind_to_the_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_role, "process", blind_to_the_draft)

    assert p_value(LAWS["penalised"], AcceptanceRule.RATIO) < FALSE_ALARM
