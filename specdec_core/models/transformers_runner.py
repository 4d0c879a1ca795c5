"""Any other Hugging Face causal LM: transformers' own modules over one packed row, with our attention and our KV.

All new tokens of all sessions are one row [1, total] with explicit positions; every layer calls ``_attention`` below through
transformers' attention registry, which stores keys and values where a rollback is a change of length. Transformers' own caches are
never used: their rewinding differs by layer type and release.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers import AttentionInterface

from specdec_core.errors import UnsupportedModelError
from specdec_core.models.attention import AttentionRule
from specdec_core.models.packing import packed_step
from specdec_core.models.runner import as_logits
from specdec_core.models.storage import LayerShape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedModel

    from specdec_core.models.attention import AttentionBackend, StepAttention
    from specdec_core.models.forward import ModelSpec, Segment, SequenceKv
    from specdec_core.models.storage import KvStorage

ATTENTION_NAME = "specdec"


class LayerCalls:
    """Numbers the attention calls of one forward: the same layers call in the same order in every forward."""

    def __init__(self, attention: StepAttention) -> None:
        self._attention = attention
        self._next_layer = 0

    def attend(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        rule: AttentionRule,
    ) -> torch.Tensor:
        layer = self._next_layer
        self._next_layer += 1
        return self._attention.attend(layer, queries, keys, values, rule)


class ShapeRecorder:
    """A ``StepAttention`` that attends to nothing and notes what each layer would store."""

    def __init__(self) -> None:
        self.shapes: list[LayerShape] = []

    def attend(
        self,
        layer: int,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        rule: AttentionRule,
    ) -> torch.Tensor:
        del layer, rule
        self.shapes.append(LayerShape(keys.shape[1], keys.shape[2], values.shape[2]))
        return queries.new_zeros(queries.shape[0], queries.shape[1] * values.shape[2])


def _attention(  # noqa: PLR0913 - the signature is transformers'
    module: torch.nn.Module,
    query: torch.Tensor,  # [1, num_heads, total, key_dim]
    key: torch.Tensor,  # [1, num_kv_heads, total, key_dim]
    value: torch.Tensor,  # [1, num_kv_heads, total, value_dim]
    attention_mask: torch.Tensor | None,
    *,
    specdec_calls: LayerCalls,
    scaling: float | None = None,
    softcap: float | None = None,
    sliding_window: int | None = None,
    **ignored: Any,
) -> tuple[torch.Tensor, None]:  # [1, total, num_heads, value_dim]
    del ignored
    if attention_mask is not None:
        raise UnsupportedModelError(
            f"model: cannot be served: {type(module).__name__} brings an attention mask of its own"
        )
    rule = AttentionRule(
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=sliding_window,
        softcap=softcap,
    )
    attended = specdec_calls.attend(
        query[0].transpose(0, 1), key[0].transpose(0, 1), value[0].transpose(0, 1), rule
    )
    return attended.view(1, query.shape[2], query.shape[1], value.shape[3]), None


# No mask function goes with the name: transformers then builds no mask.
AttentionInterface.register(ATTENTION_NAME, _attention)


def run_packed(
    model: PreTrainedModel,
    tokens: torch.Tensor,  # [total] int64
    positions: torch.Tensor,  # [total] int64
    logit_rows: torch.Tensor,  # [num_logits] int64
    attention: StepAttention,
) -> torch.Tensor:  # [num_logits, vocab_size]
    """One forward of transformers' modules with ``attention`` in every layer."""
    output = model(
        input_ids=tokens[None],
        position_ids=positions[None],
        use_cache=False,
        logits_to_keep=logit_rows,
        specdec_calls=LayerCalls(attention),
    )
    logits: torch.Tensor = output.logits[0]
    return logits


@torch.inference_mode()
def record_shapes(model: PreTrainedModel) -> tuple[LayerShape, ...]:
    """What each attention call of a forward stores per token, found by running one token."""
    recorder = ShapeRecorder()
    zero = torch.zeros(1, dtype=torch.long, device=model.device)
    run_packed(model, zero, zero, zero, recorder)
    if not recorder.shapes:
        raise UnsupportedModelError(
            "model: cannot be served: its layers do not use transformers' attention interface"
        )
    return tuple(recorder.shapes)


class TransformersRunner:
    """A ``CausalModel`` over transformers' modules, whose attention implementation must be ``ATTENTION_NAME``."""

    def __init__(
        self,
        spec: ModelSpec,
        model: PreTrainedModel,
        *,
        storage: KvStorage,
        attention: AttentionBackend,
    ) -> None:
        self._spec = spec
        self._model = model
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
        with packed_step(
            self._storage,
            segments,
            max_context=self._spec.max_context,
            device=self._model.device,
            attention=self._attention,
        ) as step:
            logits = run_packed(
                self._model, step.tokens, step.positions, step.logit_rows, step.attention
            )
            return as_logits(logits)
