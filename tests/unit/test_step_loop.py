from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from deployments.transport.step_loop import StepLoop
from specdec_core.errors import DeadlineError, InvariantError, OverloadedError
from specdec_core.messages import Close, Failed
from tests.support.echo_role import EchoRole, extend, opening, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from specdec_core.messages import Extend, Open, RoleReply

Replies = asyncio.Queue[list["RoleReply"]]


def ours(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What we logged; gRPC's poller complains when event loops come and go."""
    return [each.message for each in caplog.records if each.name.startswith("deployments")]


@pytest.fixture
def role() -> EchoRole:
    return EchoRole()


@pytest.fixture
def replies() -> Replies:
    return asyncio.Queue()


@pytest.fixture
async def loop(role: EchoRole, replies: Replies) -> AsyncIterator[StepLoop[Open | Extend]]:
    loop: StepLoop[Open | Extend] = StepLoop(role, name="step", max_waiting=4)
    loop.start(replies.put_nowait)
    yield loop
    role.gate.set()
    await loop.close(10)


async def test_messages_submitted_together_join_one_step(
    role: EchoRole, replies: Replies, loop: StepLoop[Open | Extend]
) -> None:
    loop.submit([opening("a"), opening("b"), extend("b", 1), extend("a", 2)])

    batch = await asyncio.wait_for(replies.get(), 10)

    assert [reply.session_id for reply in batch] == ["b", "a"]
    assert role.batch_sizes == [2]
    assert role.threads == {"step"}
    assert threading.current_thread().name not in role.threads


async def test_a_full_queue_refuses_all_but_closes(
    role: EchoRole, loop: StepLoop[Open | Extend]
) -> None:
    role.gate.clear()
    loop.submit([opening("a"), extend("a", 1)])
    await until(role.stepping)

    loop.submit([extend("a", 2), extend("a", 3), extend("a", 4)])
    with pytest.raises(OverloadedError, match="3 messages wait"):
        loop.submit([extend("a", 5), extend("a", 6)])
    loop.submit_closes([Close("a", 1)] * 4)
    role.gate.set()
    await until(role.changed)

    assert role.sessions == {}


async def test_a_step_that_outlasts_the_time_to_close_is_told(
    role: EchoRole, loop: StepLoop[Open | Extend]
) -> None:
    role.gate.clear()
    loop.submit([opening("a"), extend("a", 1)])
    await until(role.stepping)

    with pytest.raises(DeadlineError, match=r"still running after 0\.01 s"):
        await loop.close(0.01)
    role.gate.set()
    await loop.close(10)


async def test_a_loop_that_never_started_closes_at_once(role: EchoRole) -> None:
    loop: StepLoop[Open | Extend] = StepLoop(role, name="step")

    await loop.close(0)


async def test_only_sessions_still_open_are_failed(
    role: EchoRole,
    replies: Replies,
    loop: StepLoop[Open | Extend],
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop.submit([opening("closed"), Close("closed", 1), opening("a", epoch=2)])
    loop.submit([extend("a", 666, base_len=5, epoch=2)])

    (failed,) = await asyncio.wait_for(replies.get(), 10)

    assert isinstance(failed, Failed)
    assert (failed.session_id, failed.epoch, failed.base_len) == ("a", 2, 5)
    assert isinstance(failed.error, InvariantError)
    assert role.closed == [Close("closed", 1), Close("a", 2)]
    assert ours(caplog) == ["the step failed; failing 1 open sessions"]


async def test_a_role_that_cannot_even_close_does_not_stop_the_loop(
    replies: Replies, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(EchoRole):
        def submit(self, message: object) -> None:
            raise RuntimeError(message)

    loop: StepLoop[Open | Extend] = StepLoop(Broken(), name="step")
    loop.start(replies.put_nowait)

    for name in ("a", "b"):
        loop.submit([opening(name)])
        (failed,) = await asyncio.wait_for(replies.get(), 10)
        assert failed.session_id == name
    await loop.close(10)

    assert ours(caplog) == [
        "the step failed; failing 1 open sessions",
        "session a could not be closed",
        "the step failed; failing 1 open sessions",
        "session b could not be closed",
    ]
