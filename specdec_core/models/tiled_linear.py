"""A linear layer whose result for a row does not depend on how many rows share the call.

oneDNN picks a kernel by the shapes, and another kernel may add up a row's products in another order: one row against many differs from
1 536 inputs on (measured). So rows are cut into tiles of a few sizes, each of which has shown, for the shape of the weight and the
number of threads, that it gives every row the very bits the largest tile gives it, wherever in the tile the row lies.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import torch

from specdec_core.errors import UnsupportedModelError
from specdec_core.models.linear import PrepackedBackend

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdec_core.models.linear import Linear

_LARGEST = 64
_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 17, 24, 32)  # tried besides; those that fail are padded
_PROBE_SEED = 20260


@dataclass(frozen=True, slots=True)
class TiledLinear:
    """Runs tiles of proven sizes; what is left over is padded with zero rows."""

    linear: Linear
    sizes: tuple[int, ...]  # ascending; the last is the largest tile

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        count, largest = rows.shape[0], self.sizes[-1]
        if count in self.sizes or not count:
            return self.linear(rows)
        whole = count - count % largest
        parts = [self.linear(rows[begin : begin + largest]) for begin in range(0, whole, largest)]
        if whole < count:
            parts.append(self._padded(rows[whole:]))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _padded(self, rows: torch.Tensor) -> torch.Tensor:
        count, width = rows.shape
        size = next(size for size in self.sizes if size >= count)
        if size == count:
            return self.linear(rows)
        tile = rows.new_zeros(size, width)
        tile[:count] = rows
        return self.linear(tile)[:count]


@dataclass(frozen=True, slots=True)
class TiledBackend:
    """CPU with oneDNN, float32."""

    def build(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        """A layer that serves any number of rows.

        Raises:
            UnsupportedModelError: if on this machine even the largest tile treats its rows differently.
        """
        out_features, in_features = weight.shape
        sizes = _proven_sizes(
            out_features,
            in_features,
            has_bias=bias is not None,
            num_threads=torch.get_num_threads(),
        )
        return TiledLinear(PrepackedBackend().build(weight, bias), sizes)


@cache
def _proven_sizes(
    out_features: int,
    in_features: int,
    *,
    has_bias: bool,
    num_threads: int,  # part of the key: the work is divided by it
) -> tuple[int, ...]:
    """Sizes whose kernels add up as the largest tile's does; kernels depend on shapes, so random values stand for all."""
    generator = torch.Generator().manual_seed(_PROBE_SEED)
    weight = torch.randn(out_features, in_features, generator=generator)
    bias = torch.randn(out_features, generator=generator) if has_bias else None
    rows = torch.randn(_LARGEST, in_features, generator=generator)
    linear = PrepackedBackend().build(weight, bias)
    sizes = proven_sizes(linear, rows, (*_SIZES, _LARGEST))
    if _LARGEST not in sizes:
        raise UnsupportedModelError(
            f"numerics: deterministic is not possible here: with {num_threads} threads the product of a {out_features} by {in_features} "
            "weight depends on where a row lies in the batch"
        )
    return sizes


def proven_sizes(
    linear: Linear,
    rows: torch.Tensor,  # [largest, in_features], random
    sizes: Sequence[int],
) -> tuple[int, ...]:
    """Those of ``sizes`` at which ``linear`` gives each row, at every place, the bits it has in the product of all ``rows``.

    With another order of additions some of the outputs would round differently: for one row of a few hundred outputs it is next to
    certain that one does.
    """
    expected = linear(rows)
    return tuple(size for size in sizes if _agrees(linear, rows, expected, size))


def _agrees(linear: Linear, rows: torch.Tensor, expected: torch.Tensor, size: int) -> bool:
    copies = linear(rows[:1].expand(size, -1).contiguous())
    return torch.equal(linear(rows[:size].clone()), expected[:size]) and torch.equal(
        copies, expected[:1].expand_as(copies)
    )
