"""Which blocks hold one session's KV, and the check of a pool against all of its tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec_core.errors import InvariantError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from specdec_core.kv.block_pool import BlockPool


class BlockTable:
    """An ordered list of blocks just long enough for ``length`` tokens.

    Position p of the session is row ``p % block_size`` of block ``blocks[p // block_size]``. Appending and rolling back within a
    block cost O(1), whatever the number of tokens; only crossing a block boundary copies the ids, O(len(blocks)).
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._blocks: tuple[int, ...] = ()
        self._length = 0
        self._is_released = False

    @property
    def pool(self) -> BlockPool:
        return self._pool

    @property
    def length(self) -> int:
        """Tokens held."""
        return self._length

    @property
    def blocks(self) -> tuple[int, ...]:
        """Ids of the blocks held, in the order of the positions."""
        return self._blocks

    def blocks_needed(self, count: int) -> int:
        """Blocks that appending ``count`` tokens would take from the pool."""
        return self._blocks_for(self._length + count) - len(self._blocks)

    def append(self, count: int) -> None:
        """Make room for ``count`` more tokens, all or none.

        Raises:
            OverloadedError: if the pool has too few free blocks; nothing has changed then.
            InvariantError: if ``count`` is negative, or the table was released.
        """
        if count < 0:
            raise InvariantError(f"cannot append {count} tokens to a block table")
        if self._is_released:
            raise InvariantError("a released block table cannot grow")
        needed = self.blocks_needed(count)
        if needed:
            self._blocks += self._pool.allocate(needed)
        self._length += count

    def rollback(self, length: int) -> None:
        """Forget every position from ``length`` on and free the blocks wholly beyond it.

        Raises:
            InvariantError: if ``length`` is above the current one or negative.
        """
        if not 0 <= length <= self._length:
            raise InvariantError(f"cannot roll {self._length} tokens back to {length}")
        keep = self._blocks_for(length)
        if keep < len(self._blocks):
            self._pool.free(self._blocks[keep:])
            self._blocks = self._blocks[:keep]
        self._length = length

    def release(self) -> None:
        """Free every block for good. Idempotent."""
        self.rollback(0)
        self._is_released = True

    def check_integrity(self) -> None:
        """Raise InvariantError unless exactly the blocks that ``length`` needs are held, each once and in use."""
        if len(self._blocks) != self._blocks_for(self._length):
            raise InvariantError(f"{len(self._blocks)} KV blocks held for {self._length} tokens")
        if len(set(self._blocks)) != len(self._blocks):
            raise InvariantError(f"a KV block is held twice: {list(self._blocks)}")
        lost = [block for block in self._blocks if not self._pool.is_in_use(block)]
        if lost:
            raise InvariantError(f"KV blocks {lost} are held but not in use")

    def _blocks_for(self, length: int) -> int:
        return -(-length // self._pool.block_size)


def check_pool(pool: BlockPool, tables: Iterable[BlockTable]) -> None:
    """Check ``pool`` and every table over it, ``tables`` being all there are.

    Raises:
        InvariantError: if one of them is inconsistent, two tables share a block, a block in use is in no table, or a table is
            over another pool.
    """
    pool.check_integrity()
    held: set[int] = set()
    for table in tables:
        if table.pool is not pool:
            raise InvariantError("a block table is over another pool")
        table.check_integrity()
        shared = held.intersection(table.blocks)
        if shared:
            raise InvariantError(f"KV blocks {sorted(shared)} are in two tables")
        held.update(table.blocks)
    num_leaked = pool.num_blocks - pool.num_free - len(held)
    if num_leaked:
        raise InvariantError(f"{num_leaked} KV blocks are in use but in no table")
