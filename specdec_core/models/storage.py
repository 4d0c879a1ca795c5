"""Where keys and values live. The block table admits and counts tokens; a storage keeps the tensors behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from specdec_core.errors import InvariantError, OverloadedError
from specdec_core.kv.block_table import BlockTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdec_core.kv.block_pool import BlockPool

_FIRST_CAPACITY = 256  # tokens; small sessions never copy their KV


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one token adds to one layer."""

    num_kv_heads: int
    key_dim: int
    value_dim: int


class StoredSequence(Protocol):
    """The KV of one session in a storage; also a ``SequenceKv``."""

    @property
    def table(self) -> BlockTable: ...

    @property
    def length(self) -> int: ...

    def truncate(self, length: int) -> None: ...

    def release(self) -> None: ...

    def append(self, count: int) -> None:
        """Make room for ``count`` more tokens in every layer; ``length`` grows, their keys and values are still to be written.

        Raises:
            OverloadedError: if the pool has no room; nothing has changed then.
        """
        ...

    def write(
        self,
        layer: int,
        keys: torch.Tensor,  # [num_new, num_kv_heads, key_dim]
        values: torch.Tensor,  # [num_new, num_kv_heads, value_dim]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the last ``num_new`` tokens of one layer.

        Returns:
            All keys [num_kv_heads, length, key_dim] and values [num_kv_heads, length, value_dim] of the layer, to be read before the
            next write.
        """
        ...


class KvStorage(Protocol):
    """Makes sequences that share one pool and one memory."""

    @property
    def pool(self) -> BlockPool: ...

    def new_sequence(self) -> StoredSequence: ...


def append_all(pool: BlockPool, sequences: Sequence[StoredSequence], counts: Sequence[int]) -> None:
    """Grow every sequence by its count, all or none.

    Raises:
        OverloadedError: if the pool cannot hold them all; nothing has changed then.
        InvariantError: if a sequence is named twice.
    """
    if len({id(sequence) for sequence in sequences}) != len(sequences):
        raise InvariantError("two segments of one batch share a KV sequence")
    pairs = list(zip(sequences, counts, strict=True))
    needed = sum(sequence.table.blocks_needed(count) for sequence, count in pairs)
    if needed > pool.num_free:
        raise OverloadedError(
            f"{needed} KV blocks needed, {pool.num_free} of {pool.num_blocks} free"
        )
    for sequence, count in pairs:
        sequence.append(count)


class ContiguousSequence:
    """One tensor of keys and one of values per layer, grown by doubling: reading them never copies."""

    def __init__(
        self,
        table: BlockTable,
        shapes: Sequence[LayerShape],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._table = table
        self._capacity = 0
        self._keys = [
            torch.empty(shape.num_kv_heads, 0, shape.key_dim, device=device, dtype=dtype)
            for shape in shapes
        ]
        self._values = [
            torch.empty(shape.num_kv_heads, 0, shape.value_dim, device=device, dtype=dtype)
            for shape in shapes
        ]

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
        self._keys.clear()
        self._values.clear()
        self._capacity = 0

    def append(self, count: int) -> None:
        held = self._table.length
        self._table.append(count)
        if self._table.length > self._capacity:
            self._grow(held, self._table.length)

    def write(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        end = self._table.length
        start = end - keys.shape[0]
        all_keys, all_values = self._keys[layer], self._values[layer]
        all_keys[:, start:end].copy_(keys.transpose(0, 1))
        all_values[:, start:end].copy_(values.transpose(0, 1))
        return all_keys[:, :end], all_values[:, :end]

    def _grow(self, held: int, needed: int) -> None:
        self._capacity = max(needed, 2 * self._capacity, _FIRST_CAPACITY)
        self._keys = [_moved(tensor, held, self._capacity) for tensor in self._keys]
        self._values = [_moved(tensor, held, self._capacity) for tensor in self._values]


def _moved(tensor: torch.Tensor, held: int, capacity: int) -> torch.Tensor:
    larger = tensor.new_empty(tensor.shape[0], capacity, tensor.shape[2])
    larger[:, :held].copy_(tensor[:, :held])
    return larger


class ContiguousKv:
    """A slot per session, allocated as it grows; the pool bounds tokens, the slots may hold up to twice their bytes."""

    def __init__(
        self,
        pool: BlockPool,
        shapes: Sequence[LayerShape],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._pool = pool
        self._shapes = tuple(shapes)
        self._device = device
        self._dtype = dtype

    @property
    def pool(self) -> BlockPool:
        return self._pool

    def new_sequence(self) -> ContiguousSequence:
        return ContiguousSequence(BlockTable(self._pool), self._shapes, self._device, self._dtype)
