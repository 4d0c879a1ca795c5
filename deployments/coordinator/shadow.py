"""The shadow check: a fraction of finished generations is re-scored by the target, and what it does not stand by is counted.

Checks run one after another, each in a session of its own, with one message under way; they wait for nothing that a client waits
for, and are skipped when clients take more than half of a target's sessions or the target is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from deployments.coordinator.peer_link import PeerLink
from deployments.exactness.rescore import Mismatch, Rescore
from specdec_core.errors import DeadlineError, ProtocolError, SpecdecError
from specdec_core.messages import Verified
from specdec_core.types import FinishReason, RatioTest

if TYPE_CHECKING:
    from collections.abc import Callable

    from deployments.coordinator.session_driver import Peers
    from specdec_core.messages import Extend, Open, RoleReply
    from specdec_core.session.state import SessionState
    from specdec_core.types import Evidence

logger = logging.getLogger(__name__)

_MAX_WAITING = 4
_LOG_PERIOD_S = 60.0
_RANDOM_BITS = 53


class Counter(Protocol):
    """Something that counts up."""

    def inc(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ShadowCounters:
    """What became of the generations that were to be checked."""

    checked: Counter
    mismatch: Counter  # of those checked
    skipped: Counter


@dataclass(frozen=True, slots=True)
class ShadowSettings:
    """How many are checked, and where chance, ids and time come from."""

    fraction: float
    max_sessions: int  # of a target
    new_session_id: Callable[[], str]
    random_bits: Callable[[int], int]
    clock: Callable[[], float]  # seconds


class ShadowCheck:
    """Re-scores generations of one coordinator replica."""

    def __init__(self, peers: Peers, settings: ShadowSettings, counters: ShadowCounters) -> None:
        self._peers = peers
        self._settings = settings
        self._counters = counters
        self._waiting: deque[Rescore] = deque()
        self._work: asyncio.Task[None] | None = None
        self._quiet_until = settings.clock()

    def consider(self, state: SessionState, *, num_sessions: int) -> None:
        """Take a finished session in if chance will have it; returns at once and raises nothing.

        Args:
            state: At its end.
            num_sessions: Generations under way in this coordinator.
        """
        if state.finish not in {FinishReason.STOP, FinishReason.LENGTH} or not self._is_chosen():
            return
        is_busy = 2 * num_sessions > self._settings.max_sessions
        if is_busy or len(self._waiting) >= _MAX_WAITING:
            self._counters.skipped.inc()
            return
        session_id = f"shadow-{self._settings.new_session_id()}"
        self._waiting.append(Rescore(session_id, state.spec, state.output))
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._check_waiting())

    async def join(self) -> None:
        """Wait until nothing waits to be checked."""
        if self._work is not None:
            await self._work

    def _is_chosen(self) -> bool:
        chance = self._settings.random_bits(_RANDOM_BITS) * 2.0**-_RANDOM_BITS
        return chance < self._settings.fraction

    async def _check_waiting(self) -> None:
        while self._waiting:
            rescore = self._waiting.popleft()
            try:
                await self._check(rescore)
            except SpecdecError as error:
                self._counters.skipped.inc()
                logger.debug("a shadow check was given up: %s", error)
            except Exception:
                self._counters.skipped.inc()
                logger.exception("a shadow check failed")

    async def _check(self, rescore: Rescore) -> None:
        conversation = _Conversation(rescore.session_id, self._peers)
        try:
            mismatch = await _first_mismatch(rescore, conversation)
            self._counters.checked.inc()
            if mismatch is not None:
                self._counters.mismatch.inc()
                await self._report(rescore, mismatch, conversation)
        finally:
            conversation.end()

    async def _report(
        self, rescore: Rescore, mismatch: Mismatch, conversation: _Conversation
    ) -> None:
        """Log it, unless another was logged within the last minute."""
        if self._settings.clock() < self._quiet_until:
            return
        self._quiet_until = self._settings.clock() + _LOG_PERIOD_S
        logger.warning(
            "shadow check: output position %d of session %s: delivered %d, %s",
            mismatch.position,
            rescore.spec.session_id,
            mismatch.delivered,
            await _explain(rescore, mismatch, conversation),
        )


class _Conversation:
    """A session at a target, one question at a time."""

    def __init__(self, session_id: str, peers: Peers) -> None:
        self._replies: asyncio.Queue[RoleReply] = asyncio.Queue()
        self._timeout_s = peers.answer_timeout_s
        self._link = PeerLink(
            session_id, peers.targets, peers.target_streams, self._replies.put_nowait
        )

    async def open(self, message: Open) -> None:
        """Find a target and begin there."""
        await self._link.open(message)

    def reopen(self, message: Open) -> None:
        """Begin again at the same target, under a higher epoch."""
        self._link.send(message)

    async def ask(self, message: Extend) -> Evidence:
        """The evidence on a message's draft.

        Raises:
            SpecdecError: if the target fails the session, or is silent.
        """
        self._link.send(message)
        try:
            reply = await asyncio.wait_for(self._replies.get(), self._timeout_s)
        except TimeoutError as error:
            raise DeadlineError("the target was silent") from error
        if isinstance(reply, Verified):
            return reply.evidence
        raise ProtocolError(f"no evidence came, but {reply}")

    def end(self) -> None:
        self._link.release()


async def _first_mismatch(rescore: Rescore, conversation: _Conversation) -> Mismatch | None:
    await conversation.open(rescore.opening)
    for extension in rescore.extensions:
        mismatch = rescore.first_mismatch(await conversation.ask(extension))
        if mismatch is not None:
            return mismatch
    return None


async def _explain(rescore: Rescore, mismatch: Mismatch, conversation: _Conversation) -> str:
    """What the target says instead, and, if it can still be asked, how near it was."""
    if mismatch.drawn is None:
        return "which the target gives no probability"
    try:
        margin = await _margin(rescore, mismatch, mismatch.drawn, conversation)
    except SpecdecError:
        return f"the target draws {mismatch.drawn}"
    return f"the target draws {mismatch.drawn} by a margin of {margin:.3g}"


async def _margin(
    rescore: Rescore, mismatch: Mismatch, drawn: int, conversation: _Conversation
) -> float:
    conversation.reopen(rescore.margin_opening)
    logprobs: list[float] = []
    for extension in rescore.margin_extensions(mismatch.position, (mismatch.delivered, drawn)):
        match (await conversation.ask(extension)).outcome:
            case RatioTest(target_logprobs=(logprob,)):
                logprobs.append(logprob)
            case other:
                raise ProtocolError(f"no probability came, but {other}")
    return rescore.margin(mismatch, drawn, logprobs)
