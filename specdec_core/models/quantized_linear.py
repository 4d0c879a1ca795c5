"""Weight-only quantisation by rounding to nearest; activations stay bfloat16, since quantised ones would depend on the batch.

SmolLM2 and its like have activations of five digits on the first token: one scale for a whole activation tensor wrecks the rest, so
only weights are rounded here. The kernels are torch's CPU ones; with float32 activations they are 30 times slower.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from specdec_core.errors import UnsupportedModelError

if TYPE_CHECKING:
    from specdec_core.models.linear import Linear, LinearBackend

GROUP_SIZES = (256, 128, 64, 32)  # those the int4 kernel takes
_INT4_LEVELS = 15
_INT4_MIDDLE = 8
_INT8_MAX = 127
_TILE_ROWS = 16  # both kernels write tiles of this many outputs, and do not check that they fit
_TILE_DEPTH = 32
_INNER_K_TILES = 2
_SMALLEST_SCALE = 1e-8


@dataclass(frozen=True, slots=True)
class Int8Linear:
    """One scale per output: W ≈ scale · q."""

    weight: torch.Tensor  # [out_features, in_features] int8
    scales: torch.Tensor  # [out_features] bfloat16
    bias: torch.Tensor | None

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = torch.ops.aten._weight_int8pack_mm(  # noqa: SLF001 - torch gives it no public name
            rows.to(torch.bfloat16), self.weight, self.scales
        )
        return _add_bias(product.to(rows.dtype), self.bias)


@dataclass(frozen=True, slots=True)
class Int4Linear:
    """One scale and zero per group of inputs: W ≈ scale · (q - 8) + zero."""

    packed: torch.Tensor  # opaque layout of two weights a byte
    scales_and_zeros: torch.Tensor  # [in_features / group_size, out_features, 2] bfloat16
    group_size: int
    bias: torch.Tensor | None

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(  # noqa: SLF001 - torch gives it no public name
            rows.to(torch.bfloat16), self.packed, self.group_size, self.scales_and_zeros
        )
        return _add_bias(product.to(rows.dtype), self.bias)


@dataclass(frozen=True, slots=True)
class Int8Backend:
    """Per-channel int8; a layer whose shape does not fit the kernel's tiles goes to ``fallback`` unrounded."""

    fallback: LinearBackend

    def build(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        if not _fits_tiles(weight):
            return self.fallback.build(weight, bias)
        quantized, scales = quantize_int8(weight)
        return Int8Linear(quantized, scales, bias)


@dataclass(frozen=True, slots=True)
class Int4Backend:
    """Group-wise int4.

    A layer whose ``in_features`` no group of ``group_size`` divides takes the next smaller group that does; one that none divides, or
    whose ``out_features`` is not a multiple of 16, goes to ``fallback`` unrounded.
    """

    group_size: int
    fallback: LinearBackend

    def build(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        group_size = self._group_size_for(weight)
        if group_size is None:
            return self.fallback.build(weight, bias)
        quantized, scales_and_zeros = quantize_int4(weight, group_size)
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(  # noqa: SLF001 - torch gives it no public name
            quantized, _INNER_K_TILES
        )
        return Int4Linear(packed, scales_and_zeros, group_size, bias)

    def _group_size_for(self, weight: torch.Tensor) -> int | None:
        if not _fits_tiles(weight):
            return None
        candidates = (size for size in GROUP_SIZES if size <= self.group_size)
        return next((size for size in candidates if weight.shape[1] % size == 0), None)


def quantize_int8(
    weight: torch.Tensor,  # [out_features, in_features]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Round each row to 8 bits; returns int8 [out, in] and bfloat16 scales [out].

    The scale is rounded to bfloat16 before the weights are, so that the kernel multiplies by the very scale they were rounded with.
    """
    exact = weight.to(torch.float32)
    scales = (exact.abs().amax(dim=1) / _INT8_MAX).clamp(min=_SMALLEST_SCALE).to(torch.bfloat16)
    steps = (exact / scales.to(torch.float32)[:, None]).round()
    return steps.clamp(-_INT8_MAX, _INT8_MAX).to(torch.int8), scales


def quantize_int4(
    weight: torch.Tensor,  # [out_features, in_features]
    group_size: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Round each group of ``group_size`` inputs to 4 bits.

    Returns int32 [out, in] in 0..15 and bfloat16 [in / group_size, out, 2] of (scale, zero), zero being what level 8 stands for; both
    are rounded to bfloat16 before the weights are.
    """
    out_features, in_features = weight.shape
    groups = weight.to(torch.float32).reshape(out_features, in_features // group_size, group_size)
    low, high = groups.aminmax(dim=2, keepdim=True)
    scales = ((high - low) / _INT4_LEVELS).clamp(min=_SMALLEST_SCALE).to(torch.bfloat16)
    zeros = (low + scales * _INT4_MIDDLE).to(torch.bfloat16)
    steps = ((groups - zeros) / scales.to(torch.float32)).round() + _INT4_MIDDLE
    quantized = steps.clamp(0, _INT4_LEVELS).to(torch.int32).reshape(out_features, in_features)
    return quantized, torch.cat((scales, zeros), dim=2).transpose(0, 1).contiguous()


def require_quantization_support(device: torch.device) -> None:
    """Refuse devices that these kernels do not run on.

    Raises:
        UnsupportedModelError: on anything but the CPU.
    """
    if device.type != "cpu":
        raise UnsupportedModelError(
            f"int8 and int4 weights run on the CPU only, not on {device}; load the model unquantised"
        )


def _fits_tiles(weight: torch.Tensor) -> bool:
    out_features, in_features = weight.shape
    return out_features % _TILE_ROWS == 0 and in_features % _TILE_DEPTH == 0


def _add_bias(product: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return product if bias is None else product.add_(bias)
