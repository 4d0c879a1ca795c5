"""A coordinator's half of a cluster without Ray: real roles behind real data-plane servers, found by locators that count."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from deployments.coordinator.peer_streams import PeerStreams
from deployments.coordinator.session_driver import Peers, SessionDriver
from deployments.locator import Lease, TargetFacts
from deployments.transport.data_plane import DRAFTER, TARGET
from deployments.transport.server import start_server
from specdec_core.errors import PeerUnavailableError
from specdec_core.roles.drafter import DrafterRole
from specdec_core.roles.target import TargetRole
from specdec_core.session.events import Emit, Finish
from specdec_core.session.request import prepare
from specdec_core.types import NoiseKey
from tests.support.generation import served

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from deployments.transport.server import DrafterServer, TargetServer
    from specdec_core.drafters.base import Drafter
    from specdec_core.messages import DrafterMessage, TargetMessage
    from specdec_core.models.forward import CausalModel
    from specdec_core.roles.role import Role
    from specdec_core.session.state import SessionSpec, SessionState
    from tests.support.generation import Wish

HOST = "127.0.0.1"
_GENERATION_TIMEOUT_S = 30.0
_FACTS = TargetFacts("table", 12, 256, ())


@dataclass
class CountingLocator:
    """Leads to ``address``, or nowhere while that is None; knows which leases are held."""

    address: str | None
    facts: TargetFacts = _FACTS
    num_asked: int = 0
    held: Counter[str] = field(default_factory=Counter)
    leased: defaultdict[str, asyncio.Event] = field(
        default_factory=lambda: defaultdict(asyncio.Event)
    )
    gates: dict[str, asyncio.Event] = field(default_factory=dict)  # sessions that wait for these

    async def acquire(self, session_id: str) -> Lease:
        self.num_asked += 1
        if session_id in self.gates:
            await self.gates[session_id].wait()
        if self.address is None:
            raise PeerUnavailableError("there is no replica")
        self.held[session_id] += 1
        self.leased[session_id].set()
        return Lease(self.address, lambda: self._release(session_id))

    async def describe(self) -> TargetFacts:
        if self.address is None:
            raise PeerUnavailableError("there is no replica")
        return self.facts

    @property
    def num_held(self) -> int:
        return self.held.total()

    def _release(self, session_id: str) -> None:
        self.held[session_id] -= 1
        assert self.held[session_id] >= 0


@dataclass(frozen=True)
class Outcome:
    """All that a client was told, and the session at its end."""

    state: SessionState
    finish: Finish
    tokens: tuple[int, ...]
    text: str


@dataclass
class WireCluster:
    """Servers, what finds them, and what drives sessions on them."""

    target: TargetServer
    drafter: DrafterServer
    targets: CountingLocator
    drafters: CountingLocator
    peers: Peers
    cleanup: AsyncExitStack

    async def run(self, spec: SessionSpec) -> Outcome:
        """One generation to its end; its drafter is open before its target is asked for, as in the engine."""
        if spec.max_draft_tokens and self.drafters.address:
            self.targets.gates[spec.session_id] = self.drafters.leased[spec.session_id]
        async with asyncio.timeout(_GENERATION_TIMEOUT_S):
            return await self._run(spec)

    async def _run(self, spec: SessionSpec) -> Outcome:
        tokens: list[int] = []
        text = ""
        async with aclosing(SessionDriver(spec, self.peers).run()) as events:
            async for state, effect in events:
                state.check_integrity()
                match effect:
                    case Emit():
                        tokens += [each.token for each in effect.tokens]
                        text += effect.text
                    case Finish():
                        return Outcome(state, effect, tuple(tokens), text)
        raise AssertionError("the generation did not end")

    async def run_all(self, specs: Sequence[SessionSpec]) -> dict[str, Outcome]:
        outcomes = await asyncio.gather(*(self.run(spec) for spec in specs))
        return {each.state.spec.session_id: each for each in outcomes}

    async def kill_target(self, *, successor: Role[TargetMessage]) -> None:
        """End the target at once; from then on another one, at another address, is found."""
        before, self.target = self.target, await serve_target(successor)
        self.cleanup.push_async_callback(self.target.close)
        self.targets.address = self.target.address
        await before.close()

    async def kill_drafter(self, *, successor: Role[DrafterMessage]) -> None:
        """As ``kill_target``."""
        before, self.drafter = self.drafter, await serve_drafter(successor)
        self.cleanup.push_async_callback(self.drafter.close)
        self.drafters.address = self.drafter.address
        await before.close()

    def is_idle(self) -> bool:
        """Whether every session and every lease is gone."""
        counts = (
            self.target.service.num_sessions,
            self.drafter.service.num_sessions,
            self.targets.num_held,
            self.drafters.num_held,
        )
        return counts == (0, 0, 0, 0)


async def serve_target(role: Role[TargetMessage]) -> TargetServer:
    return await start_server(TARGET, role, host=HOST)


async def serve_drafter(role: Role[DrafterMessage]) -> DrafterServer:
    return await start_server(DRAFTER, role, host=HOST)


def target_role(model: CausalModel, *, max_sessions: int = 1024) -> TargetRole:
    return TargetRole(model, max_sessions=max_sessions, token_budget=512)


def drafter_role(drafter: Drafter, *, max_sessions: int = 1024) -> DrafterRole:
    return DrafterRole(drafter, max_sessions=max_sessions)


def spec_of(wish: Wish, model: CausalModel) -> SessionSpec:
    return prepare(
        wish.session_id,
        wish.prompt,
        wish.params,
        model=served(model),
        noise=NoiseKey(wish.params.seed or 0),
    )


@asynccontextmanager
async def wire_cluster(
    target: Role[TargetMessage],
    drafter: Role[DrafterMessage],
    *,
    answer_timeout_s: float = 30.0,
    draft_deadline_s: float = 30.0,
) -> AsyncIterator[WireCluster]:
    """Serve these roles, connected, until the block ends."""
    async with AsyncExitStack() as cleanup:
        target_server = await serve_target(target)
        cleanup.push_async_callback(target_server.close)
        drafter_server = await serve_drafter(drafter)
        cleanup.push_async_callback(drafter_server.close)
        peers = Peers(
            targets=(targets := CountingLocator(target_server.address)),
            target_streams=PeerStreams(TARGET),
            drafters=(drafters := CountingLocator(drafter_server.address)),
            drafter_streams=PeerStreams(DRAFTER),
            answer_timeout_s=answer_timeout_s,
            draft_deadline_s=draft_deadline_s,
        )
        cleanup.push_async_callback(peers.target_streams.close)
        cleanup.push_async_callback(peers.drafter_streams.close)
        await peers.target_streams.to(target_server.address)
        await peers.drafter_streams.to(drafter_server.address)
        yield WireCluster(target_server, drafter_server, targets, drafters, peers, cleanup)
