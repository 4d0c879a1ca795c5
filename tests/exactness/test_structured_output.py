"""Structured output under speculation: every text is of its language, and it is what masking each step of plain decoding gives.

The languages are finite, so the reference tries every token at every step: it shares nothing with the grammar library.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import pytest

from specdec_core.drafters.lm import LmDrafter
from specdec_core.drafters.ngram import NgramDrafter
from specdec_core.models.grammar import load_grammars
from specdec_core.params import GenerationParams, SamplingParams, SpeculationParams
from specdec_core.sampling.structure import Structure
from specdec_core.types import AcceptanceRule, FinishReason, NoiseKey
from tests.support.drafters import ConstantDrafter, RandomDrafter, ScriptedDrafter
from tests.support.generation import Wish, generate
from tests.support.structures import EOS, STRUCTURES, plain_structured, tiny_bpe
from tests.support.table_model import TableModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdec_core.drafters.base import Drafter
    from specdec_core.session.state import SessionState

TOKENIZER = tiny_bpe()
GRAMMARS = load_grammars(TOKENIZER, (EOS,))
VOCAB_SIZE = TOKENIZER.vocab_size + 5  # a logits row is padded
TARGET = TableModel(3, vocab_size=VOCAB_SIZE, eos=(EOS,))
PROMPT = (40, 41, 42)
GREEDY = SamplingParams(temperature=0.0, max_tokens=64)
SAMPLED = SamplingParams(temperature=1.2, top_p=0.95, presence_penalty=0.3, max_tokens=64)
SEEDS = (0, 1, 2)
GAMMAS = (0, 1, 2, 5, 16)
SEED_OF_GAMMA = dict(zip(GAMMAS, (0, 1, 2, 0, 1), strict=True))


@cache
def expected(name: str, params: SamplingParams, seed: int) -> tuple[int, ...]:
    resolved, structured = params.with_eos((EOS,)), STRUCTURES[name]
    return plain_structured(TARGET, TOKENIZER, PROMPT, resolved, NoiseKey(seed), structured)


def drafters(name: str, params: SamplingParams, seed: int) -> dict[str, Drafter]:
    sequence = [*PROMPT, *expected(name, params, seed)]
    good = TARGET.perturbed(4, 0.05)
    return {
        "good": LmDrafter(good, vocab_size=TOKENIZER.vocab_size, grammars=GRAMMARS),
        "random": RandomDrafter(5, VOCAB_SIZE),
        "adversarial": ScriptedDrafter(sequence, VOCAB_SIZE, shift=1),
        "always right": ScriptedDrafter(sequence, VOCAB_SIZE),
        "ngram": NgramDrafter(),
        "ends at once": ConstantDrafter(EOS),
    }


def wish(
    name: str,
    params: SamplingParams,
    seed: int = 0,
    gamma: int = 4,
    rule: AcceptanceRule = AcceptanceRule.COUPLED,
) -> Wish:
    demanding = replace(params, structured=STRUCTURES[name].demand)
    return Wish("s", PROMPT, GenerationParams(demanding, SpeculationParams(gamma, rule), seed))


def run(drafter: Drafter | None, one: Wish) -> SessionState:
    return generate(TARGET, drafter, [one], grammars=GRAMMARS)["s"]


def text_of(state: SessionState) -> str:
    assert state.output[-1] == EOS
    return TOKENIZER.decode(state.output[:-1])


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("rule", AcceptanceRule)
@pytest.mark.parametrize("name", STRUCTURES)
def test_every_text_is_of_its_language(name: str, rule: AcceptanceRule, gamma: int) -> None:
    seed = SEED_OF_GAMMA[gamma]
    for kind, drafter in drafters(name, SAMPLED, seed).items():
        state = run(drafter, wish(name, SAMPLED, seed, gamma, rule))
        assert state.finish is FinishReason.STOP, kind
        assert text_of(state) in STRUCTURES[name].language, kind


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("name", STRUCTURES)
def test_coupled_output_is_that_of_masking_every_step(name: str, gamma: int) -> None:
    seed = SEED_OF_GAMMA[gamma]
    for kind, drafter in drafters(name, SAMPLED, seed).items():
        state = run(drafter, wish(name, SAMPLED, seed, gamma))
        assert state.output == expected(name, SAMPLED, seed), kind


@pytest.mark.parametrize("rule", AcceptanceRule)
@pytest.mark.parametrize("name", STRUCTURES)
def test_greedy_output_is_that_of_masking_every_step(name: str, rule: AcceptanceRule) -> None:
    for gamma in GAMMAS:
        for kind, drafter in drafters(name, GREEDY, 0).items():
            state = run(drafter, wish(name, GREEDY, 0, gamma, rule))
            assert state.output == expected(name, GREEDY, 0), (kind, gamma)


def test_seeds_give_different_texts() -> None:
    for name in STRUCTURES:
        assert len({expected(name, SAMPLED, seed) for seed in SEEDS}) > 1


@pytest.mark.parametrize("name", STRUCTURES)
def test_without_the_demand_the_text_is_of_no_language(name: str) -> None:
    plain = Wish("s", PROMPT, GenerationParams(SAMPLED, SpeculationParams(2), 0))
    state = run(drafters(name, SAMPLED, 0)["good"], plain)
    assert TOKENIZER.decode(state.output) not in STRUCTURES[name].language


def test_a_mask_that_stands_still_along_the_draft_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    masks = Structure.masks

    def first_only(self: Structure, tokens: Sequence[int], num_rows: int) -> list[bytes | None]:
        return [masks(self, tokens, num_rows)[0]] * num_rows

    drafter = drafters("json", GREEDY, 0)["always right"]
    monkeypatch.setattr(Structure, "masks", first_only)
    state = run(drafter, wish("json", replace(GREEDY, max_tokens=3), gamma=2))
    assert state.output != expected("json", GREEDY, 0)[:3]


@pytest.mark.parametrize("gamma", GAMMAS)
def test_a_text_cut_by_max_tokens_ends_with_length_and_is_a_prefix(gamma: int) -> None:
    short = replace(SAMPLED, max_tokens=4)
    for drafter in drafters("json", SAMPLED, 1).values():
        state = run(drafter, wish("json", short, 1, gamma))
        assert state.finish is FinishReason.LENGTH
        assert state.output == expected("json", SAMPLED, 1)[:4]


@pytest.mark.parametrize("rule", AcceptanceRule)
def test_a_draft_that_runs_past_the_end_is_cut_there(rule: AcceptanceRule) -> None:
    whole = expected("choice", GREEDY, 0)
    beyond = ScriptedDrafter([*PROMPT, *whole, *range(50, 70)], VOCAB_SIZE)
    state = run(beyond, wish("choice", GREEDY, 0, 16, rule))
    assert (state.output, state.finish) == (whole, FinishReason.STOP)


def test_a_structure_that_is_over_goes_on_with_end_tokens_where_they_do_not_stop() -> None:
    params = replace(GREEDY, max_tokens=40, ignore_eos=True)
    whole = expected("regex", GREEDY, 0)
    for gamma in GAMMAS:
        for drafter in drafters("regex", GREEDY, 0).values():
            state = run(drafter, wish("regex", params, 0, gamma))
            assert state.output == (*whole, *[EOS] * (40 - len(whole)))


@pytest.mark.parametrize("rule", AcceptanceRule)
def test_a_drafter_that_masks_alike_is_always_accepted(rule: AcceptanceRule) -> None:
    drafter = LmDrafter(TARGET, vocab_size=TOKENIZER.vocab_size, grammars=GRAMMARS)
    for name in STRUCTURES:
        stats = run(drafter, wish(name, SAMPLED, 2, 3, rule)).stats
        assert stats.num_draft_tokens == stats.num_accepted_tokens > 0


def test_sessions_with_different_demands_do_not_disturb_each_other() -> None:
    wishes = [
        replace(wish(name, SAMPLED, seed, 3), session_id=f"{name} {seed}")
        for name in STRUCTURES
        for seed in SEEDS
    ]
    good = TARGET.perturbed(4, 0.05)
    drafter = LmDrafter(good, vocab_size=TOKENIZER.vocab_size, grammars=GRAMMARS)
    states = generate(TARGET, drafter, wishes, grammars=GRAMMARS)
    for name in STRUCTURES:
        for seed in SEEDS:
            assert states[f"{name} {seed}"].output == expected(name, SAMPLED, seed)
