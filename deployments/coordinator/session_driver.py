"""Runs the effects of one session over gRPC and feeds the answers back: the distributed twin of ``specdec_core.engine``."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

from deployments.coordinator.peer_link import PeerLink
from specdec_core.errors import InvariantError, PeerUnavailableError, SpecdecError
from specdec_core.session.events import (
    DrafterLost,
    DrafterOpened,
    DraftLate,
    Emit,
    EmitPrompt,
    Finish,
    OpenDrafter,
    OpenTarget,
    Release,
    RequestDraft,
    RequestVerify,
    TargetLost,
    TargetOpened,
)
from specdec_core.session.replies import from_drafter, from_target
from specdec_core.session.session import advance, start

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine

    from deployments.coordinator.peer_streams import PeerStreams
    from deployments.locator import PeerLocator
    from specdec_core.messages import DrafterMessage, Extend, Open, Propose, TargetMessage
    from specdec_core.session.events import Input, Output
    from specdec_core.session.state import SessionSpec, SessionState
    from specdec_proto.v1 import drafter_pb2, target_pb2

    TargetStreams = PeerStreams[TargetMessage, target_pb2.ExtendRequest, target_pb2.ExtendResponse]
    DrafterStreams = PeerStreams[
        DrafterMessage, drafter_pb2.ProposeRequest, drafter_pb2.ProposeResponse
    ]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Peers:
    """Where sessions find their peers, and how long they wait for them."""

    targets: PeerLocator
    target_streams: TargetStreams
    drafters: PeerLocator
    drafter_streams: DrafterStreams
    answer_timeout_s: float  # of a target
    draft_deadline_s: float


class SessionDriver:
    """One generation. Iterate ``run`` to its end, or close it to cancel."""

    def __init__(self, spec: SessionSpec, peers: Peers) -> None:
        self._spec = spec
        self._peers = peers
        self._inputs: asyncio.Queue[Input] = asyncio.Queue()
        self._target = PeerLink(
            spec.session_id,
            peers.targets,
            peers.target_streams,
            lambda reply: self._inputs.put_nowait(from_target(reply)),
        )
        self._drafter = PeerLink(
            spec.session_id,
            peers.drafters,
            peers.drafter_streams,
            lambda reply: self._inputs.put_nowait(from_drafter(reply)),
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None  # of the answer awaited

    async def run(self) -> AsyncGenerator[tuple[SessionState, Output], None]:
        """What the client is to be told, each with the session as it stood then; the last is ``Finish``."""
        state, effects = start(self._spec)
        try:
            while True:
                for effect in effects:
                    if isinstance(effect, EmitPrompt | Emit | Finish):
                        yield state, effect
                    else:
                        self._execute(effect)
                if state.finish:
                    return
                state, effects = advance(state, await self._inputs.get())
        finally:
            self._let_go()

    def _execute(
        self, effect: OpenTarget | OpenDrafter | RequestDraft | RequestVerify | Release
    ) -> None:
        match effect:
            case OpenTarget(message=message):
                broken = InvariantError("finding a target failed")
                self._spawn(self._open_target(message), TargetLost(message.epoch, broken))
            case OpenDrafter(message=message):
                self._spawn(self._open_drafter(message), DrafterLost(message.epoch))
            case RequestDraft(message=message):
                self._request_draft(message)
            case RequestVerify(message=message):
                self._request_verify(message)
            case Release():
                self._let_go()
            case _ as unreachable:
                assert_never(unreachable)

    async def _open_target(self, message: Open) -> None:
        try:
            await self._target.open(message)
        except SpecdecError as error:
            self._inputs.put_nowait(TargetLost(message.epoch, error))
        else:
            self._inputs.put_nowait(TargetOpened(message.epoch))

    async def _open_drafter(self, message: Open) -> None:
        try:
            await self._drafter.open(message)
        except SpecdecError:
            self._inputs.put_nowait(DrafterLost(message.epoch))
        else:
            self._inputs.put_nowait(DrafterOpened(message.epoch))

    def _request_draft(self, message: Propose) -> None:
        try:
            self._drafter.send(message)
        except SpecdecError:
            self._inputs.put_nowait(DrafterLost(message.epoch))
            return
        if message.num_draft_tokens:
            late = DraftLate(message.epoch, message.base_len + len(message.tokens))
            self._await(late, self._peers.draft_deadline_s)

    def _request_verify(self, message: Extend) -> None:
        try:
            self._target.send(message)
        except SpecdecError as error:
            self._inputs.put_nowait(TargetLost(message.epoch, error))
            return
        timeout_s = self._peers.answer_timeout_s
        silent = PeerUnavailableError(f"the target was silent for {timeout_s:g} s")
        self._await(TargetLost(message.epoch, silent), timeout_s)

    def _await(self, otherwise: Input, timeout_s: float) -> None:
        """Input ``otherwise`` unless another answer is awaited before."""
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(
            timeout_s, self._inputs.put_nowait, otherwise
        )

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _spawn(self, work: Coroutine[None, None, None], otherwise: Input) -> None:
        """Run work that gives an input; a bug in it gives ``otherwise``, so that the session never waits for nothing."""

        def settle(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled() and (error := task.exception()):
                logger.error("session %s: a bug", self._spec.session_id, exc_info=error)
                self._inputs.put_nowait(otherwise)

        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(settle)

    def _let_go(self) -> None:
        """Close the session at both peers, whatever ended the run. Idempotent."""
        self._stop_timer()
        for task in self._tasks:
            task.cancel()
        self._target.release()
        self._drafter.release()
