"""A fixed number of equal KV blocks, handed out and taken back by id."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec_core.errors import InvalidArgumentError, InvariantError, OverloadedError

if TYPE_CHECKING:
    from collections.abc import Sequence


class BlockPool:
    """Block ids 0..num_blocks-1, each free or in use; every operation costs O(blocks moved).

    Args:
        num_blocks: Blocks in all, positive.
        block_size: Tokens whose keys and values one block holds, positive.

    Raises:
        InvalidArgumentError: if a size is not positive.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        for name, value in (("num_blocks", num_blocks), ("block_size", block_size)):
            if value < 1:
                raise InvalidArgumentError(name, f"must be positive, got {value}")
        self._num_blocks = num_blocks
        self._block_size = block_size
        # A stack: the block freed last is reused first, while it may still be in a cache.
        self._free = list(range(num_blocks - 1, -1, -1))
        self._in_use = bytearray(num_blocks)

    @property
    def num_blocks(self) -> int:
        return self._num_blocks

    @property
    def block_size(self) -> int:
        return self._block_size

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self, count: int) -> tuple[int, ...]:
        """Take ``count`` free blocks, all or none.

        Raises:
            OverloadedError: if fewer than ``count`` are free; nothing has changed then.
            InvariantError: if ``count`` is negative.
        """
        if count < 0:
            raise InvariantError(f"cannot allocate {count} KV blocks")
        if count > len(self._free):
            raise OverloadedError(
                f"{count} KV blocks needed, {len(self._free)} of {self._num_blocks} free"
            )
        blocks = tuple(self._free.pop() for _ in range(count))
        for block in blocks:
            self._in_use[block] = True
        return blocks

    def free(self, blocks: Sequence[int]) -> None:
        """Give ``blocks`` back, all or none.

        Raises:
            InvariantError: if a block is unknown, already free or named twice; nothing has changed then.
        """
        for block in blocks:
            if not self.is_in_use(block):
                raise InvariantError(f"KV block {block} is freed but not in use")
        if len(set(blocks)) != len(blocks):
            raise InvariantError(f"a KV block is freed twice at once: {list(blocks)}")
        for block in blocks:
            self._in_use[block] = False
        self._free.extend(reversed(blocks))

    def is_in_use(self, block: int) -> bool:
        """Whether ``block`` is handed out; an unknown id never is."""
        return 0 <= block < self._num_blocks and bool(self._in_use[block])

    def check_integrity(self) -> None:
        """Raise InvariantError unless every block is either in use or free exactly once."""
        free = set(self._free)
        if len(free) != len(self._free):
            raise InvariantError("a KV block is in the free list twice")
        expected = {block for block in range(self._num_blocks) if not self._in_use[block]}
        if free != expected:
            raise InvariantError(
                f"free list and use marks disagree on KV blocks {sorted(free ^ expected)}"
            )
