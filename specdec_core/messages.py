"""What goes in and out of the two data-plane roles; the wire carries exactly these.

Order within a session is kept by whoever carries the messages. Every message and reply is stamped (session_id, epoch, base_len);
what does not fit the receiver's state is answered with ``Failed`` holding a ``StaleMessageError``, never applied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdec_core.errors import SpecdecError
    from specdec_core.params import SamplingParams
    from specdec_core.types import AcceptanceRule, DraftBlock, Evidence, NoiseKey


@dataclass(frozen=True, slots=True)
class Open:
    """Begin a session at a peer, or begin it again under a higher epoch (which drops what was held)."""

    session_id: str
    epoch: int
    prompt_len: int
    params: SamplingParams  # stop_token_ids already hold the model's end-of-sequence ids
    rule: AcceptanceRule
    noise: NoiseKey


@dataclass(frozen=True, slots=True)
class Extend:
    """Truncate to ``base_len`` tokens, append ``tokens`` (committed), then verify ``draft`` behind them."""

    session_id: str
    epoch: int
    base_len: int
    tokens: tuple[
        int, ...
    ]  # at least one: the last is the committed token whose KV no round has written yet
    draft: DraftBlock  # its base_len is base_len + len(tokens); may be empty


@dataclass(frozen=True, slots=True)
class Propose:
    """Truncate to ``base_len`` committed tokens, append ``tokens``, then draft.

    With ``num_draft_tokens`` 0 the drafter only catches up, and does not answer.
    """

    session_id: str
    epoch: int
    base_len: int
    tokens: tuple[int, ...]
    num_draft_tokens: int


@dataclass(frozen=True, slots=True)
class Close:
    """End a session and free what it holds. Never answered; idempotent."""

    session_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Verified:
    """Answer to ``Extend``."""

    session_id: str
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class Proposed:
    """Answer to ``Propose``."""

    session_id: str
    block: DraftBlock


@dataclass(frozen=True, slots=True)
class Failed:
    """Answer to anything that could not be done; the session at this peer is then closed."""

    session_id: str
    epoch: int
    base_len: int
    error: SpecdecError


TargetMessage = Open | Extend | Close
DrafterMessage = Open | Propose | Close
RoleReply = Verified | Proposed | Failed
