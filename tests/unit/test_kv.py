from __future__ import annotations

import pytest

from specdec_core.errors import InvalidArgumentError, InvariantError, OverloadedError
from specdec_core.kv.block_pool import BlockPool
from specdec_core.kv.block_table import BlockTable, check_pool


@pytest.fixture
def pool() -> BlockPool:
    return BlockPool(8, 4)


@pytest.mark.parametrize(
    ("num_blocks", "block_size", "field"), [(0, 4, "num_blocks"), (8, 0, "block_size")]
)
def test_a_pool_refuses_sizes_that_are_not_positive(
    num_blocks: int, block_size: int, field: str
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        BlockPool(num_blocks, block_size)

    assert caught.value.field == field


def test_a_new_pool_is_all_free(pool: BlockPool) -> None:
    assert (pool.num_blocks, pool.block_size, pool.num_free) == (8, 4, 8)
    pool.check_integrity()


def test_allocated_blocks_are_distinct_and_in_use(pool: BlockPool) -> None:
    blocks = pool.allocate(3)

    assert blocks == (0, 1, 2)
    assert [pool.is_in_use(block) for block in (0, 1, 2, 3, -1, 8)] == [True] * 3 + [False] * 3
    assert pool.num_free == 5
    pool.check_integrity()


def test_the_block_freed_last_is_reused_first(pool: BlockPool) -> None:
    pool.allocate(4)

    pool.free((1, 3))

    assert pool.allocate(2) == (1, 3)


def test_an_allocation_beyond_the_free_blocks_says_how_many_are_free_and_takes_none(
    pool: BlockPool,
) -> None:
    pool.allocate(6)

    with pytest.raises(OverloadedError, match="3 KV blocks needed, 2 of 8 free"):
        pool.allocate(3)

    assert pool.num_free == 2
    pool.check_integrity()


def test_a_negative_allocation_is_a_bug(pool: BlockPool) -> None:
    with pytest.raises(InvariantError, match="-1"):
        pool.allocate(-1)


@pytest.mark.parametrize("blocks", [(0, 2), (0, 8), (0, -1), (0, 0)])
def test_a_wrong_free_changes_nothing(pool: BlockPool, blocks: tuple[int, ...]) -> None:
    pool.allocate(2)

    with pytest.raises(InvariantError):
        pool.free(blocks)

    assert pool.num_free == 6
    assert pool.is_in_use(0)
    pool.check_integrity()


def test_pool_integrity_notices_a_block_that_is_free_twice(pool: BlockPool) -> None:
    pool._free.append(0)

    with pytest.raises(InvariantError, match="twice"):
        pool.check_integrity()


def test_pool_integrity_notices_a_lost_block(pool: BlockPool) -> None:
    pool._free.remove(5)

    with pytest.raises(InvariantError, match=r"\[5\]"):
        pool.check_integrity()


def test_a_table_takes_a_block_only_when_the_last_one_is_full(pool: BlockPool) -> None:
    table = BlockTable(pool)

    needed = []
    for count in (3, 1, 1, 8):
        needed.append(table.blocks_needed(count))
        table.append(count)

    assert needed == [1, 0, 1, 2]
    assert (table.length, table.blocks) == (13, (0, 1, 2, 3))
    check_pool(pool, [table])


def test_rejected_tokens_free_the_blocks_wholly_beyond_the_length(pool: BlockPool) -> None:
    table = BlockTable(pool)
    table.append(13)

    table.rollback(5)

    assert (table.length, table.blocks, pool.num_free) == (5, (0, 1), 6)
    check_pool(pool, [table])


def test_a_rollback_inside_a_block_keeps_it(pool: BlockPool) -> None:
    table = BlockTable(pool)
    table.append(8)

    table.rollback(5)

    assert (table.length, table.blocks) == (5, (0, 1))


def test_a_rollback_to_a_block_boundary_frees_the_next_block(pool: BlockPool) -> None:
    table = BlockTable(pool)
    table.append(5)

    table.rollback(4)

    assert table.blocks == (0,)


@pytest.mark.parametrize("length", [-1, 6])
def test_a_rollback_outside_what_is_held_is_a_bug(pool: BlockPool, length: int) -> None:
    table = BlockTable(pool)
    table.append(5)

    with pytest.raises(InvariantError):
        table.rollback(length)

    assert table.length == 5


def test_an_append_that_does_not_fit_changes_nothing(pool: BlockPool) -> None:
    table, other = BlockTable(pool), BlockTable(pool)
    other.append(26)
    table.append(3)

    with pytest.raises(OverloadedError):
        table.append(2)

    assert (table.length, table.blocks) == (3, (7,))
    check_pool(pool, [table, other])


def test_a_negative_append_is_a_bug(pool: BlockPool) -> None:
    with pytest.raises(InvariantError):
        BlockTable(pool).append(-1)


def test_release_frees_everything_once(pool: BlockPool) -> None:
    table = BlockTable(pool)
    table.append(13)

    table.release()
    table.release()

    assert (table.length, table.blocks, pool.num_free) == (0, (), 8)
    check_pool(pool, [table])


def test_a_released_table_cannot_grow(pool: BlockPool) -> None:
    table = BlockTable(pool)
    table.release()

    with pytest.raises(InvariantError, match="released"):
        table.append(1)


def test_table_integrity_notices_too_few_blocks(pool: BlockPool) -> None:
    table = BlockTable(pool)
    table.append(4)
    table._length = 5

    with pytest.raises(InvariantError, match="1 KV blocks held for 5 tokens"):
        table.check_integrity()


def test_table_integrity_notices_a_block_held_twice(pool: BlockPool) -> None:
    table = BlockTable(pool)
    table.append(8)
    table._blocks = (0, 0)

    with pytest.raises(InvariantError, match="twice"):
        table.check_integrity()


def test_table_integrity_notices_a_block_freed_behind_its_back(pool: BlockPool) -> None:
    table = BlockTable(pool)
    table.append(8)
    pool.free((1,))

    with pytest.raises(InvariantError, match=r"\[1\]"):
        table.check_integrity()


def test_two_tables_must_not_share_a_block(pool: BlockPool) -> None:
    table, other = BlockTable(pool), BlockTable(pool)
    table.append(4)
    other.append(4)
    other._blocks = table.blocks

    with pytest.raises(InvariantError, match="two tables"):
        check_pool(pool, [table, other])


def test_a_block_in_use_must_be_in_some_table(pool: BlockPool) -> None:
    pool.allocate(2)

    with pytest.raises(InvariantError, match="2 KV blocks are in use but in no table"):
        check_pool(pool, [])


def test_a_pool_is_checked_only_against_its_own_tables(pool: BlockPool) -> None:
    stranger = BlockTable(BlockPool(8, 4))

    with pytest.raises(InvariantError, match="another pool"):
        check_pool(pool, [stranger])
