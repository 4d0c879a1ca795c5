"""A coordinator's end of the data plane: one stream to one peer, shared by all sessions between them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Self

from google.protobuf.message import DecodeError
from grpc import aio

from deployments.transport.channel_options import CLIENT_OPTIONS
from deployments.transport.data_plane import MessageT, RequestT, ResponseT
from deployments.transport.status import from_rpc_error
from deployments.transport.wire_limits import MAX_ITEMS, MAX_MESSAGE_BYTES
from specdec_core.errors import (
    InvalidArgumentError,
    OverloadedError,
    PeerUnavailableError,
    SpecdecError,
)
from specdec_core.messages import Close, DrafterMessage, Extend, Failed, Propose, TargetMessage
from specdec_proto.v1 import drafter_pb2, target_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

    from deployments.transport.data_plane import DataPlane
    from specdec_core.messages import RoleReply

logger = logging.getLogger(__name__)

MAX_WAITING = 8192  # messages
_FRAME_BYTES = (
    4 * 2**20
)  # a frame is closed at this size, so that a long prefill does not hold up the rest


@dataclass(slots=True)
class _Session:
    """Where a session's replies go, and the stamp of what it last sent."""

    receive: Callable[[RoleReply], None]
    epoch: int = 0
    base_len: int = 0


class PeerStream(Generic[MessageT, RequestT, ResponseT]):
    """One multiplexed stream to one peer; used from one event loop.

    What all sessions send in one turn of the event loop, or while the last frame is being written, leaves in one frame. When the
    stream is lost every attached session receives ``Failed`` with a ``PeerUnavailableError``, once.
    """

    def __init__(
        self,
        plane: DataPlane[MessageT, RequestT, ResponseT],
        channel: aio.Channel,
        address: str,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        self._plane = plane
        self._channel = channel
        self._address = address
        self._max_waiting = max_waiting
        self._call = plane.call(channel)
        self._sessions: dict[str, _Session] = {}
        self._waiting: deque[RequestT] = deque()
        self._ready = asyncio.Event()
        self._loss: str | None = None
        self._tasks = (asyncio.create_task(self._read()), asyncio.create_task(self._write()))

    @classmethod
    async def connect(
        cls,
        plane: DataPlane[MessageT, RequestT, ResponseT],
        address: str,
        *,
        timeout_s: float = 5.0,
    ) -> Self:
        """A stream to the peer at ``address``.

        Raises:
            PeerUnavailableError: if there is no connection within ``timeout_s``.
        """
        async with AsyncExitStack() as on_failure:
            channel = aio.insecure_channel(address, options=CLIENT_OPTIONS)
            on_failure.push_async_callback(channel.close)
            try:
                await asyncio.wait_for(channel.channel_ready(), timeout_s)
            except TimeoutError as error:
                raise PeerUnavailableError(
                    f"{plane.name} at {address}: no connection within {timeout_s:g} s"
                ) from error
            on_failure.pop_all()
            return cls(plane, channel, address)

    @property
    def is_lost(self) -> bool:
        """Whether the stream has ended; it does not come back."""
        return self._loss is not None

    def attach(self, session_id: str, receive: Callable[[RoleReply], None]) -> None:
        """Have ``receive`` called on the event loop with each reply to a session; it must not block."""
        self._sessions[session_id] = _Session(receive)

    def detach(self, session_id: str) -> None:
        """Close a session at the peer and drop what still comes for it. Idempotent."""
        session = self._sessions.pop(session_id, None)
        if session is not None and session.epoch and not self.is_lost:
            self._enqueue(Close(session_id, session.epoch))

    def send(self, message: MessageT) -> None:
        """Queue a message of an attached session.

        Raises:
            PeerUnavailableError: if the stream is lost.
            OverloadedError: if too many messages wait to be written.
            InvalidArgumentError: if the message is larger than a peer would take.
        """
        if self._loss is not None:
            raise PeerUnavailableError(self._loss)
        if len(self._waiting) >= self._max_waiting:
            raise OverloadedError(f"{len(self._waiting)} messages wait for {self._address}")
        self._enqueue(message)

    def _enqueue(self, message: MessageT | Close) -> None:
        frame = self._plane.encode_request(message)
        if frame.ByteSize() > MAX_MESSAGE_BYTES:
            raise InvalidArgumentError(
                "message", f"must be at most {MAX_MESSAGE_BYTES} bytes, got {frame.ByteSize()}"
            )
        self._note(message)
        self._waiting.append(frame)
        self._ready.set()

    async def close(self) -> None:
        """End the stream, which closes its sessions at the peer; those still attached receive ``Failed``."""
        self._lose("closed here")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._channel.close()

    def _note(self, message: MessageT | Close) -> None:
        session = self._sessions.get(message.session_id)
        if session is not None:
            session.epoch = message.epoch
            session.base_len = message.base_len if isinstance(message, Extend | Propose) else 0

    async def _write(self) -> None:
        while True:
            await self._ready.wait()
            frame = self._next_frame()
            try:
                await self._call.write(frame)
            except (aio.AioRpcError, asyncio.InvalidStateError):
                return  # the reader learns why

    def _next_frame(self) -> RequestT:
        frame = self._waiting.popleft()
        size, count = frame.ByteSize(), 1
        while self._waiting and count < MAX_ITEMS:
            size += self._waiting[0].ByteSize()
            if size > _FRAME_BYTES:
                break
            frame.MergeFrom(self._waiting.popleft())
            count += 1
        if not self._waiting:
            self._ready.clear()
        return frame

    async def _read(self) -> None:
        try:
            async for response in self._call:
                for reply in self._plane.decode_response(response):
                    self._deliver(reply)
            self._lose("the peer ended the stream")
        except aio.AioRpcError as error:
            self._lose(str(from_rpc_error(error)))
        except (DecodeError, SpecdecError) as error:
            self._lose(f"malformed frame: {error}")

    def _deliver(self, reply: RoleReply) -> None:
        session = self._sessions.get(reply.session_id)
        if session is None:
            return
        try:
            session.receive(reply)
        except Exception:
            logger.exception("session %s could not take a reply", reply.session_id)

    def _lose(self, reason: str) -> None:
        if self._loss is not None:
            return
        self._loss = f"{self._plane.name} at {self._address}: {reason}"
        self._call.cancel()
        self._waiting.clear()
        for session_id, session in list(self._sessions.items()):
            error = PeerUnavailableError(self._loss)
            self._deliver(Failed(session_id, session.epoch, session.base_len, error))
        self._sessions.clear()


TargetStream = PeerStream[TargetMessage, target_pb2.ExtendRequest, target_pb2.ExtendResponse]
DrafterStream = PeerStream[DrafterMessage, drafter_pb2.ProposeRequest, drafter_pb2.ProposeResponse]
