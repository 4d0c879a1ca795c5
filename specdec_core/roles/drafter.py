"""The drafter role: keeps what its sessions have committed, and lets the drafter guess for all that wait in one batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specdec_core.drafters.base import Draft, DraftContext
from specdec_core.errors import SpecdecError, StaleMessageError
from specdec_core.messages import Close, Failed, Open, Propose, Proposed
from specdec_core.roles.session_table import SessionTable
from specdec_core.types import DraftBlock, OneHot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdec_core.drafters.base import Drafter
    from specdec_core.messages import DrafterMessage, RoleReply


@dataclass(frozen=True, slots=True)
class _Session:
    opened: Open
    tokens: list[int] = field(default_factory=list)  # committed, as far as told


class DrafterRole:
    """Guesses; can change nothing but speed."""

    def __init__(self, drafter: Drafter, *, max_sessions: int) -> None:
        """Serve ``drafter`` to at most ``max_sessions`` sessions."""
        self._drafter = drafter
        self._sessions: SessionTable[_Session] = SessionTable(
            max_sessions, lambda held: drafter.forget(held.opened.session_id)
        )
        self._waiting: dict[str, Propose] = {}
        self._failures: list[RoleReply] = []

    @property
    def num_sessions(self) -> int:
        return len(self._sessions)

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._failures)

    def submit(self, message: DrafterMessage) -> None:
        try:
            match message:
                case Open():
                    self._sessions.open(message, lambda: _Session(message))
                    self._waiting.pop(message.session_id, None)
                case Propose():
                    self._take(message)
                case Close():
                    self._close(message.session_id, message.epoch)
        except SpecdecError as error:
            self._failures.append(Failed(message.session_id, message.epoch, 0, error))
            self._close(message.session_id, message.epoch)

    def step(self) -> list[RoleReply]:
        waiting, self._waiting = self._waiting, {}
        failures, self._failures = self._failures, []
        drafts = self._propose([self._context(wish) for wish in waiting.values()])
        proposed = [
            _proposed(wish, draft)
            for wish, draft in zip(waiting.values(), drafts, strict=True)
            if wish.num_draft_tokens
        ]
        return [*failures, *proposed]

    def _propose(self, contexts: Sequence[DraftContext]) -> list[Draft]:
        """One draft each; where one session breaks the drafter, it alone goes without."""
        try:
            return self._drafter.propose(contexts) if contexts else []
        except SpecdecError:
            if len(contexts) == 1:
                return [Draft((), OneHot())]
        return [draft for context in contexts for draft in self._propose([context])]

    def _take(self, wish: Propose) -> None:
        held = self._sessions.get(wish.session_id, wish.epoch)
        if wish.base_len > len(held.tokens):
            raise StaleMessageError(
                f"base_len {wish.base_len} is beyond the {len(held.tokens)} tokens held"
            )
        held.tokens[wish.base_len :] = wish.tokens
        self._waiting[wish.session_id] = wish

    def _context(self, wish: Propose) -> DraftContext:
        held = self._sessions.get(wish.session_id, wish.epoch)
        opened = held.opened
        return DraftContext(
            session_id=wish.session_id,
            tokens=held.tokens,
            prompt_len=opened.prompt_len,
            num_draft_tokens=wish.num_draft_tokens,
            params=opened.params,
            rule=opened.rule,
            noise=opened.noise,
        )

    def _close(self, session_id: str, epoch: int) -> None:
        self._sessions.close(session_id, epoch)
        wish = self._waiting.get(session_id)
        if wish and wish.epoch <= epoch:
            del self._waiting[session_id]


def _proposed(wish: Propose, draft: Draft) -> Proposed:
    base_len = wish.base_len + len(wish.tokens)
    return Proposed(wish.session_id, DraftBlock(base_len, wish.epoch, draft.tokens, draft.proposal))
