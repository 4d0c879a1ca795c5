"""Reads a checkpoint of the Llama family into the fused form the runner multiplies by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from specdec_core.errors import UnsupportedModelError
from specdec_core.models.attention import AttentionRule
from specdec_core.models.runner import DecoderLayer, DecoderWeights, HeadLayout, HeadNorms, RmsNorm
from specdec_core.models.storage import LayerShape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PretrainedConfig

    from specdec_core.models.checkpoint import Checkpoint
    from specdec_core.models.kernels import Kernels
    from specdec_core.models.linear import Linear
    from specdec_core.models.tensor_parallel import ProcessGroup

_FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
_HEAD = "lm_head.weight"
_EMBEDDING = "model.embed_tokens.weight"


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """The facts of a configuration that the forward depends on."""

    vocab_size: int
    heads: HeadLayout
    epsilon: float
    windows: tuple[int | None, ...]  # [num_layers] sliding window of each layer
    is_tied: bool  # the head is the embedding

    @property
    def layer_shapes(self) -> tuple[LayerShape, ...]:
        width = self.heads.head_dim
        return (LayerShape(self.heads.num_kv_heads, width, width),) * len(self.windows)


def is_llama_family(config: PretrainedConfig) -> bool:
    """Whether ``LlamaRunner`` computes this model; variants it does not know go to the generic path."""
    facts = config.to_dict()
    rope = facts.get("rope_parameters") or {}
    return (
        facts["model_type"] in _FAMILIES
        and facts.get("hidden_act") == "silu"
        and isinstance(rope.get("rope_theta"), int | float)
        and rope.get("partial_rotary_factor", 1.0) == 1.0
    )


def llama_shape(config: PretrainedConfig) -> LlamaShape:
    """Read a configuration that ``is_llama_family`` accepts."""
    facts = config.to_dict()
    num_heads = facts["num_attention_heads"]
    return LlamaShape(
        vocab_size=facts["vocab_size"],
        heads=HeadLayout(
            num_heads=num_heads,
            num_kv_heads=facts.get("num_key_value_heads") or num_heads,
            head_dim=facts.get("head_dim") or facts["hidden_size"] // num_heads,
        ),
        epsilon=facts["rms_norm_eps"],
        windows=_windows(facts),
        is_tied=bool(facts["tie_word_embeddings"]),
    )


def _windows(facts: dict[str, Any]) -> tuple[int | None, ...]:
    num_layers: int = facts["num_hidden_layers"]
    window: int | None = facts.get("sliding_window")
    layer_types: list[str] | None = facts.get("layer_types")
    if layer_types is None:
        return (window,) * num_layers
    return tuple(window if kind == "sliding_attention" else None for kind in layer_types)


class LlamaReader:
    """Fuses, converts and hands each weight to its backend, one layer at a time, so that no second copy of all weights exists."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        shape: LlamaShape,
        kernels: Kernels,
        *,
        device: torch.device,
        dtype: torch.dtype,
        group: ProcessGroup,
    ) -> None:
        self._checkpoint = checkpoint
        self._shape = shape
        self._kernels = kernels
        self._device = device
        self._dtype = dtype
        self._group = group
        self._num_parameters = 0

    @property
    def num_parameters(self) -> int:
        """Numbers read so far, each once."""
        return self._num_parameters

    def read(self) -> DecoderWeights:
        """Read everything the configuration names.

        Raises:
            UnsupportedModelError: if a weight is missing, or the embedding does not fit the vocabulary.
        """
        embedding = self._kept_tensor(_EMBEDDING)
        if embedding.shape[0] != self._shape.vocab_size:
            raise UnsupportedModelError(
                f"model: the embedding has {embedding.shape[0]} rows for a vocabulary of {self._shape.vocab_size}"
            )
        head = embedding if self._shape.is_tied else self._tensor(_HEAD)
        return DecoderWeights(
            embedding=embedding,
            layers=tuple(
                self._layer(index, window) for index, window in enumerate(self._shape.windows)
            ),
            norm=self._norm("model.norm.weight"),
            head=self._kernels.linears.head.build(head),
        )

    def _layer(self, index: int, window: int | None) -> DecoderLayer:
        prefix = f"model.layers.{index}."
        attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
        return DecoderLayer(
            index=index,
            heads=self._shape.heads,
            rule=AttentionRule(self._shape.heads.head_dim**-0.5, window),
            attention_norm=self._norm(f"{prefix}input_layernorm.weight"),
            query_key_value=self._linear(
                [f"{attention}q_proj", f"{attention}k_proj", f"{attention}v_proj"]
            ),
            head_norms=self._head_norms(attention),
            attention_output=self._linear([f"{attention}o_proj"]),
            mlp_norm=self._norm(f"{prefix}post_attention_layernorm.weight"),
            gate_up=self._linear([f"{mlp}gate_proj", f"{mlp}up_proj"]),
            activation=self._kernels.activation,
            down=self._linear([f"{mlp}down_proj"]),
            group=self._group,
        )

    def _head_norms(self, prefix: str) -> HeadNorms | None:
        if f"{prefix}q_norm.weight" not in self._checkpoint:
            return None
        return HeadNorms(self._norm(f"{prefix}q_norm.weight"), self._norm(f"{prefix}k_norm.weight"))

    def _linear(self, names: Sequence[str]) -> Linear:
        """One layer over the stacked outputs of several; all have a bias or none has."""
        weight = torch.cat([self._tensor(f"{name}.weight") for name in names])
        if f"{names[0]}.bias" not in self._checkpoint:
            return self._kernels.linears.layers.build(weight)
        bias = torch.cat([self._tensor(f"{name}.bias") for name in names])
        return self._kernels.linears.layers.build(weight, bias)

    def _norm(self, name: str) -> RmsNorm:
        return RmsNorm(self._kept_tensor(name), self._shape.epsilon)

    def _tensor(self, name: str) -> torch.Tensor:
        tensor = self._checkpoint.tensor(name).to(device=self._device, dtype=self._dtype)
        self._num_parameters += tensor.numel()
        return tensor

    def _kept_tensor(self, name: str) -> torch.Tensor:
        """A copy for what is used as it is: one view into the mapped file would keep all of it resident."""
        return self._tensor(name).clone()
