from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import grpc
import pytest
from grpc import aio

from deployments.transport import codec_target, wire_limits
from deployments.transport.client import PeerStream
from deployments.transport.data_plane import TARGET
from deployments.transport.reply_queue import ReplyQueue
from deployments.transport.server import start_server
from specdec_core.errors import (
    ErrorCode,
    InvalidArgumentError,
    OverloadedError,
    PeerUnavailableError,
)
from specdec_core.messages import Close, Failed, Verified
from specdec_proto.v1 import target_pb2
from tests.support.echo_role import (
    EchoRole,
    Inbox,
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


def raw_call(channel: aio.Channel) -> aio.StreamStreamCall[bytes, bytes]:
    method: aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
        "/specdec_proto.v1.TargetService/Extend"
    )
    return method()


async def test_a_malformed_item_fails_its_own_session_only(
    role: EchoRole, channel: aio.Channel
) -> None:
    call = TARGET.call(channel)
    request = target_pb2.ExtendRequest()
    for name in ("good", "bad"):
        request.MergeFrom(codec_target.encode_request(opening(name)))
    request.items.add(session_id="bad", epoch=1, base_len=4).extend.tokens.append(2**31)
    request.MergeFrom(codec_target.encode_request(extend("good", 1)))

    await call.write(request)
    results = list((await frame_of(call)).results)
    if len(results) == 1:
        results += (await frame_of(call)).results

    bad, good = results
    assert (bad.session_id, bad.epoch, bad.base_len) == ("bad", 1, 4)
    assert bad.failed.message == "extend.tokens: each must be in [0, 2147483647]"
    assert good.session_id == "good"
    assert good.HasField("verified")
    assert role.sessions == {"good": 1}
    assert role.closed == [Close("bad", 1)]
    call.cancel()


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (b"\xff\xff\xff", "frame: is not a message of this stream"),
        (
            target_pb2.ExtendRequest(items=[target_pb2.TargetItem(epoch=1)]).SerializeToString(),
            "session_id: must be 1 to 128 characters, got 0",
        ),
        (
            target_pb2.ExtendRequest(
                items=[target_pb2.TargetItem(session_id="a")] * 1025
            ).SerializeToString(),
            "items: takes 0 to 1024 entries, got 1025",
        ),
    ],
    ids=["not protobuf", "no session", "too many items"],
)
async def test_a_malformed_frame_ends_its_stream_and_frees_its_sessions(
    frame: bytes, text: str, role: EchoRole, channel: aio.Channel
) -> None:
    call = raw_call(channel)
    await call.write(codec_target.encode_request(opening("a")).SerializeToString())

    await call.write(frame)
    with pytest.raises(aio.AioRpcError) as caught:
        await asyncio.wait_for(call.read(), 10)

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == text
    await until(role.changed)
    assert role.sessions == {}


async def test_a_message_over_the_limit_ends_the_stream_of_its_sender_only(
    stream: TargetStream, channel: aio.Channel
) -> None:
    inbox = Inbox(stream, "a")
    stream.send(opening("a"))
    call = raw_call(channel)

    with contextlib.suppress(aio.AioRpcError):
        await call.write(bytes(wire_limits.MAX_MESSAGE_BYTES + 1))
    with pytest.raises(aio.AioRpcError) as caught:
        await asyncio.wait_for(call.read(), 30)
    stream.send(extend("a", 1))

    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await inbox.next() == Verified("a", evidence(1, 1001))


async def test_the_client_refuses_to_send_what_no_peer_would_take(stream: TargetStream) -> None:
    inbox = Inbox(stream, "a")
    stream.send(opening("a"))

    with pytest.raises(InvalidArgumentError, match="message: must be at most 16777216 bytes"):
        stream.send(extend("a", *([2**31 - 1] * (4 * 2**20))))
    stream.send(extend("a", 1))

    assert await inbox.next() == Verified("a", evidence(1, 1001))


