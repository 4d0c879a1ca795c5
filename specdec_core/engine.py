"""The in-process driver: runs the effects of many sessions on a target and a drafter in this process.

It is the quickstart, and the oracle of the distributed path: the coordinator runs the same effects over gRPC.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

from specdec_core.session.events import (
    Abort,
    DrafterOpened,
    Emit,
    EmitPrompt,
    Finish,
    OpenDrafter,
    OpenTarget,
    Release,
    RequestDraft,
    RequestVerify,
    TargetOpened,
)
from specdec_core.session.replies import from_drafter, from_target
from specdec_core.session.session import advance, start
from specdec_core.types import FinishReason

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from specdec_core.messages import DrafterMessage, Open, TargetMessage
    from specdec_core.roles.role import Role
    from specdec_core.session.events import Effect, Input, Output
    from specdec_core.session.state import SessionSpec, SessionState


@dataclass(frozen=True, slots=True)
class Delivered:
    """Something for a client, and the session as it stood then."""

    state: SessionState
    effect: Output


class Engine:
    """Sessions over one target and at most one drafter, stepped by the caller."""

    def __init__(self, target: Role[TargetMessage], drafter: Role[DrafterMessage] | None) -> None:
        """Drive these roles; nobody else may submit to them."""
        self._target = target
        self._drafter = drafter
        self._sessions: dict[str, SessionState] = {}
        self._delivered: list[Delivered] = []

    @property
    def num_sessions(self) -> int:
        return len(self._sessions)

    def start(self, spec: SessionSpec) -> None:
        """Begin a session; its id must be new."""
        state, effects = start(spec)
        self._run(state, effects)

    def cancel(self, session_id: str) -> None:
        """End a session at once; unknown ids are ignored."""
        if session_id in self._sessions:
            self._feed(session_id, Abort(FinishReason.CANCELLED))

    def step(self) -> list[Delivered]:
        """One drafter step, then one target step; what became deliverable, in order."""
        if self._drafter:
            for reply in self._drafter.step():
                self._feed(reply.session_id, from_drafter(reply))
        for reply in self._target.step():
            self._feed(reply.session_id, from_target(reply))
        delivered, self._delivered = self._delivered, []
        return delivered

    def run(self, specs: Sequence[SessionSpec]) -> Iterator[Delivered]:
        """Start these sessions and step until all sessions are over."""
        for spec in specs:
            self.start(spec)
        while self._sessions:
            yield from self.step()

    def _feed(self, session_id: str, event: Input) -> None:
        if session_id in self._sessions:
            self._run(*advance(self._sessions[session_id], event))

    def _run(self, state: SessionState, effects: Sequence[Effect]) -> None:
        """Run effects, and the effects of the inputs they cause at once."""
        pending = deque(effects)
        while pending:
            event = self._execute(state, pending.popleft())
            if event is not None:
                state, caused = advance(state, event)
                pending.extend(caused)
        self._sessions[state.spec.session_id] = state
        if state.finish:
            del self._sessions[state.spec.session_id]

    def _execute(self, state: SessionState, effect: Effect) -> Input | None:
        match effect:
            case OpenTarget(message=message):
                self._target.submit(message)
                return TargetOpened(message.epoch)
            case OpenDrafter(message=message):
                return self._open_drafter(message)
            case RequestVerify(message=message):
                self._target.submit(message)
            case RequestDraft(message=message):
                self._to_drafter(message)
            case Release(target=target, drafter=drafter):
                if target:
                    self._target.submit(target)
                if drafter:
                    self._to_drafter(drafter)
            case EmitPrompt() | Emit() | Finish():
                self._delivered.append(Delivered(state, effect))
            case _ as unreachable:
                assert_never(unreachable)
        return None

    def _open_drafter(self, message: Open) -> Input | None:
        if self._drafter is None:
            return None
        self._drafter.submit(message)
        return DrafterOpened(message.epoch)

    def _to_drafter(self, message: DrafterMessage) -> None:
        if self._drafter:
            self._drafter.submit(message)
