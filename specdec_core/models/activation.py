"""SiLU, x · sigmoid(x), as strategy objects: a kind is chosen once, when the weights are loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch.nn import functional

if TYPE_CHECKING:
    import torch

_VECTOR_ELEMENTS = 32  # torch steps by two AVX-512 vectors of float32, or by a divisor of that
_SERIAL_ELEMENTS = 32767  # torch splits more elements than this among its threads


class Activation(Protocol):
    """An elementwise function of rows."""

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """A new tensor of the shape of ``rows``, which is [n, width]."""
        ...


@dataclass(frozen=True, slots=True)
class Silu:
    """All rows in one call."""

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return functional.silu(rows)


@dataclass(frozen=True, slots=True)
class RowwiseSilu:
    """A row's values depend on that row alone, on any number of threads.

    Torch computes whole vectors, and what is left at the end of a run of memory one by one, with an exponential that rounds differently.
    So a run must end with its row: no call is so large that threads split it in the middle of a row, and rows that lie back to back go in
    one at a time unless they are whole numbers of vectors.
    """

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        count, width = rows.shape
        at_once = max(1, _SERIAL_ELEMENTS // width)
        if rows.is_contiguous() and width % _VECTOR_ELEMENTS:
            at_once = 1
        if count <= at_once:
            return functional.silu(rows)
        output = rows.new_empty(count, width)
        for begin in range(0, count, at_once):
            part = slice(begin, begin + at_once)
            output[part] = functional.silu(rows[part])
        return output
