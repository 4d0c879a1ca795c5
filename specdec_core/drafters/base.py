"""What a drafter is: committed tokens in, guessed tokens out, many sessions at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdec_core.params import SamplingParams
    from specdec_core.types import AcceptanceRule, NoiseKey, Proposal


@dataclass(frozen=True, slots=True)
class DraftContext:
    """One session's wish for a draft."""

    session_id: str
    tokens: Sequence[int]  # every committed token, prompt included; must not be changed
    prompt_len: int
    num_draft_tokens: int  # 0 only brings the drafter's own state up to date
    params: SamplingParams
    rule: AcceptanceRule
    noise: NoiseKey  # where the rule tests the draft's law, draws are made with ``round_key(noise, len(tokens))``


@dataclass(frozen=True, slots=True)
class Draft:
    """Guessed tokens, at most ``num_draft_tokens`` of them, and the law they came from."""

    tokens: tuple[int, ...]
    proposal: Proposal


class Drafter(Protocol):
    """Guesses; may be wrong at will, since only the target decides.

    State a drafter keeps per session is a cache: it is rebuilt from ``tokens`` whenever it does not match them, so a drafter
    needs no word of what was accepted.
    """

    def propose(self, contexts: Sequence[DraftContext]) -> list[Draft]:
        """One draft per context, in order. No two contexts are of the same session."""
        ...

    def forget(self, session_id: str) -> None:
        """Free whatever is held for a session; unknown ids are ignored."""
        ...
