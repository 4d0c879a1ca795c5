"""Moved to ``specdec_core.messages``."""

from specdec_core.messages import (
    Close,
    DrafterMessage,
    Extend,
    Failed,
    Open,
    Propose,
    Proposed,
    RoleReply,
    TargetMessage,
    Verified,
)

__all__ = [
    "Close",
    "DrafterMessage",
    "Extend",
    "Failed",
    "Open",
    "Propose",
    "Proposed",
    "RoleReply",
    "TargetMessage",
    "Verified",
]
