"""Rotary position embedding at explicit positions (RoFormer, Su et al., arXiv:2104.09864), scaled as transformers scales it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

if TYPE_CHECKING:
    from transformers import LlamaConfig, PretrainedConfig


class Rotary:
    """Angles for any set of positions; needs no table as long as the context.

    Args:
        config: A Llama-family configuration whose scaling does not depend on the length of the text.
        device: Where the angles are computed.
    """

    def __init__(self, config: PretrainedConfig, device: torch.device) -> None:
        embedding = LlamaRotaryEmbedding(cast("LlamaConfig", config))
        self._frequencies = embedding.inv_freq.to(device=device, dtype=torch.float32)
        self._scaling = float(embedding.attention_scaling)

    def angles(
        self,
        positions: torch.Tensor,  # [n] int64
        dtype: torch.dtype,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # cosines and signed sines, each [n, 1, head_dim]
        """The sine of the first half is negated, so that ``rotate`` needs no negation per layer."""
        half = positions[:, None].to(torch.float32) * self._frequencies
        cosines = half.cos() * self._scaling
        sines = half.sin() * self._scaling
        return (
            torch.cat((cosines, cosines), dim=1)[:, None].to(dtype),
            torch.cat((-sines, sines), dim=1)[:, None].to(dtype),
        )


def rotate(
    heads: torch.Tensor,  # [n, num_heads, head_dim]
    cosines: torch.Tensor,  # [n, 1, head_dim]
    signed_sines: torch.Tensor,  # [n, 1, head_dim]
) -> torch.Tensor:
    """Turn each pair (i, i + head_dim / 2) by its angle."""
    swapped = heads.roll(heads.shape[-1] // 2, dims=-1)
    return torch.addcmul(heads * cosines, swapped, signed_sines)
