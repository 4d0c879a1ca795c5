"""Runs a role on a thread of its own, so that the event loop never computes."""

from __future__ import annotations

import asyncio
import logging
import threading
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from specdec_core.errors import DeadlineError, InvariantError, OverloadedError
from specdec_core.messages import Close, Extend, Failed, Open, Propose

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specdec_core.messages import RoleReply
    from specdec_core.roles.role import Role

logger = logging.getLogger(__name__)

MessageT = TypeVar("MessageT", bound=Open | Extend | Propose | Close)
MAX_WAITING = 8192


class StepLoop(Generic[MessageT]):
    """Feeds messages to a role and steps it for as long as it has work.

    All messages that came in during one step join the next. Replies reach ``deliver`` on the event loop, those of one step
    together and in order. An exception of the role fails every open session, and the loop goes on.

    Args:
        role: Used from this loop's thread only, from ``start`` on.
        name: Names the thread.
        max_waiting: The most messages that may wait for the running step to end.
    """

    def __init__(
        self, role: Role[MessageT | Close], *, name: str, max_waiting: int = MAX_WAITING
    ) -> None:
        self._role = role
        self._max_waiting = max_waiting
        self._name = name
        self._thread: threading.Thread | None = None
        self._wake = threading.Condition()
        self._waiting: list[MessageT | Close] = []  # guarded by _wake
        self._stopping = False  # guarded by _wake
        self._open: dict[str, tuple[int, int]] = {}  # session → (epoch, base_len last asked for)

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self, deliver: Callable[[list[RoleReply]], None]) -> None:
        """Start the thread; ``deliver`` will be called on the running event loop."""
        run = partial(self._run, asyncio.get_running_loop(), deliver)
        self._thread = threading.Thread(target=run, name=self._name, daemon=True)
        self._thread.start()

    def submit(self, messages: Sequence[MessageT | Close]) -> None:
        """Hand over messages that arrived together; they join the same step.

        Raises:
            OverloadedError: if too many wait already; none was taken.
        """
        with self._wake:
            if len(self._waiting) + len(messages) > self._max_waiting:
                raise OverloadedError(f"{len(self._waiting)} messages wait for the running step")
            self._waiting.extend(messages)
            self._wake.notify()

    def submit_closes(self, closes: Sequence[Close]) -> None:
        """Hand over closes; these are always taken, since they free memory."""
        with self._wake:
            self._waiting.extend(closes)
            self._wake.notify()

    async def close(self, timeout_s: float) -> None:
        """Stop after the running step and wait for the thread.

        Raises:
            DeadlineError: if the step outlasts ``timeout_s``; the thread ends when it does.
        """
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread is None:
            return
        await asyncio.to_thread(self._thread.join, timeout_s)
        if self._thread.is_alive():
            raise DeadlineError(f"a step is still running after {timeout_s:g} s")

    def _run(
        self, loop: asyncio.AbstractEventLoop, deliver: Callable[[list[RoleReply]], None]
    ) -> None:
        has_work = False
        while (messages := self._take(has_work=has_work)) is not None:
            try:
                replies = self._turn(messages)
                has_work = self._role.has_work
            except Exception:
                logger.exception("the step failed; failing %d open sessions", len(self._open))
                replies = self._fail_all()
                has_work = False  # a broken role must not spin
            if loop.is_closed():
                return  # the process is going down without close()
            if replies:
                loop.call_soon_threadsafe(deliver, replies)

    def _take(self, *, has_work: bool) -> list[MessageT | Close] | None:
        """What came in since; waits for something to do. None when it is time to stop."""
        with self._wake:
            self._wake.wait_for(lambda: self._waiting or self._stopping or has_work)
            messages, self._waiting = self._waiting, []
            return None if self._stopping else messages

    def _turn(self, messages: list[MessageT | Close]) -> list[RoleReply]:
        for message in messages:
            self._note(message)
        for message in messages:
            self._role.submit(message)
        replies = self._role.step() if self._role.has_work else []
        for reply in replies:
            if isinstance(reply, Failed):
                self._forget(reply.session_id, reply.epoch)
        return replies

    def _note(self, message: MessageT | Close) -> None:
        match message:
            case Open(session_id, epoch):
                self._open[session_id] = (epoch, 0)
            case Extend(session_id, epoch, base_len) | Propose(session_id, epoch, base_len):
                if self._open.get(session_id, (None, 0))[0] == epoch:
                    self._open[session_id] = (epoch, base_len)
            case Close(session_id, epoch):
                self._forget(session_id, epoch)

    def _forget(self, session_id: str, epoch: int) -> None:
        if self._open.get(session_id, (None, 0))[0] == epoch:
            del self._open[session_id]

    def _fail_all(self) -> list[RoleReply]:
        sessions, self._open = self._open, {}
        for session_id, (epoch, _) in sessions.items():
            try:
                self._role.submit(Close(session_id, epoch))
            except Exception:
                logger.exception("session %s could not be closed", session_id)
        error = InvariantError("the model step failed")
        return [
            Failed(session_id, epoch, base_len, error)
            for session_id, (epoch, base_len) in sessions.items()
        ]
