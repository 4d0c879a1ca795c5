"""What a draft-length policy is, and the limits that no policy can lift."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class RoundObservation:
    """What the last round showed; before the first round, and after one without a draft, it is empty."""

    num_draft_tokens: int = 0
    num_accepted: int = 0


@dataclass(frozen=True, slots=True)
class DraftLengthState:
    """What a policy remembers between rounds; opaque to the session that carries it."""


class DraftLengthPolicy(Protocol):
    """Chooses the next draft length as a pure function, so that a session can be replayed."""

    def initial_state(self) -> DraftLengthState:
        """What is remembered before the first round."""
        ...

    def choose(
        self, state: DraftLengthState, observation: RoundObservation, /
    ) -> tuple[int, DraftLengthState]:
        """The number of tokens to draft next, not negative, and what to remember; called once a round."""
        ...


def room(num_draft_tokens: int, *, output_left: int, context_left: int) -> int:
    """``num_draft_tokens`` clipped to what can still be committed; never negative.

    Every round commits one token of the target's own behind the accepted ones, so a draft that alone fills what is left would
    waste its last token.

    Args:
        num_draft_tokens: Tokens that the policy wants.
        output_left: Tokens that the request may still receive.
        context_left: Tokens that still fit behind the committed ones in the target's context.
    """
    return max(0, min(num_draft_tokens, output_left - 1, context_left - 1))
