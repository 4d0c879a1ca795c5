"""The block pool and its tables against a dict from session to length."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    rule,
)

from specdec_core.errors import InvariantError, OverloadedError
from specdec_core.kv.block_pool import BlockPool
from specdec_core.kv.block_table import BlockTable, check_pool

NUM_BLOCKS = 8
BLOCK_SIZE = 4


def num_blocks_of(length: int) -> int:
    return len(range(0, length, BLOCK_SIZE))


class KvMachine(RuleBasedStateMachine):
    sessions: Bundle[int] = Bundle("sessions")

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS, BLOCK_SIZE)
        self.tables: dict[int, BlockTable] = {}
        self.lengths: dict[int, int] = {}
        self.num_opened = 0

    def model_free(self) -> int:
        return NUM_BLOCKS - sum(num_blocks_of(length) for length in self.lengths.values())

    @rule(target=sessions)
    def open(self) -> int:
        session = self.num_opened
        self.num_opened += 1
        self.tables[session] = BlockTable(self.pool)
        self.lengths[session] = 0
        return session

    @rule(session=sessions, count=st.integers(0, 14))
    def append(self, session: int, count: int) -> None:
        length = self.lengths[session]
        needed = num_blocks_of(length + count) - num_blocks_of(length)
        assert self.tables[session].blocks_needed(count) == needed
        if needed > self.model_free():
            with pytest.raises(OverloadedError, match=f"{self.model_free()} of 8 free"):
                self.tables[session].append(count)
            return
        before = self.tables[session].blocks
        self.tables[session].append(count)
        self.lengths[session] += count
        assert self.tables[session].blocks[: len(before)] == before

    @rule(session=sessions, share=st.floats(0, 1))
    def rollback(self, session: int, share: float) -> None:
        length = int(self.lengths[session] * share)
        before = self.tables[session].blocks
        self.tables[session].rollback(length)
        self.lengths[session] = length
        assert self.tables[session].blocks == before[: num_blocks_of(length)]

    @rule(session=sessions, excess=st.integers(1, 5))
    def rollback_beyond_the_end(self, session: int, excess: int) -> None:
        with pytest.raises(InvariantError):
            self.tables[session].rollback(self.lengths[session] + excess)

    @rule(session=consumes(sessions))
    def release(self, session: int) -> None:
        self.tables[session].release()
        self.tables[session].release()
        self.lengths[session] = 0

    @rule(session=sessions, block=st.integers(-1, NUM_BLOCKS))
    def free_with_a_block_that_is_not_in_use(self, session: int, block: int) -> None:
        if not self.pool.is_in_use(block):
            with pytest.raises(InvariantError):
                self.pool.free((*self.tables[session].blocks, block))

    @invariant()
    def lengths_and_free_blocks_are_the_models(self) -> None:
        assert {session: table.length for session, table in self.tables.items()} == self.lengths
        assert self.pool.num_free == self.model_free()

    @invariant()
    def integrity_holds(self) -> None:
        check_pool(self.pool, self.tables.values())

    def teardown(self) -> None:
        for table in self.tables.values():
            table.release()
        assert self.pool.num_free == NUM_BLOCKS
        check_pool(self.pool, self.tables.values())


TestKvModel = KvMachine.TestCase
TestKvModel.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
