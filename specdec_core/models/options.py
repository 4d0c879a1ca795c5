"""What to load and how, validated before anything is read."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch

from specdec_core.errors import InvalidArgumentError
from specdec_core.models.quantized_linear import GROUP_SIZES

_DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a model comes from."""

    location: str  # a local folder, a .gguf file, a hub name "org/name", or "packaged:<name>"
    revision: str | None = None  # of a hub name


class Quantization(Enum):
    """How the weights of the layers are rounded; activations never are."""

    NONE = "none"
    INT8 = "int8"
    INT4 = "int4"


class Numerics(Enum):
    """What a token's logits may depend on beside the tokens before it."""

    FAST = "fast"  # in the last bits also on what shares the forward: kernels follow the shape of the batch
    DETERMINISTIC = "deterministic"  # on nothing else, to the bit


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How to load a model.

    Raises:
        InvalidArgumentError: on construction, naming the field and the allowed values.
    """

    device: str = "cpu"
    dtype: str = "float32"
    numerics: Numerics = Numerics.FAST
    quantization: Quantization = Quantization.NONE
    group_size: int = 64  # inputs that share an int4 scale
    num_layers: int | None = None  # only the first k layers; norm and head are kept
    kv_tokens: int = 32768  # KV budget in tokens over all sessions
    block_size: int = 16
    max_context: int | None = None  # None takes the model's own

    def __post_init__(self) -> None:
        if self.dtype not in _DTYPES:
            raise InvalidArgumentError(
                "dtype", f"must be one of {sorted(_DTYPES)}, got {self.dtype!r}"
            )
        if self.group_size not in GROUP_SIZES:
            raise InvalidArgumentError(
                "group_size", f"must be one of {sorted(GROUP_SIZES)}, got {self.group_size}"
            )
        for name, value in (("kv_tokens", self.kv_tokens), ("block_size", self.block_size)):
            if value < 1:
                raise InvalidArgumentError(name, f"must be positive, got {value}")
        if self.kv_tokens < self.block_size:
            raise InvalidArgumentError(
                "kv_tokens", f"must be at least block_size {self.block_size}, got {self.kv_tokens}"
            )
        if self.num_layers is not None and self.num_layers < 1:
            raise InvalidArgumentError("num_layers", f"must be positive, got {self.num_layers}")

    @property
    def torch_dtype(self) -> torch.dtype:
        return _DTYPES[self.dtype]

    def torch_device(self) -> torch.device:
        """The device, known to be there.

        Raises:
            InvalidArgumentError: if it is misspelt or this machine lacks it.
        """
        try:
            device = torch.device(self.device)
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise InvalidArgumentError(
                "device", f"{self.device!r} is not available here: {reason}"
            ) from error
        return device