async def test_a_step_that_raises_fails_open_sessions_and_the_loop_goes_on(
    role: EchoRole, stream: TargetStream, caplog: pytest.LogCaptureFixture
) -> None:
    victim, bystander = Inbox(stream, "victim"), Inbox(stream, "bystander")
    stream.send(opening("victim"))
    stream.send(opening("bystander"))

    stream.send(extend("victim", 666, base_len=8))
    failures = [await victim.next_failure(), await bystander.next_failure()]
    stream.send(opening("victim", epoch=2))
    stream.send(extend("victim", 1, epoch=2))

    assert [failed.error.code for failed in failures] == [ErrorCode.INTERNAL] * 2
    assert [failed.base_len for failed in failures] == [8, 0]
    assert str(failures[0].error) == "the model step failed"
    assert await victim.next() == Verified("victim", evidence(1, 1001, epoch=2))
    assert role.sessions == {"victim": 2}
    logged = [each.message for each in caplog.records if each.name.startswith("deployments")]
    assert logged == ["the step failed; failing 2 open sessions"]


async def test_a_server_that_dies_fails_every_session_as_unavailable(
    server: TargetServer, stream: TargetStream
) -> None:
    inboxes = {name: Inbox(stream, name) for name in ("a", "b")}
    for name in inboxes:
        stream.send(opening(name, epoch=3))
    stream.send(extend("b", 1, base_len=5, epoch=3))
    await inboxes["b"].next()

    await server.close()
    failures = [await inbox.next_failure() for inbox in inboxes.values()]

    assert [(f.session_id, f.epoch, f.base_len) for f in failures] == [("a", 3, 0), ("b", 3, 5)]
    assert all(isinstance(f.error, PeerUnavailableError) for f in failures)
    assert stream.is_lost
    with pytest.raises(PeerUnavailableError, match=r"target at 127\.0\.0\.1"):
        stream.send(extend("a", 1, epoch=3))
    stream.detach("a")
    assert all(inbox.replies.empty() for inbox in inboxes.values())


async def test_no_peer_within_the_connect_timeout_is_unavailable() -> None:
    with pytest.raises(PeerUnavailableError, match=r"no connection within 0\.05 s"):
        await PeerStream.connect(TARGET, "127.0.0.1:1", timeout_s=0.05)


async def test_an_address_of_another_machine_cannot_be_bound(role: EchoRole) -> None:
    with pytest.raises(PeerUnavailableError, match=r"no port can be bound on 192\.0\.2\.1"):
        await start_server(TARGET, role, host="192.0.2.1")


async def test_a_peer_that_answers_nonsense_is_lost() -> None:
    async def nonsense(
        requests: AsyncIterator[target_pb2.ExtendRequest],
        context: aio.ServicerContext[target_pb2.ExtendRequest, target_pb2.ExtendResponse],
    ) -> None:
        async for _ in requests:
            result = target_pb2.TargetResult(session_id="")
            await context.write(target_pb2.ExtendResponse(results=[result]))

    server = aio.server()
    TARGET.add_to_server(nonsense, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    stream = await PeerStream.connect(TARGET, f"127.0.0.1:{port}")
    inbox = Inbox(stream, "a")

    stream.send(opening("a"))
    failure = await inbox.next_failure()

    assert failure.error.code is ErrorCode.UNAVAILABLE
    assert "malformed frame: session_id" in str(failure.error)
    await stream.close()
    await server.stop(None)


async def test_a_client_that_may_queue_no_more_is_told_so_but_can_close(
    role: EchoRole, server: TargetServer
) -> None:
    channel = aio.insecure_channel(server.address)
    stream = PeerStream(TARGET, channel, server.address, max_waiting=2)
    Inbox(stream, "a")
    stream.send(opening("a"))
    stream.send(extend("a", 1))

    with pytest.raises(OverloadedError, match="2 messages wait for"):
        stream.send(extend("a", 2, base_len=1))
    stream.detach("a")
    await until(role.changed)

    assert role.closed == [Close("a", 1)]
    await stream.close()


async def test_replies_nobody_reads_end_the_stream() -> None:
    queue = ReplyQueue(max_unread=2)

    queue.put([Failed("a", 1, 0, OverloadedError("x"))] * 3)

    with pytest.raises(OverloadedError, match="more than 2 replies are unread"):
        await queue.next_batch()
