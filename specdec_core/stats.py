"""Counters of what speculation did; counts only, so that they add up over sessions, replicas and time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise, zip_longest

from specdec_core.errors import InvariantError


class FallbackReason(StrEnum):
    """Why a round that wanted a draft went without one."""

    DRAFTER_UNAVAILABLE = "drafter_unavailable"  # none is open
    DRAFTER_LOST = "drafter_lost"  # it went while the draft was awaited
    DEADLINE = "deadline"  # the draft came too late
    NO_DRAFT = "no_draft"  # the drafter had nothing to propose
    INVALID_DRAFT = "invalid_draft"  # too long, or tokens outside the vocabulary


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """Totals of one session, or of many added together.

    Accepted tokens are counted as verified, before a stop string or a length limit cuts the round; committed ones after it.
    """

    num_rounds: int = 0
    num_drafts: int = 0  # rounds with a non-empty draft
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_tokens_per_pos: tuple[int, ...] = ()  # [longest draft so far]
    num_committed_tokens: int = 0
    fallbacks: tuple[tuple[FallbackReason, int], ...] = ()  # sorted, counts positive
    num_stale_messages: int = 0

    @property
    def acceptance_rate(self) -> float:
        """Accepted over drafted tokens; 0.0 when none was drafted."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    @property
    def acceptance_length(self) -> float:
        """Committed tokens a round, bonus and recovered ones included; 0.0 when there was no round."""
        return self.num_committed_tokens / self.num_rounds if self.num_rounds else 0.0

    def with_round(
        self, num_draft_tokens: int, num_accepted: int, num_committed: int
    ) -> SpeculationStats:
        """The totals with one more round.

        Raises:
            InvariantError: if it cannot have happened: accepted > drafted, or committed > accepted + 1.
        """
        if not (0 <= num_accepted <= num_draft_tokens and 0 <= num_committed <= num_accepted + 1):
            raise InvariantError(
                f"a round cannot accept {num_accepted} of {num_draft_tokens} tokens and commit {num_committed}"
            )
        accepted_per_pos = (1,) * num_accepted + (0,) * (num_draft_tokens - num_accepted)
        return replace(
            self,
            num_rounds=self.num_rounds + 1,
            num_drafts=self.num_drafts + (num_draft_tokens > 0),
            num_draft_tokens=self.num_draft_tokens + num_draft_tokens,
            num_accepted_tokens=self.num_accepted_tokens + num_accepted,
            num_accepted_tokens_per_pos=_sums(self.num_accepted_tokens_per_pos, accepted_per_pos),
            num_committed_tokens=self.num_committed_tokens + num_committed,
        )

    def with_fallback(self, reason: FallbackReason) -> SpeculationStats:
        """The totals with one more round that had to do without the draft it wanted."""
        return replace(self, fallbacks=_merged(self.fallbacks, ((reason, 1),)))

    def with_stale(self) -> SpeculationStats:
        """The totals with one more message dropped for its epoch or base length."""
        return replace(self, num_stale_messages=self.num_stale_messages + 1)

    def __add__(self, other: SpeculationStats) -> SpeculationStats:
        return SpeculationStats(
            num_rounds=self.num_rounds + other.num_rounds,
            num_drafts=self.num_drafts + other.num_drafts,
            num_draft_tokens=self.num_draft_tokens + other.num_draft_tokens,
            num_accepted_tokens=self.num_accepted_tokens + other.num_accepted_tokens,
            num_accepted_tokens_per_pos=_sums(
                self.num_accepted_tokens_per_pos, other.num_accepted_tokens_per_pos
            ),
            num_committed_tokens=self.num_committed_tokens + other.num_committed_tokens,
            fallbacks=_merged(self.fallbacks, other.fallbacks),
            num_stale_messages=self.num_stale_messages + other.num_stale_messages,
        )

    def check_integrity(self) -> None:
        """Raise InvariantError unless the counts can all come from rounds that happened."""
        per_pos = self.num_accepted_tokens_per_pos
        laws = {
            "no count is negative": min(self.num_rounds, self.num_stale_messages, *per_pos, 0) == 0,
            "drafts <= rounds": 0 <= self.num_drafts <= self.num_rounds,
            "drafts <= drafted": self.num_drafts <= self.num_draft_tokens,
            "accepted <= drafted": 0 <= self.num_accepted_tokens <= self.num_draft_tokens,
            "accepted per position never increases": all(a >= b for a, b in pairwise(per_pos)),
            "accepted at the first position <= drafts": max(per_pos, default=0) <= self.num_drafts,
            "accepted per position sums to accepted": sum(per_pos) == self.num_accepted_tokens,
            "committed <= accepted + rounds": (
                0 <= self.num_committed_tokens <= self.num_accepted_tokens + self.num_rounds
            ),
            "fallback counts are positive": all(count > 0 for _, count in self.fallbacks),
        }
        broken = [law for law, holds in laws.items() if not holds]
        if broken:
            raise InvariantError(f"{self} breaks: {', '.join(broken)}")


def _sums(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip_longest(left, right, fillvalue=0))


def _merged(
    left: tuple[tuple[FallbackReason, int], ...], right: tuple[tuple[FallbackReason, int], ...]
) -> tuple[tuple[FallbackReason, int], ...]:
    counts = Counter(dict(left))
    counts.update(dict(right))
    return tuple(sorted(counts.items()))
