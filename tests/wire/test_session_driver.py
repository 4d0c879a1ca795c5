"""Generations over real streams: token for token those of the in-process engine, alone and together."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import pytest

from specdec_core import reference
from specdec_core.drafters.lm import LmDrafter
from specdec_core.drafters.ngram import NgramDrafter
from specdec_core.params import GenerationParams, SamplingParams, SpeculationParams
from specdec_core.types import AcceptanceRule, FinishReason, NoiseKey
from tests.support.drafters import RandomDrafter, ScriptedDrafter, SilentDrafter
from tests.support.echo_role import eventually
from tests.support.generation import Wish, generate, letters
from tests.support.table_model import TableModel
from tests.support.wire_cluster import drafter_role, spec_of, target_role, wire_cluster

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdec_core.drafters.base import Drafter

VOCAB_SIZE = 12
PROMPT = (3, 1, 4, 1, 5)
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.9, top_p=0.95, max_tokens=24, ignore_eos=True)
SHAPED = SamplingParams(
    temperature=0.8,
    top_k=9,
    min_p=0.01,
    repetition_penalty=1.2,
    presence_penalty=0.4,
    logit_bias=((2, 1.5), (7, -3.0)),
    bad_words=((4, 5), (6,)),
    min_tokens=12,
    max_tokens=24,
    stop=("hah", "jj"),
)
CHOSEN = SamplingParams(temperature=1.0, allowed_token_ids=(0, 2, 4, 8, 11), max_tokens=24)


def target_model() -> TableModel:
    return TableModel(1, vocab_size=VOCAB_SIZE, eos=(11,))


def wrong_drafter() -> ScriptedDrafter:
    """Knows the greedy output and proposes something else."""
    output = reference.plain(target_model().logits, PROMPT, GREEDY, NoiseKey(0), 256)
    return ScriptedDrafter([*PROMPT, *output], VOCAB_SIZE, shift=1)


DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "equal": lambda: LmDrafter(target_model(), vocab_size=VOCAB_SIZE),
    "good": lambda: LmDrafter(target_model().perturbed(2, 0.1), vocab_size=VOCAB_SIZE),
    "poor": lambda: LmDrafter(target_model().perturbed(3, 1.0), vocab_size=VOCAB_SIZE),
    "ngram": NgramDrafter,
    "random": lambda: RandomDrafter(4, VOCAB_SIZE),
    "always wrong": wrong_drafter,
    "silent": SilentDrafter,
}


@pytest.mark.parametrize("rule", AcceptanceRule)
@pytest.mark.parametrize("name", DRAFTERS)
async def test_tokens_text_and_counts_are_the_engines(name: str, rule: AcceptanceRule) -> None:
    wishes = [
        Wish(f"{number}", PROMPT, GenerationParams(params, SpeculationParams(gamma, rule), 7))
        for number, (params, gamma) in enumerate(product((GREEDY, SAMPLED, SHAPED, CHOSEN), (1, 5)))
    ]
    model = target_model()
    expected = generate(model, DRAFTERS[name](), wishes)

    async with wire_cluster(target_role(model), drafter_role(DRAFTERS[name]())) as cluster:
        outcomes = await cluster.run_all([spec_of(wish, model) for wish in wishes])
        await eventually(cluster.is_idle)
        await eventually(lambda: not model.live)

    for session_id, outcome in outcomes.items():
        engine = expected[session_id]
        assert outcome.tokens == engine.output
        assert outcome.state.finish is engine.finish
        assert outcome.state.stats == engine.stats
    assert outcomes["0"].text == letters(outcomes["0"].tokens)


async def test_sixteen_sessions_at_once_are_what_each_is_alone() -> None:
    options = product((GREEDY, SAMPLED, SHAPED, CHOSEN), AcceptanceRule, (0, 4))
    wishes = [
        Wish(
            f"{number}",
            PROMPT[: 1 + number % 5],
            GenerationParams(params, SpeculationParams(gamma, rule), seed=number),
        )
        for number, (params, rule, gamma) in enumerate(options)
    ]
    model = target_model()
    specs = [spec_of(wish, model) for wish in wishes]

    async with wire_cluster(target_role(model), drafter_role(DRAFTERS["good"]())) as cluster:
        together = await cluster.run_all(specs)
        assert max(model.batch_sizes) > 1
        alone = {spec.session_id: await cluster.run(spec) for spec in specs}
        await eventually(cluster.is_idle)

    assert len(together) == len(specs) >= 16
    for session_id, outcome in together.items():
        assert (outcome.tokens, outcome.text) == (alone[session_id].tokens, alone[session_id].text)
        assert outcome.state.stats == alone[session_id].state.stats


async def test_a_long_prompt_is_read_in_chunks_beside_others() -> None:
    model = TableModel(1, vocab_size=VOCAB_SIZE, max_context=2048)
    long = Wish("long", tuple(index * 7 % 12 for index in range(1500)), GenerationParams(SAMPLED))
    short = Wish("short", PROMPT, GenerationParams(SAMPLED))
    expected = generate(model, None, [long, short])

    async with wire_cluster(target_role(model), drafter_role(NgramDrafter())) as cluster:
        outcomes = await cluster.run_all([spec_of(long, model), spec_of(short, model)])

    assert outcomes["long"].tokens == expected["long"].output
    assert outcomes["short"].tokens == expected["short"].output


async def test_a_generation_ends_exactly_at_the_end_of_the_context() -> None:
    model = TableModel(1, vocab_size=VOCAB_SIZE, max_context=16)
    wish = Wish("s", PROMPT, GenerationParams(GREEDY, SpeculationParams(8)))
    drafter = LmDrafter(TableModel(1, vocab_size=VOCAB_SIZE), vocab_size=VOCAB_SIZE)

    async with wire_cluster(target_role(model), drafter_role(drafter)) as cluster:
        outcome = await cluster.run(spec_of(wish, model))

    assert len(outcome.state.tokens) == 16
    assert outcome.finish.reason is FinishReason.LENGTH
