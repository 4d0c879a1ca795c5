"""What goes into the next step: continuous batching with chunked prefill under a token budget.

Chunked prefill beside running decodes follows Sarathi-Serve (Agrawal et al., 2403.02310): a long prompt is cut into pieces that
fill what the running sessions leave of the budget, so it never stalls them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdec_core.errors import InvalidArgumentError, InvariantError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_PREFILL_SHARE_DIVISOR = 4  # waiting prefills are kept at least a quarter of the budget


@dataclass(frozen=True, slots=True)
class Work:
    """One session waiting for a step at the target."""

    session_id: str
    num_tokens: int  # still to be forwarded: the rest of the prefix, then the draft; at least one
    num_tail: int  # the last of them, which need logits rows and go in one step together

    def __post_init__(self) -> None:
        if not (0 <= self.num_tail <= self.num_tokens and self.num_tokens > 0):
            raise InvariantError(
                f"session {self.session_id} waits with a tail of {self.num_tail} in {self.num_tokens} tokens"
            )

    @property
    def is_prefill(self) -> bool:
        """Whether tokens precede the tail; these can be cut into chunks."""
        return self.num_tokens > self.num_tail


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one session forwards in a step: the next ``num_tokens`` of its waiting ones."""

    session_id: str
    num_tokens: int
    is_last: bool  # the session's work is complete with this chunk


def plan_step(waiting: Sequence[Work], token_budget: int) -> tuple[Chunk, ...]:
    """Choose the chunks of the next step, at most one per session.

    Sessions that only verify go first, oldest first, but leave a quarter of the budget (rounded up) to the prefills that wait; those
    share what is left, oldest first. A tail is never split. Hence:

    * The chunks hold at most ``token_budget`` tokens, unless the oldest session of all has a longer tail: it then goes alone.
    * The oldest session of all always gets a chunk, so every step makes progress and nobody waits for ever.
    * A session whose tail fits into three quarters of the budget, and that only verifies, waits for at most as many steps as there
      are older sessions. Where all tails fit, the oldest prefill moves by at least a quarter of the budget a step, up to its tail.

    Args:
        waiting: Oldest first. A session that is not complete after its chunk keeps its place.
        token_budget: Tokens that a step should hold at most, positive.

    Raises:
        InvalidArgumentError: if the budget is not positive.
    """
    if token_budget < 1:
        raise InvalidArgumentError("token_budget", f"must be positive, got {token_budget}")
    prefills = [work for work in waiting if work.is_prefill]
    kept = min(
        -(-token_budget // _PREFILL_SHARE_DIVISOR), sum(work.num_tokens for work in prefills)
    )
    verifies = _plan_verifies(waiting, token_budget - kept)
    room = token_budget - sum(chunk.num_tokens for chunk in verifies)
    return (*verifies, *_plan_prefills(prefills, room))


def _plan_verifies(waiting: Iterable[Work], room: int) -> list[Chunk]:
    """Whole tails that fit, whatever the size of the very oldest one."""
    chunks = []
    for num_older, work in enumerate(waiting):
        if not work.is_prefill and (work.num_tokens <= room or num_older == 0):
            chunks.append(Chunk(work.session_id, work.num_tokens, is_last=True))
            room -= work.num_tokens
    return chunks


def _plan_prefills(prefills: Iterable[Work], room: int) -> list[Chunk]:
    chunks = []
    for work in prefills:
        if room <= 0:
            break
        fits = work.num_tokens <= room
        num_tokens = work.num_tokens if fits else min(room, work.num_tokens - work.num_tail)
        chunks.append(Chunk(work.session_id, num_tokens, is_last=fits))
        room -= num_tokens
    return chunks
