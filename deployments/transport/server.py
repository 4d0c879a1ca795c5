"""A data-plane server: one role on its step loop, many coordinators on their streams."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Generic

from google.protobuf.message import DecodeError
from grpc import aio

from deployments.transport.channel_options import SERVER_OPTIONS
from deployments.transport.data_plane import MessageT, RequestT, ResponseT
from deployments.transport.reply_queue import ReplyQueue
from deployments.transport.session_routes import SessionRoutes
from deployments.transport.status import to_status
from deployments.transport.step_loop import StepLoop
from specdec_core.errors import (
    InvalidArgumentError,
    InvariantError,
    OverloadedError,
    PeerUnavailableError,
    SpecdecError,
    StaleMessageError,
)
from specdec_core.messages import (
    Close,
    DrafterMessage,
    Extend,
    Failed,
    Open,
    Propose,
    Proposed,
    TargetMessage,
    Verified,
)
from specdec_proto.v1 import drafter_pb2, target_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from deployments.transport.data_plane import DataPlane
    from specdec_core.messages import RoleReply
    from specdec_core.roles.role import Role

logger = logging.getLogger(__name__)


class StreamService(Generic[MessageT, RequestT, ResponseT]):
    """Moves messages from every stream to the step loop, and replies back to the stream that opened the session.

    A stream's end, for whatever reason, closes the sessions it opened. A malformed item fails its own session, a malformed frame
    ends its stream.
    """

    def __init__(
        self, plane: DataPlane[MessageT, RequestT, ResponseT], step_loop: StepLoop[MessageT]
    ) -> None:
        self._plane = plane
        self._step_loop = step_loop
        self._routes: SessionRoutes[ReplyQueue] = SessionRoutes()
        self.num_dropped_replies = 0

    @property
    def num_sessions(self) -> int:
        """Sessions open now, over all streams."""
        return len(self._routes)

    async def serve(
        self, requests: AsyncIterator[RequestT], context: aio.ServicerContext[RequestT, ResponseT]
    ) -> None:
        """Answer one stream until it ends."""
        queue = ReplyQueue()
        reader = asyncio.create_task(self._read(requests, queue))
        try:
            while replies := await queue.next_batch():
                await context.write(self._plane.encode_response(replies))
        except SpecdecError as error:
            await context.abort(*to_status(error))
        finally:
            reader.cancel()
            queue.end()
            self._step_loop.submit_closes(self._routes.close_all(queue))

    def deliver(self, replies: Sequence[RoleReply]) -> None:
        """Queue the replies of one step; those of sessions that are gone are dropped and counted."""
        batches: dict[ReplyQueue, list[RoleReply]] = {}
        for reply in replies:
            epoch = _epoch(reply)
            queue = self._routes.owner(reply.session_id, epoch)
            if queue is None:
                self.num_dropped_replies += 1
                continue
            batches.setdefault(queue, []).append(reply)
            if isinstance(reply, Failed):
                self._routes.close(reply.session_id, epoch)
        for queue, batch in batches.items():
            queue.put(batch)

    async def _read(self, requests: AsyncIterator[RequestT], queue: ReplyQueue) -> None:
        try:
            async for request in requests:
                self._accept(self._plane.decode_request(request), queue)
        except DecodeError:
            queue.end(InvalidArgumentError("frame", "is not a message of this stream"))
        except SpecdecError as error:
            queue.end(error)
        except Exception:
            logger.exception("reading a %s stream failed", self._plane.name)
            queue.end(InvariantError("reading the stream failed"))
        else:
            queue.end()

    def _accept(self, messages: Sequence[MessageT | Failed], queue: ReplyQueue) -> None:
        taken: list[MessageT | Close] = []
        for message in messages:
            if isinstance(message, Failed):
                queue.put([message])
                taken.extend(self._close(message.session_id, message.epoch, queue))
            elif isinstance(message, Close):
                taken.extend(self._close(message.session_id, message.epoch, queue))
            elif self._admit(message, queue):
                taken.append(message)
        try:
            self._step_loop.submit(taken)
        except OverloadedError as error:
            self._refuse(taken, queue, error)

    def _admit(self, message: Open | Extend | Propose, queue: ReplyQueue) -> bool:
        try:
            if isinstance(message, Open):
                self._routes.open(message.session_id, message.epoch, queue)
            else:
                self._routes.check(message.session_id, message.epoch, queue)
        except StaleMessageError as error:
            queue.put([_failed(message, error)])
            return False
        return True

    def _close(self, session_id: str, epoch: int, queue: ReplyQueue) -> list[Close]:
        """The close to hand on; none if the session is not this stream's."""
        if self._routes.owner(session_id, epoch) is not queue:
            return []
        self._routes.close(session_id, epoch)
        return [Close(session_id, epoch)]

    def _refuse(
        self, messages: Sequence[MessageT | Close], queue: ReplyQueue, error: OverloadedError
    ) -> None:
        """Fail and close the sessions of messages there is no room for."""
        closes: list[Close] = []
        for message in messages:
            if isinstance(message, Close):
                closes.append(message)
            else:
                queue.put([_failed(message, error)])
                closes.extend(self._close(message.session_id, message.epoch, queue))
        self._step_loop.submit_closes(closes)


