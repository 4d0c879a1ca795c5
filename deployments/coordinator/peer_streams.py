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
        self._connecting: dict[str, asyncio.Lock] = {}

    async def to(self, address: str) -> PeerStream[MessageT, RequestT, ResponseT]:
        """The stream to ``address``.

        Raises:
            PeerUnavailableError: if it cannot be connected.
        """
        async with self._connecting.setdefault(address, asyncio.Lock()):
            stream = self._streams.get(address)
            if stream is None or stream.is_lost:
                if stream is not None:
                    del self._streams[address]
                    await stream.close()
                stream = await PeerStream.connect(self._plane, address)
                self._streams[address] = stream
            return stream

    async def close(self) -> None:
        """End every stream."""
        streams, self._streams = self._streams, {}
        await asyncio.gather(*(stream.close() for stream in streams.values()))
