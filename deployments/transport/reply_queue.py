"""Replies that wait to be written to one coordinator."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from specdec_core.errors import OverloadedError
from specdec_core.messages import Verified

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdec_core.errors import SpecdecError
    from specdec_core.messages import RoleReply

MAX_UNREAD = 16384
MAX_PER_FRAME = 256  # keeps a frame of the largest sparse drafts well below the message limit


class ReplyQueue:
    """Bounded; used from the event loop only. A reader that falls too far behind ends the stream."""

    def __init__(self, max_unread: int = MAX_UNREAD) -> None:
        self._max_unread = max_unread
        self._replies: list[RoleReply] = []
        self._changed = asyncio.Event()
        self._ended = False
        self._error: SpecdecError | None = None

    def put(self, replies: Sequence[RoleReply]) -> None:
        """Queue replies; dropped once the stream has ended."""
        if self._ended:
            return
        if len(self._replies) + len(replies) > self._max_unread:
            self.end(OverloadedError(f"more than {self._max_unread} replies are unread"))
            return
        self._replies.extend(replies)
        self._changed.set()

    def end(self, error: SpecdecError | None = None) -> None:
        """End the stream, at once if for an ``error``; only the first call counts."""
        if not self._ended:
            self._ended, self._error = True, error
            self._changed.set()

    async def next_batch(self) -> list[RoleReply]:
        """What is ready now, once anything is; empty when the stream has ended.

        Raises:
            SpecdecError: what the stream ended for.
        """
        await self._changed.wait()
        if self._error is not None:
            raise self._error
        batch = self._replies[: _num_in_frame(self._replies)]
        del self._replies[: len(batch)]
        if not self._replies and not self._ended:
            self._changed.clear()
        return batch


def _num_in_frame(replies: Sequence[RoleReply]) -> int:
    """How many go into the next frame; of those that tell of a whole prompt, which are large, one at most."""
    large = [
        index
        for index, reply in enumerate(replies[:MAX_PER_FRAME])
        if isinstance(reply, Verified) and reply.evidence.prompt_logprobs
    ]
    return large[1] if len(large) > 1 else MAX_PER_FRAME
