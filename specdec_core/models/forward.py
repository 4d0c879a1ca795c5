"""What a model is to the rest of the core: a ragged forward over sessions whose KV can be truncated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Facts of a loaded model that others need."""

    name: str
    vocab_size: int  # width of a logits row, padding included
    max_context: int  # tokens of prompt and output together
    eos_token_ids: tuple[int, ...]
    num_parameters: int


class SequenceKv(Protocol):
    """The keys and values of one session. Positions are 0..length-1."""

    @property
    def length(self) -> int:
        """Tokens whose keys and values are held."""
        ...

    def truncate(self, length: int) -> None:
        """Forget every position from ``length`` on; that is the whole of rollback.

        Raises:
            InvariantError: if ``length`` is above the current one or negative.
        """
        ...

    def release(self) -> None:
        """Give all memory back; the sequence must not be used again. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class Segment:
    """The next tokens of one session in a ragged batch; their positions start at ``kv.length``."""

    kv: SequenceKv
    tokens: Sequence[int]  # at least one
    num_logits: int  # rows of logits wanted, for the last ``num_logits`` of ``tokens``; 0 for a prefill chunk


class CausalModel(Protocol):
    """A causal LM on one device, used from one thread."""

    @property
    def spec(self) -> ModelSpec: ...

    def new_sequence(self) -> SequenceKv:
        """An empty sequence in this model's KV memory."""
        ...

    def forward(
        self, segments: Sequence[Segment]
    ) -> torch.Tensor:  # [sum(num_logits), vocab_size] float32
        """One batched forward; appends every segment's tokens to its KV.

        No two segments may share a ``kv``. Rows come in the order of the segments.

        Raises:
            OverloadedError: if the KV memory cannot hold the new tokens; no KV has changed then.
        """
        ...
