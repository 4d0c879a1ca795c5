"""The streams of one coordinator replica to its peers: one per address, shared by all sessions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic

from deployments.transport.client import PeerStream
from deployments.transport.data_plane import MessageT, RequestT, ResponseT

if TYPE_CHECKING:
    from deployments.transport.data_plane import DataPlane


class PeerStreams(Generic[MessageT, RequestT, ResponseT]):
    """Connects on first use, and again after a stream was lost."""

    def __init__(self, plane: DataPlane[MessageT, RequestT, ResponseT]) -> None:
        self._plane = plane
        self._streams: dict[str, PeerStream[MessageT, RequestT, ResponseT]] = {}
        self._connecting: dict[str, asyncio.Task[PeerStream[MessageT, RequestT, ResponseT]]] = {}

    async def to(self, address: str) -> PeerStream[MessageT, RequestT, ResponseT]:
        """The stream to ``address``; all that ask while it is being connected share the attempt and its failure.

        Raises:
            PeerUnavailableError: if it cannot be connected.
        """
        stream = self._streams.get(address)
        if stream is not None and not stream.is_lost:
            return stream
        if address not in self._connecting:
            task = asyncio.create_task(self._connect(address))
            self._connecting[address] = task
            task.add_done_callback(lambda _: self._connecting.pop(address))
        return await asyncio.shield(self._connecting[address])

    async def close(self) -> None:
        """End every stream."""
        attempts = list(self._connecting.values())
        for attempt in attempts:
            attempt.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)
        streams, self._streams = self._streams, {}
        await asyncio.gather(*(stream.close() for stream in streams.values()))

    async def _connect(self, address: str) -> PeerStream[MessageT, RequestT, ResponseT]:
        lost = [held for held, stream in self._streams.items() if stream.is_lost]
        for each in lost:
            await self._streams.pop(each).close()
        stream = await PeerStream.connect(self._plane, address)
        self._streams[address] = stream
        return stream
