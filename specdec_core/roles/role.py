"""What drives a role needs to know of it; the in-process engine and the step loop of a replica use nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from specdec_core.messages import RoleReply

Message_contra = TypeVar("Message_contra", contravariant=True)


class Role(Protocol[Message_contra]):
    """A target or a drafter with all its sessions; used from one thread."""

    @property
    def has_work(self) -> bool:
        """Whether ``step`` would do something."""
        ...

    def submit(self, message: Message_contra) -> None:
        """Take a message in; cheap. What cannot be taken is answered by the next ``step`` with ``Failed``."""
        ...

    def step(self) -> list[RoleReply]:
        """One batched forward over every session that waits; the replies that became ready."""
        ...
