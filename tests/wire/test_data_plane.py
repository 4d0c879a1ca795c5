from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from grpc import aio

from deployments.transport import codec_target
from deployments.transport.client import PeerStream
from deployments.transport.data_plane import DRAFTER, TARGET
from deployments.transport.server import start_server
from specdec_core.errors import (
    ErrorCode,
)
from specdec_core.messages import Close, Propose, Proposed, Verified
from specdec_core.types import DraftBlock, OneHot
from specdec_proto.v1 import target_pb2
from tests.support.echo_role import (
    EchoRole,
    Inbox,
    eventually,
    evidence,
    extend,
    frame_of,
    opening,
    until,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from deployments.transport.client import TargetStream
    from deployments.transport.server import TargetServer
    from specdec_core.messages import RoleReply


async def test_two_coordinators_with_many_sessions_each_get_their_own_answers(
    role: EchoRole, server: TargetServer
) -> None:
    streams = [await PeerStream.connect(TARGET, server.address) for _ in range(2)]
    names = [[f"coordinator-{c}/session-{s}" for s in range(40)] for c in range(2)]
    inboxes = {
        name: Inbox(stream, name)
        for stream, group in zip(streams, names, strict=True)
        for name in group
    }

    for stream, group in zip(streams, names, strict=True):
        for number, name in enumerate(group):
            stream.send(opening(name))
            stream.send(extend(name, number, 100 + number))
    replies = {name: await inbox.next() for name, inbox in inboxes.items()}

    assert replies == {
        name: Verified(name, evidence(2, 1000 + number, 1100 + number))
        for group in names
        for number, name in enumerate(group)
    }
    assert role.threads == {"target-step"}
    assert server.service.num_sessions == 80
    for stream in streams:
        await stream.close()


async def test_order_within_a_session_is_kept(stream: TargetStream) -> None:
    inbox = Inbox(stream, "a")
    stream.send(opening("a"))

    for base_len in range(200):
        stream.send(extend("a", base_len, base_len=base_len))

    replies = [await inbox.next() for _ in range(200)]
    assert replies == [Verified("a", evidence(n + 1, 1000 + n)) for n in range(200)]


async def test_all_that_waits_during_a_step_joins_the_next(
    role: EchoRole, server: TargetServer, stream: TargetStream
) -> None:
    inboxes = [Inbox(stream, f"s{n}") for n in range(33)]
    role.gate.clear()
    stream.send(opening("s0"))
    stream.send(extend("s0", 1))
    await until(role.stepping)

    for n in range(1, 33):
        stream.send(opening(f"s{n}"))
        stream.send(extend(f"s{n}", 1))
    await eventually(lambda: server.service.num_sessions == 33)
    role.gate.set()
    for inbox in inboxes:
        await inbox.next()

    assert role.batch_sizes == [1, 32]


async def test_replies_of_one_step_share_one_frame(role: EchoRole, channel: aio.Channel) -> None:
    call = TARGET.call(channel)
    request = target_pb2.ExtendRequest()
    for n in range(50):
        request.MergeFrom(codec_target.encode_request(opening(f"s{n}")))
        request.MergeFrom(codec_target.encode_request(extend(f"s{n}", n)))

    await call.write(request)
    response = await frame_of(call)

    assert [result.session_id for result in response.results] == [f"s{n}" for n in range(50)]
    assert role.batch_sizes == [50]
    call.cancel()


async def test_messages_sent_in_one_turn_leave_in_one_frame() -> None:
    frames: list[int] = []

    async def count(
        requests: AsyncIterator[target_pb2.ExtendRequest],
        context: aio.ServicerContext[target_pb2.ExtendRequest, target_pb2.ExtendResponse],
    ) -> None:
        async for request in requests:
            frames.append(len(request.items))
            result = target_pb2.TargetResult(session_id="s0", epoch=1, base_len=1)
            result.verified.target_draws.tokens.append(1)
            await context.write(target_pb2.ExtendResponse(results=[result]))

    server = aio.server()
    TARGET.add_to_server(count, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    stream = await PeerStream.connect(TARGET, f"127.0.0.1:{port}")
    inbox = Inbox(stream, "s0")

    for n in range(1500):
        stream.send(opening(f"s{n}"))
    for _ in range(2):
        await inbox.next()

    assert frames == [1024, 476]
    await stream.close()
    await server.stop(None)


@pytest.mark.parametrize("end", ["close", "cancel", "half_close"])
async def test_a_stream_that_ends_frees_its_sessions_only(
    end: str, role: EchoRole, server: TargetServer, stream: TargetStream, channel: aio.Channel
) -> None:
    inbox = Inbox(stream, "stays")
    stream.send(opening("stays"))
    stream.send(extend("stays", 1))
    await inbox.next()
    call = TARGET.call(channel)
    await call.write(codec_target.encode_request(opening("goes", epoch=4)))
    await call.write(codec_target.encode_request(extend("goes", 1, epoch=4)))
    await frame_of(call)

    match end:
        case "close":
            await channel.close()
        case "cancel":
            call.cancel()
        case _:
            await call.done_writing()
    await until(role.changed)

    assert role.closed == [Close("goes", 4)]
    assert role.sessions == {"stays": 1}
    assert server.service.num_sessions == 1
    stream.send(extend("stays", 2, base_len=1))
    assert await inbox.next() == Verified("stays", evidence(2, 1002))


async def test_a_disconnect_during_a_step_frees_the_session_and_drops_the_reply(
    role: EchoRole, server: TargetServer, channel: aio.Channel
) -> None:
    role.gate.clear()
    call = TARGET.call(channel)
    await call.write(codec_target.encode_request(opening("a")))
    await call.write(codec_target.encode_request(extend("a", 1)))
    await eventually(lambda: server.service.num_sessions == 1)

    await channel.close()
    await eventually(lambda: server.service.num_sessions == 0)
    role.gate.set()
    await until(role.changed)

    assert role.sessions == {}
    assert server.service.num_dropped_replies <= 1


async def test_close_frees_a_session_and_is_not_answered(
    role: EchoRole, server: TargetServer, stream: TargetStream
) -> None:
    inbox = Inbox(stream, "a")
    stream.send(opening("a"))
    stream.send(extend("a", 1))
    await inbox.next()

    stream.send(Close("a", 1))
    stream.send(Close("a", 1))
    stream.send(Close("never-opened", 1))
    await until(role.changed)

    assert role.closed == [Close("a", 1)]
    assert server.service.num_sessions == 0
    assert inbox.replies.empty()


async def test_a_session_that_is_detached_is_closed_at_its_peer_and_hears_no_more(
    role: EchoRole, server: TargetServer, stream: TargetStream
) -> None:
    inbox = Inbox(stream, "a")
    Inbox(stream, "never-opened")
    stream.send(opening("a", epoch=6))
    stream.send(extend("a", 1, epoch=6))

    stream.detach("a")
    stream.detach("a")
    stream.detach("never-opened")
    await until(role.changed)

    assert role.closed == [Close("a", 6)]
    assert server.service.num_sessions == 0
    assert inbox.replies.empty()


async def test_a_message_of_an_older_epoch_is_stale(role: EchoRole, stream: TargetStream) -> None:
    inbox = Inbox(stream, "a")
    stream.send(opening("a", epoch=2))

    stream.send(extend("a", 1, base_len=9, epoch=1))
    stale = await inbox.next_failure()
    stream.send(extend("a", 1, epoch=2))
    answer = await inbox.next()

    assert (stale.epoch, stale.base_len, stale.error.code) == (1, 9, ErrorCode.STALE)
    assert answer == Verified("a", evidence(1, 1001, epoch=2))
    assert role.closed == []


async def test_a_session_that_was_never_opened_is_stale(stream: TargetStream) -> None:
    inbox = Inbox(stream, "a")

    stream.send(extend("a", 1))

    assert (await inbox.next_failure()).error.code is ErrorCode.STALE


async def test_a_higher_epoch_takes_a_session_over_from_another_coordinator(
    role: EchoRole, server: TargetServer, stream: TargetStream
) -> None:
    old, old_inbox = stream, Inbox(stream, "a")
    new = await PeerStream.connect(TARGET, server.address)
    new_inbox = Inbox(new, "a")
    old.send(opening("a", epoch=1))
    old.send(extend("a", 1, epoch=1))
    await old_inbox.next()

    new.send(opening("a", epoch=2))
    new.send(extend("a", 2, epoch=2))
    answer = await new_inbox.next()
    old.send(extend("a", 3, epoch=1))
    old.send(opening("a", epoch=2))
    refused = [(await old_inbox.next_failure()).error.code for _ in range(2)]
    await old.close()
    new.send(extend("a", 4, base_len=1, epoch=2))

    assert answer == Verified("a", evidence(1, 1002, epoch=2))
    assert refused == [ErrorCode.STALE, ErrorCode.STALE]
    assert await new_inbox.next() == Verified("a", evidence(2, 1004, epoch=2))
    assert role.sessions == {"a": 2}
    await new.close()


async def test_a_prompt_of_a_million_tokens_fits(stream: TargetStream) -> None:
    inbox = Inbox(stream, "a")
    stream.send(opening("a"))

    stream.send(extend("a", *range(2**20)))

    reply = await inbox.next()
    assert isinstance(reply, Verified)
    assert reply.evidence.base_len == 2**20


async def test_a_drafter_is_served_the_same_way(role: EchoRole) -> None:
    server = await start_server(DRAFTER, role, host="127.0.0.1")
    stream = await PeerStream.connect(DRAFTER, server.address)
    replies: asyncio.Queue[RoleReply] = asyncio.Queue()
    stream.attach("a", replies.put_nowait)

    stream.send(opening("a"))
    stream.send(Propose("a", 1, 0, (1, 2, 3), 2))

    assert await asyncio.wait_for(replies.get(), 10) == Proposed(
        "a", DraftBlock(3, 1, (1001, 1002), OneHot())
    )
    assert role.threads == {"drafter-step"}
    await stream.close()
    await server.close()
