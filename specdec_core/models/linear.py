"""Linear layers as strategy objects: a backend is chosen once, when the weights are loaded.

The prepacked backend is what makes verifying several tokens cheap on a CPU: ``F.linear`` repacks the weight in each call, which for
3 to 5 rows costs about as much as the product, while a oneDNN-packed weight is ready. One packed copy serves every number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable

_PACK_HINT = (
    32  # rows oneDNN lays the weight out for; layouts for 8 to 32 rows are good for any number
)


class Linear(Protocol):
    """y = x Wᵀ + b."""

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Map [n, in_features] to [n, out_features] of the same dtype."""
        ...


class LinearBackend(Protocol):
    """Turns a weight into the form its kernel wants."""

    def build(
        self,
        weight: torch.Tensor,  # [out_features, in_features]
        bias: torch.Tensor | None = None,  # [out_features]
    ) -> Linear:
        """A linear layer; the backend keeps no reference to ``weight`` unless its kernel reads it in place."""
        ...


@dataclass(frozen=True, slots=True)
class LinearBackends:
    """One backend for the layers, one for the head, whose rounding errors go straight into the logits."""

    layers: LinearBackend
    head: LinearBackend


@dataclass(frozen=True, slots=True)
class PlainLinear:
    """``F.linear`` on the weight as it is."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return functional.linear(rows, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class PlainBackend:
    """Any device, any dtype."""

    def build(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        return PlainLinear(weight, bias)


@dataclass(frozen=True, slots=True)
class PrepackedLinear:
    """A oneDNN product with a weight packed beforehand."""

    packed: torch.Tensor  # opaque oneDNN layout
    bias: torch.Tensor | None

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(  # noqa: SLF001 - torch gives it no public name
            rows, self.packed, self.bias, "none", [], ""
        )
        return product


@dataclass(frozen=True, slots=True)
class PrepackedBackend:
    """CPU, float32 or bfloat16."""

    def build(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        packed = torch.ops.mkldnn._reorder_linear_weight(  # noqa: SLF001 - torch gives it no public name
            weight.contiguous(), _PACK_HINT
        )
        return PrepackedLinear(packed, bias)


def unquantized_backend(device: torch.device, dtype: torch.dtype) -> LinearBackend:
    """The fastest backend that computes in the dtype of the weights."""
    has_onednn: Callable[[], bool] = torch.backends.mkldnn.is_available
    packs = dtype in (torch.float32, torch.bfloat16) and has_onednn()
    if device.type == "cpu" and packs:
        return PrepackedBackend()
    return PlainBackend()
