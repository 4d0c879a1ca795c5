"""The shadow check over real streams: a sound target stands by what was delivered, another answer is counted, clients notice nothing.

Over 300 lines: the cases share the cluster that they run on.
"""

from __future__ import annotations

import logging
import re
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from deployments.assembly import TargetText
from deployments.config import parse_config
from deployments.coordinator.generations import Generations, Identifiers
from deployments.coordinator.shadow import ShadowCheck, ShadowCounters, ShadowSettings
from deployments.transport.api_records import Finished, GenerationCall, Produced, TokenPrompt
from specdec_core.drafters.lm import LmDrafter
from specdec_core.models.tokenizer import load_tokenizer
from specdec_core.params import GenerationParams, SamplingParams, SpeculationParams
from specdec_core.structured import NO_GRAMMARS
from specdec_core.types import AcceptanceRule, FinishReason
from tests.support.generation import Wish
from tests.support.table_model import TableModel
from tests.support.tiny_models import save_tiny_tokenizer
from tests.support.wire_cluster import (
    CountingLocator,
    drafter_role,
    serve_target,
    spec_of,
    target_role,
    wire_cluster,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from deployments.coordinator.session_driver import Peers
    from deployments.locator import Lease, PeerLocator
    from specdec_core.session.state import SessionState
    from tests.support.wire_cluster import WireCluster

VOCAB_SIZE = 12
PROMPT = (3, 1, 4, 1, 5)
LENGTH = 70  # two whole blocks of re-scored tokens and a part of one
GREEDY = SamplingParams(temperature=0.0, max_tokens=LENGTH)
SAMPLED = SamplingParams(
    temperature=0.9,
    top_p=0.9,
    top_k=5,
    typical_p=0.95,
    repetition_penalty=1.3,
    frequency_penalty=0.2,
    max_tokens=LENGTH,
)
CHANCE = 1 / 8


@dataclass
class Tally:
    count: int = 0

    def inc(self) -> None:
        self.count += 1


@dataclass
class Bench:
    """A shadow check with its counts, its clock and its dice."""

    peers: Peers
    fraction: float = 1.0
    max_sessions: int = 64
    now_s: float = 0.0
    chance: float = CHANCE
    checked: Tally = field(default_factory=Tally)
    mismatch: Tally = field(default_factory=Tally)
    skipped: Tally = field(default_factory=Tally)
    num_ids: int = 0

    def __post_init__(self) -> None:
        settings = ShadowSettings(
            self.fraction,
            self.max_sessions,
            new_session_id=self._new_id,
            random_bits=lambda bits: int(self.chance * 2**bits),
            clock=lambda: self.now_s,
        )
        counters = ShadowCounters(self.checked, self.mismatch, self.skipped)
        self.shadow = ShadowCheck(self.peers, settings, counters)

    async def check(self, *states: SessionState) -> tuple[int, int, int]:
        """(checked, mismatch, skipped) once these are through."""
        for state in states:
            self.shadow.consider(state, num_sessions=1)
            await self.shadow.join()
        return self.counts

    @property
    def counts(self) -> tuple[int, int, int]:
        return self.checked.count, self.mismatch.count, self.skipped.count

    def _new_id(self) -> str:
        self.num_ids += 1
        return str(self.num_ids)


@dataclass
class SplitLocator:
    """Leads shadow sessions to a replica of their own."""

    clients: PeerLocator
    shadows: PeerLocator

    async def acquire(self, session_id: str) -> Lease:
        chosen = self.shadows if session_id.startswith("shadow-") else self.clients
        return await chosen.acquire(session_id)


def target_model() -> TableModel:
    return TableModel(1, vocab_size=VOCAB_SIZE)


@asynccontextmanager
async def cluster() -> AsyncIterator[WireCluster]:
    drafter = LmDrafter(target_model().perturbed(2, 0.3), vocab_size=VOCAB_SIZE)
    async with wire_cluster(target_role(target_model()), drafter_role(drafter)) as running:
        yield running


@asynccontextmanager
async def elsewhere(model: TableModel, running: WireCluster) -> AsyncIterator[Peers]:
    """Peers whose shadow sessions land on a replica that serves another model."""
    server = await serve_target(target_role(model))
    shadows = CountingLocator(server.address)
    try:
        yield replace(running.peers, targets=SplitLocator(running.targets, shadows))
    finally:
        await server.close()


async def finished(
    running: WireCluster,
    params: SamplingParams = GREEDY,
    rule: AcceptanceRule = AcceptanceRule.COUPLED,
) -> SessionState:
    speculation = SpeculationParams(4, rule)
    wish = Wish("client", PROMPT, GenerationParams(params, speculation, seed=11))
    return (await running.run(spec_of(wish, target_model()))).state


def altered(state: SessionState, position: int) -> SessionState:
    """As if another token had been delivered at this position of the output."""
    tokens, place = list(state.tokens), len(PROMPT) + position
    tokens[place] = (tokens[place] + 1) % VOCAB_SIZE
    return replace(state, tokens=tuple(tokens))


@pytest.mark.parametrize("rule", list(AcceptanceRule))
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
async def test_a_target_stands_by_what_it_delivered(
    params: SamplingParams, rule: AcceptanceRule
) -> None:
    async with cluster() as running:
        state = await finished(running, params, rule)
        bench = Bench(running.peers)

        counts = await bench.check(state)

        assert counts == (1, 0, 0)
        assert len(state.output) == LENGTH
        assert running.targets.num_held == 0


@pytest.mark.parametrize("position", [0, 31, 32, 69])
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
async def test_one_wrong_token_is_found_where_it_is(
    params: SamplingParams, position: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster() as running:
        state = await finished(running, params)
        bench = Bench(running.peers)

        with caplog.at_level(logging.WARNING):
            counts = await bench.check(altered(state, position))

    assert counts == (1, 1, 0)
    delivered = (state.output[position] + 1) % VOCAB_SIZE
    assert (
        f"output position {position} of session client: delivered {delivered}, "
        f"the target draws {state.output[position]} by a margin of "
    ) in caplog.text


async def test_the_margin_of_a_greedy_mismatch_is_the_gap_of_the_logits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with cluster() as running:
        state = await finished(running)
        await Bench(running.peers).check(altered(state, 40))

    logits = target_model().logits(state.tokens[: len(PROMPT) + 40])
    token = state.output[40]
    gap = logits[token] - logits[(token + 1) % VOCAB_SIZE]
    found = re.search(r"margin of (\S+)", caplog.text)
    assert found is not None
    assert float(found[1]) == pytest.approx(gap, rel=0.01)


async def test_a_replica_with_other_weights_is_counted_and_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    other = TableModel(9, vocab_size=VOCAB_SIZE)
    async with cluster() as running, elsewhere(other, running) as peers:
        state = await finished(running)
        bench = Bench(peers)

        counts = await bench.check(state, state)
        num_logged = len(caplog.records)
        bench.now_s = 60.0
        await bench.check(state)

    assert counts == (2, 2, 0)
    assert num_logged == 1
    assert len(caplog.records) == 2


@pytest.mark.parametrize("rule", [AcceptanceRule.RATIO, AcceptanceRule.BLOCK])
async def test_a_token_without_probability_is_counted_under_the_rules_that_draw_with_the_drafter(
    rule: AcceptanceRule, caplog: pytest.LogCaptureFixture
) -> None:
    other = TableModel(9, vocab_size=VOCAB_SIZE)
    narrow = replace(SAMPLED, top_k=2)
    async with cluster() as running, elsewhere(other, running) as peers:
        state = await finished(running, narrow, rule)

        counts = await Bench(peers).check(state)

    assert counts == (1, 1, 0)
    assert "which the target gives no probability" in caplog.text


async def test_a_lost_target_is_no_mismatch() -> None:
    async with cluster() as running:
        state = await finished(running)
        running.targets.address = None

        counts = await Bench(running.peers).check(state)

    assert counts == (0, 0, 1)


async def test_a_target_without_room_is_no_mismatch() -> None:
    async with cluster() as running:
        state = await finished(running)
        full = target_role(target_model(), max_sessions=0)
        await running.kill_target(successor=full)

        counts = await Bench(running.peers).check(state)

        assert counts == (0, 0, 1)
        assert running.targets.num_held == 0


async def test_checks_give_way_when_clients_take_more_than_half_of_a_target() -> None:
    async with cluster() as running:
        state = await finished(running)
        bench = Bench(running.peers, max_sessions=10)

        bench.shadow.consider(state, num_sessions=6)
        await bench.shadow.join()

    assert bench.counts == (0, 0, 1)


@pytest.mark.parametrize(
    ("fraction", "checked"), [(0.0, 0), (CHANCE, 0), (CHANCE + 1e-9, 1), (1.0, 1)]
)
async def test_chance_below_the_fraction_chooses(fraction: float, checked: int) -> None:
    async with cluster() as running:
        state = await finished(running)

        counts = await Bench(running.peers, fraction=fraction).check(state)

    assert counts == (checked, 0, 0)


@pytest.mark.parametrize("reason", [None, FinishReason.CANCELLED, FinishReason.ERROR])
async def test_only_whole_generations_are_checked(reason: FinishReason | None) -> None:
    async with cluster() as running:
        state = replace(await finished(running), finish=reason)

        counts = await Bench(running.peers).check(state)

    assert counts == (0, 0, 0)


async def test_what_waits_is_bounded() -> None:
    async with cluster() as running:
        state = await finished(running)
        bench = Bench(running.peers)

        for _ in range(10):
            bench.shadow.consider(state, num_sessions=1)
        await bench.shadow.join()

    assert bench.counts == (4, 0, 6)


@pytest.mark.parametrize("fraction", [0.0, 1.0])
async def test_a_client_is_told_the_same_whatever_the_check_finds(
    fraction: float, tmp_path: Path
) -> None:
    save_tiny_tokenizer(tmp_path)
    other = TableModel(9, vocab_size=VOCAB_SIZE)
    async with cluster() as running, elsewhere(other, running) as peers:
        expected = (await finished(running)).output
        bench = Bench(peers, fraction=fraction)
        generations = Generations(
            parse_config({"drafter": {"kind": "ngram"}}),
            TargetText(load_tokenizer(tmp_path), NO_GRAMMARS),
            targets=running.targets,
            peers=peers,
            identifiers=Identifiers(lambda: "client", lambda _: 0),
            shadow=bench.shadow,
        )
        call = GenerationCall(
            TokenPrompt(PROMPT), GenerationParams(GREEDY, SpeculationParams(4), seed=11)
        )

        events = [event async for event in generations.generate(call)]
        counts_at_the_end = bench.counts
        await bench.shadow.join()

    tokens = [
        token.token for event in events if isinstance(event, Produced) for token in event.tokens
    ]
    assert tuple(tokens) == expected
    assert isinstance(events[-1], Finished)
    assert counts_at_the_end == (0, 0, 0)
    assert bench.counts == (int(fraction), int(fraction), 0)
