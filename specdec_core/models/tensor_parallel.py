"""What a runner needs to know of the ranks that share its weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class ProcessGroup(Protocol):
    """The ranks that each hold a shard of every layer and step together."""

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of ``tensor`` over all ranks; may reuse its memory."""
        ...


@dataclass(frozen=True, slots=True)
class SingleProcess:
    """A group of one: nothing to exchange."""

    rank: int = 0
    world_size: int = 1

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor
