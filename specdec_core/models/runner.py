"""Our own forward of the Llama family: fused weights, explicit positions, one packed batch.

Every linear runs once over the rows of all sessions; Python loops over layers, and over sessions only inside attention. The families
that share this forward are Llama, Mistral, Qwen2 (biased queries, keys and values) and Qwen3 (normalised queries and keys).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from specdec_core.models.packing import packed_step
from specdec_core.models.rotary import rotate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdec_core.models.activation import Activation
    from specdec_core.models.attention import AttentionBackend, AttentionRule, StepAttention
    from specdec_core.models.forward import ModelSpec, Segment, SequenceKv
    from specdec_core.models.linear import Linear
    from specdec_core.models.rotary import Rotary
    from specdec_core.models.storage import KvStorage
    from specdec_core.models.tensor_parallel import ProcessGroup


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """Root-mean-square normalisation over the last dimension."""

    weight: torch.Tensor  # [width]
    epsilon: float

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(hidden, self.weight.shape, self.weight, self.epsilon)


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """Qwen3's normalisation of each query and key head before rotation."""

    query: RmsNorm
    key: RmsNorm


@dataclass(frozen=True, slots=True)
class HeadLayout:
    """How a row of the fused projection splits into heads: queries, then keys, then values."""

    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def num_rotated(self) -> int:
        return self.num_heads + self.num_kv_heads


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """One transformer block with its weights fused."""

    index: int
    heads: HeadLayout
    rule: AttentionRule
    attention_norm: RmsNorm
    query_key_value: Linear
    head_norms: HeadNorms | None
    attention_output: Linear
    mlp_norm: RmsNorm
    gate_up: Linear
    activation: Activation
    down: Linear
    group: ProcessGroup

    def __call__(
        self,
        hidden: torch.Tensor,  # [total, hidden_size]
        angles: tuple[torch.Tensor, torch.Tensor],
        attention: StepAttention,
    ) -> torch.Tensor:
        hidden = hidden + self._attention(self.attention_norm(hidden), angles, attention)
        return hidden + self._mlp(self.mlp_norm(hidden))

    def _attention(
        self,
        hidden: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor],
        attention: StepAttention,
    ) -> torch.Tensor:
        heads = self.heads
        projected = self.query_key_value(hidden).view(hidden.shape[0], -1, heads.head_dim)
        rotated = projected[:, : heads.num_rotated]
        if self.head_norms is not None:
            queries = self.head_norms.query(rotated[:, : heads.num_heads])
            keys = self.head_norms.key(rotated[:, heads.num_heads :])
            rotated = torch.cat((queries, keys), dim=1)
        rotated = rotate(rotated, *angles)
        attended = attention.attend(
            self.index,
            rotated[:, : heads.num_heads],
            rotated[:, heads.num_heads :],
            projected[:, heads.num_rotated :],
            self.rule,
        )
        return self.group.all_reduce(self.attention_output(attended))

    def _mlp(self, hidden: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up(hidden).chunk(2, dim=-1)
        return self.group.all_reduce(self.down(self.activation(gate).mul_(up)))


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All that a forward multiplies by."""

    embedding: torch.Tensor  # [vocab_size, hidden_size]
    layers: tuple[DecoderLayer, ...]
    norm: RmsNorm
    head: Linear


class LlamaRunner:
    """A ``CausalModel`` of the Llama family."""

    def __init__(
        self,
        spec: ModelSpec,
        weights: DecoderWeights,
        *,
        rotary: Rotary,
        storage: KvStorage,
        attention: AttentionBackend,
    ) -> None:
        self._spec = spec
        self._weights = weights
        self._rotary = rotary
        self._storage = storage
        self._attention = attention

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    @property
    def storage(self) -> KvStorage:
        return self._storage

    def new_sequence(self) -> SequenceKv:
        return self._storage.new_sequence()

    @torch.inference_mode()
    def forward(self, segments: Sequence[Segment]) -> torch.Tensor:
        weights = self._weights
        with packed_step(
            self._storage,
            segments,
            max_context=self._spec.max_context,
            device=weights.embedding.device,
            attention=self._attention,
        ) as step:
            hidden = functional.embedding(step.tokens, weights.embedding)
            angles = self._rotary.angles(step.positions, hidden.dtype)
            for layer in weights.layers:
                hidden = layer(hidden, angles, step.attention)
            return self._logits(step.select(hidden))

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        if not hidden.shape[0]:
            return hidden.new_empty(0, self._spec.vocab_size, dtype=torch.float32)
        return as_logits(self._weights.head(self._weights.norm(hidden)))


def as_logits(scores: torch.Tensor) -> torch.Tensor:
    """Logits are float32, or float64 from a float64 model."""
    return scores if scores.dtype == torch.float64 else scores.to(torch.float32)
