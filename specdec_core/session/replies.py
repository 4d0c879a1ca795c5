"""What a peer's reply is to a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec_core.messages import Failed
from specdec_core.session.events import DrafterLost, TargetLost

if TYPE_CHECKING:
    from specdec_core.messages import RoleReply
    from specdec_core.session.events import Input


def from_target(reply: RoleReply) -> Input:
    """The session input that a target's reply is."""
    return TargetLost(reply.epoch, reply.error) if isinstance(reply, Failed) else reply


def from_drafter(reply: RoleReply) -> Input:
    """The session input that a drafter's reply is."""
    return DrafterLost(reply.epoch) if isinstance(reply, Failed) else reply
