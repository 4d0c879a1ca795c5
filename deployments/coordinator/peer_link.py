"""One session's tie to one peer: a lease, and a place on the shared stream."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic

from deployments.transport.data_plane import MessageT, RequestT, ResponseT
from specdec_core.errors import PeerUnavailableError
from specdec_core.messages import Failed

if TYPE_CHECKING:
    from collections.abc import Callable

    from deployments.coordinator.peer_streams import PeerStreams
    from deployments.locator import Lease, PeerLocator
    from deployments.transport.client import PeerStream
    from specdec_core.messages import RoleReply

_FIRST_RETRY_S = 0.1
_LAST_RETRY_S = 10.0


class PeerLink(Generic[MessageT, RequestT, ResponseT]):
    """Opens, sends and lets go; what comes back goes to ``receive``."""

    def __init__(
        self,
        session_id: str,
        locator: PeerLocator,
        streams: PeerStreams[MessageT, RequestT, ResponseT],
        receive: Callable[[RoleReply], None],
    ) -> None:
        self._session_id = session_id
        self._locator = locator
        self._streams = streams
        self._receive = receive
        self._num_silent = 0  # openings in a row that no answer followed
        self._lease: Lease | None = None
        self._stream: PeerStream[MessageT, RequestT, ResponseT] | None = None

    async def open(self, message: MessageT) -> None:
        """Let go of the last peer, take a lease at one, and send it the opening message.

        Waits longer before each opening in a row that comes to nothing.

        Raises:
            SpecdecError: if no peer can be had.
        """
        self.release()
        await asyncio.sleep(_retry_delay(self._num_silent))
        self._num_silent += 1
        lease = await self._locator.acquire(self._session_id)
        try:
            stream = await self._streams.to(lease.address)
        except BaseException:
            lease.release()
            raise
        self._lease, self._stream = lease, stream
        stream.attach(self._session_id, self._take)
        stream.send(message)

    def send(self, message: MessageT) -> None:
        """Queue a message.

        Raises:
            SpecdecError: if the peer is gone or swamped.
        """
        if self._stream is None:
            raise PeerUnavailableError("the session has no peer")
        self._stream.send(message)

    def release(self) -> None:
        """End the session at the peer, free the lease and hear nothing more. Idempotent."""
        if self._stream is not None:
            self._stream.detach(self._session_id)
        if self._lease is not None:
            self._lease.release()
        self._stream = self._lease = None

    def _take(self, reply: RoleReply) -> None:
        if not isinstance(reply, Failed):
            self._num_silent = 0
        self._receive(reply)


def _retry_delay(num_failures: int) -> float:
    """Seconds: none at first, then doubling."""
    return min(_LAST_RETRY_S, _FIRST_RETRY_S * 2.0 ** (num_failures - 1)) if num_failures else 0.0
