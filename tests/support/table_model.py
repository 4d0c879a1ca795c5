"""A language model small enough to reason about: logits are a seeded function of the whole token history.

It implements ``CausalModel`` for the engine and the plain ``Logits`` function for ``specdec_core.reference`` from one formula: a decayed
sum of token vectors, times an output matrix, in float64.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from specdec_core.errors import InvariantError, OverloadedError
from specdec_core.models.forward import ModelSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdec_core.models.forward import Segment

_WIDTH = 6
_DECAY = 0.6


@dataclass(slots=True)
class TableKv:
    """Keeps the tokens themselves; a rollback bug shows as wrong logits."""

    model: TableModel
    tokens: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        return len(self.tokens)

    def truncate(self, length: int) -> None:
        if not 0 <= length <= len(self.tokens):
            raise InvariantError(f"cannot truncate {len(self.tokens)} tokens to {length}")
        del self.tokens[length:]

    def release(self) -> None:
        self.tokens.clear()
        self.model.live.discard(id(self))


class TableModel:
    def __init__(
        self,
        seed: int,
        *,
        vocab_size: int = 12,
        max_context: int = 256,
        eos: tuple[int, ...] = (),
        scale: float = 2.0,
        kv_tokens: int = 10**6,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._vectors = torch.randn(vocab_size, _WIDTH, generator=generator, dtype=torch.float64)
        self._output = scale * torch.randn(
            _WIDTH, vocab_size, generator=generator, dtype=torch.float64
        )
        self._decay = _DECAY ** torch.arange(max_context - 1, -1, -1, dtype=torch.float64)
        self._kv_tokens = kv_tokens
        self.spec = ModelSpec("table", vocab_size, max_context, eos, 0)
        self.live: set[int] = set()
        self.batch_sizes: list[int] = []

    def new_sequence(self) -> TableKv:
        kv = TableKv(self)
        self.live.add(id(kv))
        return kv

    def forward(self, segments: Sequence[Segment]) -> torch.Tensor:
        if sum(segment.kv.length + len(segment.tokens) for segment in segments) > self._kv_tokens:
            raise OverloadedError("no room in the KV memory")
        self.batch_sizes.append(len(segments))
        rows = []
        for segment in segments:
            kv = segment.kv
            assert isinstance(kv, TableKv)
            kv.tokens.extend(segment.tokens)
            ends = range(len(kv.tokens) - segment.num_logits + 1, len(kv.tokens) + 1)
            rows += [self._row(kv.tokens[:end]) for end in ends]
        return torch.stack(rows).float() if rows else torch.empty(0, self.spec.vocab_size)

    def logits(self, tokens: Sequence[int]) -> list[float]:
        """What ``forward`` gives after these tokens, for the reference."""
        return self._row(tokens).float().tolist()

    def perturbed(self, seed: int, noise: float) -> TableModel:
        """A drafter that agrees with this model more or less."""
        other = TableModel(seed, vocab_size=self.spec.vocab_size, max_context=self.spec.max_context)
        other._vectors = self._vectors + noise * other._vectors
        other._output = self._output + noise * other._output
        return other

    def _row(self, tokens: Sequence[int]) -> torch.Tensor:
        weights = self._decay[len(self._decay) - len(tokens) :]
        return (weights @ self._vectors[list(tokens)]) @ self._output
