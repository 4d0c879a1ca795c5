"""What a session reacts to and what it asks its driver to do.

Inputs besides these are the peers' answers, ``Proposed`` and ``Verified`` of ``specdec_core.messages``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdec_core.messages import Proposed, Verified

if TYPE_CHECKING:
    from specdec_core.errors import SpecdecError
    from specdec_core.messages import Close, Extend, Open, Propose
    from specdec_core.types import CommittedToken, FinishReason, TokenLogprobs


@dataclass(frozen=True, slots=True)
class TargetOpened:
    """A target holds the session under ``epoch``."""

    epoch: int


@dataclass(frozen=True, slots=True)
class TargetLost:
    """The target failed the session; ``error`` tells whether another may serve it."""

    epoch: int
    error: SpecdecError


@dataclass(frozen=True, slots=True)
class DrafterOpened:
    """A drafter holds the session under ``epoch``."""

    epoch: int


@dataclass(frozen=True, slots=True)
class DrafterLost:
    """The drafter failed the session, or could not be opened."""

    epoch: int


@dataclass(frozen=True, slots=True)
class DraftLate:
    """The draft asked for at ``base_len`` did not come within the round's deadline."""

    epoch: int
    base_len: int


@dataclass(frozen=True, slots=True)
class Abort:
    """End the session from outside: the client gave up (``CANCELLED``) or the driver cannot go on (``ERROR``)."""

    reason: FinishReason
    error: SpecdecError | None = None


Input = (
    TargetOpened
    | TargetLost
    | DrafterOpened
    | DrafterLost
    | DraftLate
    | Abort
    | Proposed
    | Verified
)


@dataclass(frozen=True, slots=True)
class OpenTarget:
    """Find a target, send it ``message``, then answer ``TargetOpened`` or ``TargetLost`` of its epoch."""

    message: Open


@dataclass(frozen=True, slots=True)
class OpenDrafter:
    """Find a drafter, send it ``message``, then answer ``DrafterOpened`` or ``DrafterLost`` of its epoch; may take its time."""

    message: Open


@dataclass(frozen=True, slots=True)
class RequestDraft:
    """Send to the drafter; answer ``Proposed``, ``DraftLate`` or ``DrafterLost`` unless no draft tokens are asked for."""

    message: Propose


@dataclass(frozen=True, slots=True)
class RequestVerify:
    """Send to the target; answer ``Verified`` or ``TargetLost``."""

    message: Extend


@dataclass(frozen=True, slots=True)
class EmitPrompt:
    """Deliver what the target says of the prompt; once, before the first ``Emit``, where it is asked for."""

    logprobs: tuple[TokenLogprobs, ...]  # of each prompt token but the first


@dataclass(frozen=True, slots=True)
class Emit:
    """Deliver what a round committed; ``text`` may be empty while characters or stop strings are incomplete."""

    tokens: tuple[CommittedToken, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Release:
    """Send these to the peers that still hold the session, and free its leases."""

    target: Close | None
    drafter: Close | None


@dataclass(frozen=True, slots=True)
class Finish:
    """The generation is over; nothing is emitted after this."""

    reason: FinishReason
    error: SpecdecError | None


Output = EmitPrompt | Emit | Finish
Effect = OpenTarget | OpenDrafter | RequestDraft | RequestVerify | Release | Output