class DataPlaneServer(Generic[MessageT, RequestT, ResponseT]):
    """A running server; ``address`` is where coordinators find it."""

    def __init__(
        self,
        *,
        address: str,
        server: aio.Server,
        service: StreamService[MessageT, RequestT, ResponseT],
        step_loop: StepLoop[MessageT],
    ) -> None:
        self.address = address
        self.service = service
        self._server = server
        self._step_loop = step_loop

    @property
    def is_stepping(self) -> bool:
        """Whether the step thread is alive."""
        return self._step_loop.is_running

    async def close(self, timeout_s: float = 5.0) -> None:
        """End every stream at once, then join the step thread.

        Raises:
            DeadlineError: if a step is still running after ``timeout_s``.
        """
        await self._server.stop(None)
        await self._step_loop.close(timeout_s)


TargetServer = DataPlaneServer[TargetMessage, target_pb2.ExtendRequest, target_pb2.ExtendResponse]
DrafterServer = DataPlaneServer[
    DrafterMessage, drafter_pb2.ProposeRequest, drafter_pb2.ProposeResponse
]


async def start_server(
    plane: DataPlane[MessageT, RequestT, ResponseT], role: Role[MessageT | Close], *, host: str
) -> DataPlaneServer[MessageT, RequestT, ResponseT]:
    """Serve ``role`` on a free port of ``host``, an address of this machine that coordinators can reach.

    Raises:
        PeerUnavailableError: if no port can be bound.
    """
    step_loop: StepLoop[MessageT] = StepLoop(role, name=f"{plane.name}-step")
    service = StreamService(plane, step_loop)
    server = aio.server(options=SERVER_OPTIONS)
    plane.add_to_server(service.serve, server)
    try:
        port = server.add_insecure_port(f"{host}:0")
    except RuntimeError as error:
        raise PeerUnavailableError(f"no port can be bound on {host}") from error
    step_loop.start(service.deliver)
    await server.start()
    return DataPlaneServer(
        address=f"{host}:{port}", server=server, service=service, step_loop=step_loop
    )


def _epoch(reply: RoleReply) -> int:
    match reply:
        case Verified(_, evidence):
            return evidence.epoch
        case Proposed(_, block):
            return block.epoch
        case Failed(_, epoch):
            return epoch


def _failed(message: Open | Extend | Propose, error: SpecdecError) -> Failed:
    base_len = 0 if isinstance(message, Open) else message.base_len
    return Failed(message.session_id, message.epoch, base_len, error)
