"""Drafters that die, stay silent, refuse or lie: the client gets the same tokens, and every draft that failed is counted."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from deployments.coordinator.peer_streams import PeerStreams
from deployments.transport.data_plane import DRAFTER
from specdec_core.drafters.ngram import NgramDrafter
from specdec_core.stats import FallbackReason
from tests.support.echo_role import eventually
from tests.support.listening import (
    EXPECTED,
    BabblingRole,
    BrokenLocator,
    MuteRole,
    good_drafter,
    listener,
    model,
)
from tests.support.wire_cluster import drafter_role, target_role, wire_cluster


async def test_a_drafter_that_dies_costs_drafts_until_another_is_found() -> None:
    async with wire_cluster(target_role(model()), drafter_role(good_drafter())) as cluster:
        listening = listener(cluster)
        await listening.read(10)

        await cluster.kill_drafter(successor=drafter_role(good_drafter()))
        await listening.read(20)
        lost, drafts_before = listening.fallbacks, listening.num_drafts
        await eventually(lambda: cluster.drafter.service.num_sessions == 1)
        await listening.read()
        await eventually(cluster.is_idle)

    assert listening.tokens == EXPECTED
    assert lost.keys() <= {FallbackReason.DRAFTER_LOST, FallbackReason.DRAFTER_UNAVAILABLE}
    assert sum(lost.values()) > 0
    assert listening.num_drafts > drafts_before


async def test_without_any_drafter_every_round_is_plain_and_counted() -> None:
    async with wire_cluster(target_role(model()), drafter_role(good_drafter())) as cluster:
        cluster.drafters.address = None

        listening = listener(cluster)
        await listening.read()

    assert listening.tokens == EXPECTED
    # The first round never drafts, and the last has no room for a draft.
    assert listening.fallbacks == {FallbackReason.DRAFTER_UNAVAILABLE: len(EXPECTED) - 2}


async def test_a_drafter_that_never_answers_costs_a_deadline_a_round() -> None:
    async with wire_cluster(target_role(model()), MuteRole(), draft_deadline_s=0.01) as cluster:
        listening = listener(cluster)
        await listening.read(1)
        await eventually(lambda: cluster.drafter.service.num_sessions == 1)
        await listening.read()
        await eventually(cluster.is_idle)

    assert listening.tokens == EXPECTED
    assert listening.num_drafts == 0
    assert listening.fallbacks[FallbackReason.DEADLINE] > 40


async def test_a_draft_longer_than_asked_for_is_not_used() -> None:
    async with wire_cluster(target_role(model()), BabblingRole()) as cluster:
        listening = listener(cluster)
        await listening.read(1)
        await eventually(lambda: cluster.drafter.service.num_sessions == 1)
        await listening.read()

    assert listening.tokens == EXPECTED
    assert listening.num_drafts == 0
    assert listening.fallbacks[FallbackReason.INVALID_DRAFT] > 40


async def test_a_drafter_without_room_leaves_the_session_to_the_target() -> None:
    role = drafter_role(NgramDrafter(), max_sessions=1)
    async with wire_cluster(target_role(model()), role) as cluster:
        first, second = listener(cluster, "first"), listener(cluster, "second")
        await first.read(10)
        await second.read()
        await first.read()
        await eventually(cluster.is_idle)

    assert first.tokens == second.tokens == EXPECTED
    assert second.fallbacks[FallbackReason.DRAFTER_UNAVAILABLE] > 0


async def test_a_bug_in_finding_a_drafter_costs_its_drafts_only() -> None:
    async with wire_cluster(target_role(model()), drafter_role(good_drafter())) as cluster:
        cluster.peers = replace(cluster.peers, drafters=BrokenLocator())

        listening = listener(cluster)
        await listening.read()

    assert listening.tokens == EXPECTED


async def test_all_that_ask_for_a_dead_address_share_one_attempt() -> None:
    async with wire_cluster(target_role(model()), drafter_role(good_drafter())) as cluster:
        await cluster.drafter.close()
        streams, address = PeerStreams(DRAFTER), cluster.drafter.address
        began = time.monotonic()

        failures = await asyncio.gather(
            *(streams.to(address) for _ in range(8)), return_exceptions=True
        )

    assert {str(each) for each in failures} == {f"drafter at {address}: no connection within 5 s"}
    assert time.monotonic() - began < 10
