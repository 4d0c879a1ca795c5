"""Keys and values in pages of one preallocated tensor per layer: no copy on growth, no fragmentation.

After "Efficient Memory Management for Large Language Model Serving with PagedAttention" (Kwon et al., 2023). Reading gathers the
pages of a session, so this is for devices where memory is fixed beforehand; on a CPU contiguous slots read two to ten times faster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from specdec_core.kv.block_table import BlockTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdec_core.kv.block_pool import BlockPool
    from specdec_core.models.storage import LayerShape


class PagedSequence:
    """The rows of the shared pages that a block table names."""

    def __init__(
        self, table: BlockTable, keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor]
    ) -> None:
        self._table = table
        self._keys = keys  # per layer [num_blocks * block_size, num_kv_heads, key_dim]
        self._values = values  # per layer [num_blocks * block_size, num_kv_heads, value_dim]
        self._rows = torch.empty(0, dtype=torch.long)  # [length] row of each position

    @property
    def table(self) -> BlockTable:
        return self._table

    @property
    def length(self) -> int:
        return self._table.length

    def truncate(self, length: int) -> None:
        self._table.rollback(length)

    def release(self) -> None:
        self._table.release()

    def append(self, count: int) -> None:
        self._table.append(count)
        self._rows = self._rows_of_positions()

    def write(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        new_rows = self._rows[self._table.length - keys.shape[0] :]
        all_keys, all_values = self._keys[layer], self._values[layer]
        all_keys.index_copy_(0, new_rows, keys)
        all_values.index_copy_(0, new_rows, values)
        return (
            all_keys.index_select(0, self._rows).transpose(0, 1),
            all_values.index_select(0, self._rows).transpose(0, 1),
        )

    def _rows_of_positions(self) -> torch.Tensor:
        block_size = self._table.pool.block_size
        device = self._keys[0].device
        blocks = torch.tensor(self._table.blocks, dtype=torch.long, device=device)
        rows = blocks[:, None] * block_size + torch.arange(block_size, device=device)
        return rows.flatten()[: self._table.length]


class PagedKv:
    """All pages of all layers, allocated at once."""

    def __init__(
        self,
        pool: BlockPool,
        shapes: Sequence[LayerShape],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        num_rows = pool.num_blocks * pool.block_size
        self._pool = pool
        self._keys = tuple(
            torch.empty(num_rows, shape.num_kv_heads, shape.key_dim, device=device, dtype=dtype)
            for shape in shapes
        )
        self._values = tuple(
            torch.empty(num_rows, shape.num_kv_heads, shape.value_dim, device=device, dtype=dtype)
            for shape in shapes
        )

    @property
    def pool(self) -> BlockPool:
        return self._pool

    def new_sequence(self) -> PagedSequence:
        return PagedSequence(BlockTable(self._pool), self._keys, self._values)
