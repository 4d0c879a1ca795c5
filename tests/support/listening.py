"""Generations on a wire cluster that a test reads as slowly as it wants, all of one text; and peers that do not play along."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deployments.coordinator.session_driver import SessionDriver
from specdec_core import reference
from specdec_core.drafters.lm import LmDrafter
from specdec_core.messages import Close, Open, Propose, Proposed
from specdec_core.params import GenerationParams, SamplingParams, SpeculationParams
from specdec_core.session.events import Emit, Finish
from specdec_core.types import DraftBlock, NoiseKey, OneHot
from tests.support.generation import Wish
from tests.support.table_model import TableModel
from tests.support.wire_cluster import spec_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from deployments.locator import Lease
    from specdec_core.messages import DrafterMessage, RoleReply, TargetMessage
    from specdec_core.session.events import Output
    from specdec_core.session.state import SessionState
    from specdec_core.stats import FallbackReason
    from tests.support.wire_cluster import WireCluster

    Events = AsyncGenerator[tuple[SessionState, Output], None]

PROMPT = (3, 1, 4, 1, 5)
PARAMS = SamplingParams(temperature=0.9, max_tokens=60)


def model() -> TableModel:
    return TableModel(1)


EXPECTED = tuple(reference.plain(model().logits, PROMPT, PARAMS, NoiseKey(5), 256))


def good_drafter() -> LmDrafter:
    return LmDrafter(model().perturbed(2, 0.1), vocab_size=12)


@dataclass
class Listener:
    """Reads a generation as slowly as a test wants."""

    events: Events
    tokens: tuple[int, ...] = ()
    state: SessionState | None = None
    finish: Finish | None = None

    async def read(self, num_tokens: int = 10**9) -> None:
        """Until that many tokens have come in all, or the generation is over."""
        async with asyncio.timeout(20):
            while len(self.tokens) < num_tokens and self.finish is None:
                self.state, effect = await anext(self.events)
                if isinstance(effect, Emit):
                    self.tokens += tuple(each.token for each in effect.tokens)
                elif isinstance(effect, Finish):
                    self.finish = effect

    @property
    def fallbacks(self) -> dict[FallbackReason, int]:
        assert self.state is not None
        return dict(self.state.stats.fallbacks)

    @property
    def num_drafts(self) -> int:
        assert self.state is not None
        return self.state.stats.num_drafts


def listener(cluster: WireCluster, session_id: str = "s") -> Listener:
    """A generation whose text, given a sound cluster, is ``EXPECTED``."""
    wish = Wish(session_id, PROMPT, GenerationParams(PARAMS, SpeculationParams(3), seed=5))
    return Listener(SessionDriver(spec_of(wish, model()), cluster.peers).run())


class MuteRole:
    """Takes everything and answers nothing."""

    has_work = False

    def submit(self, message: TargetMessage | DrafterMessage) -> None:
        del message

    def step(self) -> list[RoleReply]:
        return []


class BabblingRole:
    """Drafts more than was asked for."""

    def __init__(self) -> None:
        self._wishes: list[Propose] = []

    @property
    def has_work(self) -> bool:
        return bool(self._wishes)

    def submit(self, message: Open | Propose | Close) -> None:
        if isinstance(message, Propose) and message.num_draft_tokens:
            self._wishes.append(message)

    def step(self) -> list[RoleReply]:
        wishes, self._wishes = self._wishes, []
        return [
            Proposed(
                each.session_id,
                DraftBlock(each.base_len + len(each.tokens), each.epoch, (1,) * 20, OneHot()),
            )
            for each in wishes
        ]


class BrokenLocator:
    async def acquire(self, session_id: str) -> Lease:
        raise RuntimeError(f"a bug, met by {session_id}")
