"""What a runner computes with, resolved once from the options when a model is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from specdec_core.errors import UnsupportedModelError
from specdec_core.models.activation import RowwiseSilu, Silu
from specdec_core.models.attention import RaggedAttention, RowwiseAttention
from specdec_core.models.linear import LinearBackends, unquantized_backend
from specdec_core.models.options import Numerics, Quantization
from specdec_core.models.quantized_linear import (
    Int4Backend,
    Int8Backend,
    require_quantization_support,
)
from specdec_core.models.tiled_linear import TiledBackend

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdec_core.models.activation import Activation
    from specdec_core.models.attention import AttentionBackend
    from specdec_core.models.options import LoadOptions


@dataclass(frozen=True, slots=True)
class Kernels:
    """One choice for each operation that has several."""

    linears: LinearBackends
    attention: AttentionBackend
    activation: Activation


def choose_kernels(options: LoadOptions, device: torch.device) -> Kernels:
    """The kernels of these options on this device.

    Raises:
        UnsupportedModelError: if the options ask for what has no kernel here, giving the reason.
    """
    if options.numerics is Numerics.DETERMINISTIC:
        _require_deterministic_support(options, device)
        linear = TiledBackend()
        return Kernels(LinearBackends(linear, linear), RowwiseAttention, RowwiseSilu())
    return Kernels(_fast_linears(options, device), RaggedAttention, Silu())


def _fast_linears(options: LoadOptions, device: torch.device) -> LinearBackends:
    """The head keeps at least 8 bits: on SmolLM2 an int4 head cost a drafter 6 points of agreement for 2 ms of 16."""
    exact = unquantized_backend(device, options.torch_dtype)
    if options.quantization is Quantization.NONE:
        return LinearBackends(layers=exact, head=exact)
    require_quantization_support(device)
    head = Int8Backend(exact)
    if options.quantization is Quantization.INT8:
        return LinearBackends(layers=head, head=head)
    return LinearBackends(layers=Int4Backend(options.group_size, exact), head=head)


def _require_deterministic_support(options: LoadOptions, device: torch.device) -> None:
    has_onednn: Callable[[], bool] = torch.backends.mkldnn.is_available
    if device.type != "cpu":
        reason = f"{device} would need batch-invariant kernels, which are not there yet"
    elif options.torch_dtype is not torch.float32:
        reason = f"it is proven for float32 only, not for {options.dtype}"
    elif options.quantization is not Quantization.NONE:
        reason = f"it is proven for unrounded weights only, not for {options.quantization.value}"
    elif not has_onednn():
        reason = "this build of torch has no oneDNN"
    else:
        return
    raise UnsupportedModelError(f"numerics: deterministic is not possible here: {reason}")
