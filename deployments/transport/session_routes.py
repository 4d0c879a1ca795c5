"""Which stream a session's replies go to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from specdec_core.errors import StaleMessageError
from specdec_core.messages import Close

StreamT = TypeVar("StreamT")


@dataclass(frozen=True, slots=True)
class _Route(Generic[StreamT]):
    epoch: int
    stream: StreamT


class SessionRoutes(Generic[StreamT]):
    """Sessions open at a server, each owned by the stream that opened it last.

    A higher epoch takes a session over from another stream, as when a coordinator is replaced; what the old owner sends or
    still gets answered is stale then.
    """

    def __init__(self) -> None:
        self._routes: dict[str, _Route[StreamT]] = {}

    def __len__(self) -> int:
        return len(self._routes)

    def open(self, session_id: str, epoch: int, stream: StreamT) -> None:
        """Make ``stream`` the owner.

        Raises:
            StaleMessageError: if the session is open under this epoch or a higher one.
        """
        route = self._routes.get(session_id)
        if route is not None and route.epoch >= epoch:
            raise StaleMessageError(f"the session is open under epoch {route.epoch}")
        self._routes[session_id] = _Route(epoch, stream)

    def check(self, session_id: str, epoch: int, stream: StreamT) -> None:
        """Refuse a message of a stream that does not own the session under this epoch.

        Raises:
            StaleMessageError: then.
        """
        if self.owner(session_id, epoch) is not stream:
            raise StaleMessageError(f"the session is not open here under epoch {epoch}")

    def owner(self, session_id: str, epoch: int) -> StreamT | None:
        """The stream that opened the session under this epoch."""
        route = self._routes.get(session_id)
        return route.stream if route is not None and route.epoch == epoch else None

    def close(self, session_id: str, epoch: int) -> None:
        """Forget the session if it is open under this epoch."""
        route = self._routes.get(session_id)
        if route is not None and route.epoch == epoch:
            del self._routes[session_id]

    def close_all(self, stream: StreamT) -> list[Close]:
        """Forget every session of a stream that ended; the closes that free them."""
        closes = [
            Close(session_id, route.epoch)
            for session_id, route in self._routes.items()
            if route.stream is stream
        ]
        for close in closes:
            del self._routes[close.session_id]
        return closes
