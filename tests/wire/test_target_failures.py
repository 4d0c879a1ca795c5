"""Targets that die, stay silent or refuse, and clients that go away: the same tokens or one clear error, and nothing left behind."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from specdec_core.errors import ErrorCode, PeerUnavailableError
from specdec_core.types import FinishReason
from tests.support.echo_role import eventually
from tests.support.listening import (
    EXPECTED,
    BrokenLocator,
    MuteRole,
    good_drafter,
    listener,
    model,
)
from tests.support.wire_cluster import drafter_role, serve_target, target_role, wire_cluster

if TYPE_CHECKING:
    import pytest


async def test_a_cancelled_generation_frees_both_peers_and_its_leases() -> None:
    served = model()
    async with wire_cluster(target_role(served), drafter_role(good_drafter())) as cluster:
        listening = listener(cluster)
        await listening.read(10)
        held = (cluster.target.service.num_sessions, cluster.targets.num_held)

        await listening.events.aclose()
        await eventually(cluster.is_idle)
        await eventually(lambda: not served.live)

    assert held == (1, 1)
    assert listening.tokens == EXPECTED[: len(listening.tokens)]


async def test_a_generation_cancelled_while_it_waits_for_a_lease_holds_none() -> None:
    async with wire_cluster(target_role(model()), drafter_role(good_drafter())) as cluster:
        gate = cluster.targets.gates["s"] = asyncio.Event()
        reading = asyncio.create_task(listener(cluster).read())
        await eventually(lambda: cluster.targets.num_asked == 1)

        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        gate.set()
        await eventually(cluster.is_idle)


async def test_a_storm_of_cancels_leaves_nothing_behind() -> None:
    served = model()
    async with wire_cluster(target_role(served), drafter_role(good_drafter())) as cluster:
        listeners = [listener(cluster, f"{number}") for number in range(24)]
        reads = [
            asyncio.create_task(each.read(number)) for number, each in enumerate(listeners, start=1)
        ]
        await asyncio.gather(*reads)
        for each in listeners:
            await each.events.aclose()
        await eventually(cluster.is_idle)
        await eventually(lambda: not served.live)

    assert all(each.tokens == EXPECTED[: len(each.tokens)] for each in listeners)


async def test_a_target_that_dies_is_replaced_and_the_text_goes_on() -> None:
    async with wire_cluster(target_role(model()), drafter_role(good_drafter())) as cluster:
        listening = listener(cluster)
        await listening.read(20)

        await cluster.kill_target(successor=target_role(model()))
        await listening.read()
        await eventually(cluster.is_idle)

    assert listening.tokens == EXPECTED
    assert cluster.targets.num_asked == 2
    assert listening.num_drafts > 0


async def test_many_sessions_survive_the_death_of_their_target() -> None:
    async with wire_cluster(target_role(model()), drafter_role(good_drafter())) as cluster:
        listeners = [listener(cluster, f"{number}") for number in range(16)]
        await asyncio.gather(*(each.read(5 + number) for number, each in enumerate(listeners)))

        await cluster.kill_target(successor=target_role(model()))
        await asyncio.gather(*(each.read() for each in listeners))
        await eventually(cluster.is_idle)

    assert [each.tokens for each in listeners] == [EXPECTED] * 16


async def test_a_silent_target_is_replaced() -> None:
    async with wire_cluster(
        MuteRole(), drafter_role(good_drafter()), answer_timeout_s=0.1
    ) as cluster:
        working = await serve_target(target_role(model()))
        cluster.cleanup.push_async_callback(working.close)
        reading = asyncio.create_task((listening := listener(cluster)).read())
        await eventually(lambda: cluster.target.service.num_sessions == 1)
        cluster.targets.address = working.address
        await reading
        await eventually(cluster.is_idle)

    assert listening.tokens == EXPECTED


async def test_a_target_that_does_not_come_back_ends_the_generation_after_four_openings() -> None:
    async with wire_cluster(target_role(model()), drafter_role(good_drafter())) as cluster:
        listening = listener(cluster)
        await listening.read(20)
        cluster.targets.address = None

        await cluster.target.close()
        await listening.read()
        await eventually(lambda: cluster.drafter.service.num_sessions == 0)

    assert listening.finish is not None
    assert listening.finish.reason is FinishReason.ERROR
    assert isinstance(listening.finish.error, PeerUnavailableError)
    assert cluster.targets.num_asked == 4
    assert listening.tokens == EXPECTED[: len(listening.tokens)]


async def test_a_target_without_room_refuses_the_newcomer_alone() -> None:
    role = target_role(model(), max_sessions=1)
    async with wire_cluster(role, drafter_role(good_drafter())) as cluster:
        first, second = listener(cluster, "first"), listener(cluster, "second")
        await first.read(10)
        await second.read()
        await first.read()
        await eventually(cluster.is_idle)

    assert second.finish is not None
    assert second.finish.error is not None
    assert second.finish.error.code is ErrorCode.OVERLOADED
    assert first.tokens == EXPECTED


async def test_a_bug_in_finding_a_target_ends_the_generation(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with wire_cluster(target_role(model()), drafter_role(good_drafter())) as cluster:
        cluster.peers = replace(cluster.peers, targets=BrokenLocator())

        listening = listener(cluster)
        await listening.read()

    assert listening.finish is not None
    assert str(listening.finish.error) == "finding a target failed"
    assert "RuntimeError: a bug, met by s" in caplog.text
