"""How a coordinator finds a peer: a lease names its address and keeps its place until it is released."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from specdec_core.errors import PeerUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """What every replica of a target says of its model."""

    name: str
    vocab_size: int
    max_context: int
    eos_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Lease:
    """A place at one replica for one session."""

    address: str  # host:port of its data plane
    release: Callable[[], None]  # idempotent; also implied by the death of the holder


class PeerLocator(Protocol):
    """Finds replicas of one deployment."""

    async def acquire(self, session_id: str) -> Lease:
        """A place for a session; waits while the deployment starts.

        Raises:
            PeerUnavailableError: if no replica can be had.
        """
        ...


class TargetLocator(PeerLocator, Protocol):
    """Finds targets, and can say what they serve."""

    async def describe(self) -> TargetFacts:
        """The model that the targets serve.

        Raises:
            PeerUnavailableError: if none is there to tell.
        """
        ...


class NoLocator:
    """Finds nothing, for a role that is not deployed."""

    async def acquire(self, session_id: str) -> Lease:
        raise PeerUnavailableError(f"there is no replica for session {session_id}")
