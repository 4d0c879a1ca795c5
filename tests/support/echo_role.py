"""A deterministic role and small helpers to drive one over the wire."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from specdec_core.messages import Close, Extend, Failed, Open, Propose, Proposed, Verified
from specdec_core.params import SamplingParams
from specdec_core.types import (
    AcceptanceRule,
    Coupled,
    DraftBlock,
    Evidence,
    NoiseKey,
    OneHot,
    TargetDraws,
)
from specdec_proto.v1 import target_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

    from grpc import aio

    from deployments.transport.client import DrafterStream, TargetStream
    from specdec_core.messages import RoleReply

    Call = aio.StreamStreamCall[target_pb2.ExtendRequest, target_pb2.ExtendResponse]


class EchoRole:
    """Answers every wish with a function of what it was sent; steps only while ``gate`` is set."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.sessions: dict[str, int] = {}
        self.closed: list[Close] = []
        self.batch_sizes: list[int] = []
        self.threads: set[str] = set()
        self.changed = threading.Event()
        self.stepping = threading.Event()
        self._waiting: list[Extend | Propose] = []

    @property
    def has_work(self) -> bool:
        return bool(self._waiting)

    def submit(self, message: Open | Extend | Propose | Close) -> None:
        self.threads.add(threading.current_thread().name)
        match message:
            case Open(session_id, epoch):
                self.sessions[session_id] = epoch
            case Close(session_id, epoch):
                if self.sessions.get(session_id) == epoch:
                    del self.sessions[session_id]
                self.closed.append(message)
                self.changed.set()
            case _:
                self._waiting.append(message)

    def step(self) -> list[RoleReply]:
        self.stepping.set()
        assert self.gate.wait(30)
        batch, self._waiting = self._waiting, []
        self.batch_sizes.append(len(batch))
        if any(message.tokens == (666,) for message in batch):
            raise RuntimeError("the model broke")
        return [_answer(message) for message in batch]


def _answer(message: Extend | Propose) -> RoleReply:
    base_len = message.base_len + len(message.tokens)
    echo = tuple(token + 1000 for token in message.tokens)
    if isinstance(message, Extend):
        return Verified(
            message.session_id, Evidence(base_len, message.epoch, TargetDraws(echo[-17:]))
        )
    return Proposed(
        message.session_id,
        DraftBlock(base_len, message.epoch, echo[: message.num_draft_tokens], OneHot()),
    )


def opening(session_id: str, epoch: int = 1) -> Open:
    return Open(session_id, epoch, 3, SamplingParams(), AcceptanceRule.COUPLED, NoiseKey(seed=7))


def extend(session_id: str, *tokens: int, base_len: int = 0, epoch: int = 1) -> Extend:
    draft = DraftBlock(base_len + len(tokens), epoch, (5, 6), Coupled())
    return Extend(session_id, epoch, base_len, tokens, draft)


def evidence(base_len: int, *tokens: int, epoch: int = 1) -> Evidence:
    return Evidence(base_len, epoch, TargetDraws(tokens))


class Inbox:
    """The replies of one session."""

    def __init__(self, stream: TargetStream | DrafterStream, session_id: str) -> None:
        self.replies: asyncio.Queue[RoleReply] = asyncio.Queue()
        stream.attach(session_id, self.replies.put_nowait)

    async def next(self) -> RoleReply:
        return await asyncio.wait_for(self.replies.get(), 10)

    async def next_failure(self) -> Failed:
        reply = await self.next()
        assert isinstance(reply, Failed), reply
        return reply


async def until(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, 10)
    event.clear()


async def frame_of(call: Call) -> target_pb2.ExtendResponse:
    response = await asyncio.wait_for(call.read(), 10)
    assert isinstance(response, target_pb2.ExtendResponse)
    return response


async def eventually(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("did not come true within 10 s")
