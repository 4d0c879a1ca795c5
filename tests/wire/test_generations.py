"""A coordinator's generations over real streams: samples, log-probabilities and prompts are those of the in-process engine."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from deployments.assembly import TargetText
from deployments.config import parse_config
from deployments.coordinator.generations import Generations, Identifiers
from deployments.coordinator.merged import merged
from deployments.coordinator.shadow import ShadowCheck, ShadowCounters, ShadowSettings
from deployments.transport.api_records import GenerationCall, Produced, Prompted, TokenPrompt
from deployments.transport.reply_queue import ReplyQueue
from specdec_core.drafters.lm import LmDrafter
from specdec_core.errors import OverloadedError
from specdec_core.messages import Verified
from specdec_core.models.tokenizer import load_tokenizer
from specdec_core.params import GenerationParams, SamplingParams, SpeculationParams
from specdec_core.structured import NO_GRAMMARS
from specdec_core.types import AcceptanceRule, Evidence, NoiseKey, TargetDraws, TokenLogprobs
from tests.support.echo_role import eventually
from tests.support.option_matrix import TARGET, run_plain
from tests.support.table_model import TableModel
from tests.support.tiny_models import save_tiny_tokenizer
from tests.support.wire_cluster import drafter_role, target_role, wire_cluster

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from deployments.transport.api_records import GenerationEvent
    from tests.support.wire_cluster import WireCluster

PROMPT = (6, 7, 8, 9, 1)


class Count:
    def inc(self) -> None:
        raise AssertionError("nothing is checked here")


class Rig:
    """A coordinator's generations on a wire cluster; ids are those of a vocabulary of twelve."""

    def __init__(self, cluster: WireCluster, folder: Path, *, max_sessions: int = 16) -> None:
        save_tiny_tokenizer(folder)
        config = parse_config(
            {
                "target": {"model": str(folder)},
                "drafter": {"kind": "ngram"},
                "coordinator": {"max_sessions": max_sessions},
            }
        )
        self.tokenizer = load_tokenizer(folder)
        settings = ShadowSettings(0.0, 1, lambda: "shadow", lambda bits: 2**bits - 1, float)
        self.generations = Generations(
            config,
            TargetText(self.tokenizer, NO_GRAMMARS),
            targets=cluster.targets,
            peers=cluster.peers,
            identifiers=Identifiers(lambda: "session", lambda bits: 2**bits - 1),
            shadow=ShadowCheck(cluster.peers, settings, ShadowCounters(Count(), Count(), Count())),
        )

    async def generate(
        self, params: SamplingParams, *, n: int, echo: bool = False
    ) -> list[GenerationEvent]:
        speculation = SpeculationParams(3, AcceptanceRule.COUPLED)
        wanted = GenerationParams(params, speculation, 5, n, echo)
        call = GenerationCall(TokenPrompt(PROMPT), wanted)
        async with aclosing(self.generations.generate(call)) as events:
            return [event async for event in events]


def produced(events: list[GenerationEvent], index: int) -> list[Produced]:
    return [each for each in events if isinstance(each, Produced) and each.sample_index == index]


async def test_samples_over_the_wire_are_told_what_the_engine_tells(tmp_path: Path) -> None:
    model = TARGET
    params = SamplingParams(max_tokens=12, ignore_eos=True, logprobs=2, prompt_logprobs=1)
    drafter = LmDrafter(model.perturbed(2, 0.1), vocab_size=12)
    async with wire_cluster(target_role(model), drafter_role(drafter)) as cluster:
        events = await Rig(cluster, tmp_path).generate(params, n=4, echo=True)
        await eventually(cluster.is_idle)

    (prompted,) = [event for event in events if isinstance(event, Prompted)]
    assert prompted.token_ids == PROMPT
    for index in range(4):
        pieces = produced(events, index)
        alone = run_plain(params, NoiseKey(5, index), PROMPT)
        tokens = [token for each in pieces for token in each.tokens]
        assert tuple(token.token for token in tokens) == alone.ids
        assert [token.logprobs for token in tokens] == [each.logprobs for each in alone.tokens]
        assert (prompted.logprobs,) == tuple(alone.prompt)


async def test_leaving_early_frees_every_sample(tmp_path: Path) -> None:
    model = TableModel(1)
    async with wire_cluster(
        target_role(model), drafter_role(LmDrafter(model, vocab_size=12))
    ) as cluster:
        rig = Rig(cluster, tmp_path)
        call = GenerationCall(TokenPrompt(PROMPT), GenerationParams(n=8))
        async with aclosing(rig.generations.generate(call)) as events:
            async for event in events:
                if isinstance(event, Produced):
                    break
        assert rig.generations.num_sessions == 0
        await eventually(cluster.is_idle)
    assert model.live == set()


async def test_a_call_of_more_samples_than_there_is_room_for_is_refused(tmp_path: Path) -> None:
    model = TableModel(1)
    async with wire_cluster(
        target_role(model), drafter_role(LmDrafter(model, vocab_size=12))
    ) as cluster:
        rig = Rig(cluster, tmp_path, max_sessions=3)
        with pytest.raises(OverloadedError):
            await rig.generate(SamplingParams(max_tokens=4), n=4)
        events = await rig.generate(SamplingParams(max_tokens=4), n=3)

    assert [len(produced(events, index)) > 0 for index in range(4)] == [True, True, True, False]


class Stream:
    """Yields these, then perhaps fails; knows whether it was closed."""

    def __init__(self, *items: int, error: Exception | None = None) -> None:
        self._items, self._error = items, error
        self.is_closed = False

    async def run(self) -> AsyncGenerator[int, None]:
        try:
            for item in self._items:
                await asyncio.sleep(0)
                yield item
            if self._error:
                raise self._error
            await asyncio.sleep(0)
        finally:
            self.is_closed = True


async def test_merged_streams_give_every_item_in_the_order_of_its_stream() -> None:
    streams = [Stream(1, 2, 3), Stream(), Stream(10, 20)]

    items = [item async for item in merged([each.run() for each in streams])]

    assert sorted(items) == [1, 2, 3, 10, 20]
    assert [item for item in items if item < 10] == [1, 2, 3]
    assert [item for item in items if item >= 10] == [10, 20]


async def test_a_merged_stream_that_fails_ends_the_others() -> None:
    failing, endless = Stream(1, error=OverloadedError("full")), Stream(*range(10**6))

    async with aclosing(merged([failing.run(), endless.run()])) as items:
        with pytest.raises(OverloadedError, match="full"):
            [item async for item in items]

    assert (failing.is_closed, endless.is_closed) == (True, True)


async def test_closing_merged_streams_closes_each() -> None:
    streams = [Stream(*range(100)), Stream(*range(100))]
    async with aclosing(merged([each.run() for each in streams])) as items:
        await anext(items)

    assert [each.is_closed for each in streams] == [True, True]


async def test_answers_that_tell_of_a_whole_prompt_do_not_share_a_frame() -> None:
    told = (TokenLogprobs(-1.0, ()),)
    large = [
        Verified(str(number), Evidence(1, 1, TargetDraws((4,)), prompt_logprobs=told))
        for number in range(2)
    ]
    small = Verified("small", Evidence(1, 1, TargetDraws((4,))))
    queue = ReplyQueue()
    queue.put([small, large[0], small, large[1], small])

    frames = [await queue.next_batch(), await queue.next_batch()]

    assert frames == [[small, large[0], small], [large[1], small]]
