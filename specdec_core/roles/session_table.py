"""The sessions a role holds, and the epochs that fence them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from specdec_core.errors import StaleMessageError
from specdec_core.scheduling.admission import check_admission

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from specdec_core.messages import Open


class Held(Protocol):
    """Anything a role keeps for a session."""

    @property
    def opened(self) -> Open: ...


Session = TypeVar("Session", bound=Held)


class SessionTable(Generic[Session]):
    """At most ``max_sessions`` sessions by id; every look-up names the epoch it means."""

    def __init__(self, max_sessions: int, on_close: Callable[[Session], None]) -> None:
        self._sessions: dict[str, Session] = {}
        self._max_sessions = max_sessions
        self._on_close = on_close

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, message: Open, make: Callable[[], Session]) -> None:
        """Hold a new session; a higher epoch replaces the one that was held.

        Raises:
            StaleMessageError: if the epoch is not above that of the session held.
            OverloadedError: if the table is full.
        """
        held = self._sessions.get(message.session_id)
        if held and message.epoch <= held.opened.epoch:
            raise StaleMessageError(f"epoch {message.epoch} is not above {held.opened.epoch}")
        if held:
            self._on_close(held)
        else:
            check_admission(len(self._sessions), max_sessions=self._max_sessions)
        self._sessions[message.session_id] = make()

    def get(self, session_id: str, epoch: int) -> Session:
        """The session under exactly this epoch.

        Raises:
            StaleMessageError: if it is not held, or under another epoch.
        """
        held = self._sessions.get(session_id)
        if held is None or held.opened.epoch != epoch:
            raise StaleMessageError(f"session {session_id} is not open under epoch {epoch}")
        return held

    def youngest(self, session_ids: Collection[str]) -> Session:
        """Of these sessions, at least one of them held, the one opened last."""
        return next(held for name, held in reversed(self._sessions.items()) if name in session_ids)

    def close(self, session_id: str, epoch: int) -> None:
        """Free a session unless a later epoch holds it; unknown ones are ignored."""
        held = self._sessions.get(session_id)
        if held and held.opened.epoch <= epoch:
            self._on_close(self._sessions.pop(session_id))
