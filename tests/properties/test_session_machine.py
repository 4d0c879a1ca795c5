"""The session in a storm: whatever its peers do and in whatever order, its output is what plain decoding gives."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from specdec_core.errors import (
    InvalidArgumentError,
    PeerUnavailableError,
    ProtocolError,
    StaleMessageError,
)
from specdec_core.messages import Close, Extend, Propose, Proposed, Verified
from specdec_core.params import SamplingParams
from specdec_core.session.events import (
    Abort,
    DrafterLost,
    DrafterOpened,
    DraftLate,
    Emit,
    Finish,
    OpenDrafter,
    OpenTarget,
    Release,
    RequestDraft,
    RequestVerify,
    TargetLost,
    TargetOpened,
)
from specdec_core.session.phases import TRANSITIONS, Action, Phase
from specdec_core.session.session import advance, start
from specdec_core.types import DraftBlock, Evidence, FinishReason, OneHot, Sparse, TargetDraws
from tests.support.generation import letters
from tests.support.sessions import PROMPT, spec_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdec_core.errors import SpecdecError
    from specdec_core.session.events import Effect, Input
    from specdec_core.types import Proposal

SEQUENCE = (4, 5, 9, 4, 0, 2, 2, 7, 9, 9, 1, 5, 3, 8, 6, 4, 4, 5, 9, 2, 1, 0, 7, 3)
PARAMS = {
    "length": SamplingParams(max_tokens=17),
    "stop token": SamplingParams(max_tokens=24, stop_token_ids=(8,)),
    "stop string": SamplingParams(max_tokens=24, stop=("ihz", "gee")),
}
# Output tokens and text of plain decoding.
ENDS = {
    "length": (17, letters(SEQUENCE[:17])),
    "stop token": (14, letters(SEQUENCE[:13])),
    "stop string": (17, letters(SEQUENCE[:14])),
}


class Storm:
    """A driver whose peers answer at any time, twice, late, or not at all, and a target that draws ``SEQUENCE``."""

    def __init__(self, seed: str, name: str) -> None:
        self.rng = random.Random(seed)
        self.extend: Extend | None = None  # being worked on by the target
        self.wish: Propose | None = None  # being worked on by the drafter
        self.opening: list[TargetOpened | DrafterOpened] = []  # what will answer the opens that run
        self.sent: list[Input] = []  # answers on their way, or seen before
        self.target_kv: list[int] = []
        self.drafter_kv: list[int] = []
        self.held: set[tuple[str, int]] = set()  # (peer, epoch) that hold the session
        self.emitted: list[int] = []
        self.text = ""
        self.finish: Finish | None = None
        self.seen: Counter[str] = Counter()
        self.num_output, self.whole_text = ENDS[name]
        spec = spec_of(PARAMS[name], max_draft_tokens=self.rng.randrange(6))
        self.state, effects = start(spec)
        self.run(effects)

    # The driver.

    def feed(self, event: Input) -> None:
        before = self.state
        try:
            self.state, effects = advance(before, event)
        except ProtocolError:
            assert TRANSITIONS[before.phase, type(event)] is Action.REFUSE
            return
        self.run(effects)
        self.check()

    def run(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            assert self.finish is None
            match effect:
                case OpenTarget(message):
                    self.target_kv, self.extend = [], None
                    self.opening.append(TargetOpened(message.epoch))
                case OpenDrafter(message):
                    self.drafter_kv, self.wish = [], None
                    self.opening.append(DrafterOpened(message.epoch))
                case RequestVerify(message):
                    self.take_extend(message)
                case RequestDraft(message):
                    self.take_wish(message)
                case Emit(tokens, text):
                    self.emitted += [committed.token for committed in tokens]
                    self.text += text
                case Release(target, drafter):
                    self.release("target", target)
                    self.release("drafter", drafter)
                case Finish():
                    self.finish = effect

    def release(self, peer: str, close: Close | None) -> None:
        if close:
            self.held.remove((peer, close.epoch))

    def check(self) -> None:
        self.state.check_integrity()
        assert tuple(self.emitted) == self.state.output
        assert self.state.output == SEQUENCE[: len(self.emitted)]
        assert self.whole_text.startswith(self.text)
        if self.finish:
            assert self.held == set()
            assert self.finish.reason is self.state.finish

    # The peers: each holds a prefix, which every message must extend to exactly what is committed.

    def take_extend(self, message: Extend) -> None:
        assert ("target", message.epoch) in self.held
        assert message.base_len <= len(self.target_kv)
        self.target_kv[message.base_len :] = message.tokens
        assert self.target_kv == list(self.state.tokens)
        assert message.draft.base_len == len(self.target_kv)
        self.target_kv += message.draft.tokens
        self.extend = message

    def take_wish(self, message: Propose) -> None:
        assert ("drafter", message.epoch) in self.held
        assert message.base_len <= len(self.drafter_kv)
        self.drafter_kv[message.base_len :] = message.tokens
        assert self.drafter_kv == list(self.state.tokens)
        self.wish = message if message.num_draft_tokens else None

    # What may happen.

    def a_peer_opens(self) -> None:
        event = self.opening.pop(self.rng.randrange(len(self.opening)))
        peer = "target" if isinstance(event, TargetOpened) else "drafter"
        self.held.add((peer, event.epoch))
        self.sent.append(event)
        self.feed(event)

    def the_target_answers(self) -> None:
        """Draws behind a wrong draft token are draws of another text."""
        assert self.extend
        draft, start_at = self.extend.draft, self.extend.draft.base_len - len(PROMPT)
        draws = list(SEQUENCE[start_at : start_at + draft.num_draft_tokens + 1])
        wrong = [guess != draw for guess, draw in zip(draft.tokens, draws, strict=False)]
        if any(wrong):
            rest = wrong.index(True) + 1
            draws[rest:] = [self.rng.randrange(26) for _ in draws[rest:]]
        outcome = TargetDraws(tuple(draws))
        self.sent.append(Verified("s", Evidence(draft.base_len, self.extend.epoch, outcome)))
        self.extend = None

    def the_drafter_answers(self) -> None:
        """Right, wrong from some token on, outside the vocabulary, too long, empty, or with too few laws."""
        assert self.wish
        base_len = self.wish.base_len + len(self.wish.tokens)
        known = SEQUENCE[base_len - len(PROMPT) :][: self.rng.randrange(7)]
        shift, flip = self.rng.choice([0, 0, 1, 1, -30]), self.rng.randrange(7)
        tokens = tuple(token + shift * (index >= flip) for index, token in enumerate(known))
        proposals: tuple[Proposal, ...] = (OneHot(), OneHot(), OneHot(), Sparse((), ()))
        proposal = self.rng.choice(proposals)
        self.sent.append(Proposed("s", DraftBlock(base_len, self.wish.epoch, tokens, proposal)))
        self.wish = None

    def the_newest_answer_arrives(self) -> None:
        self.arrive(self.sent[-1])

    def an_older_answer_arrives(self) -> None:
        self.arrive(self.rng.choice(self.sent[-6:]))

    def arrive(self, event: Input) -> None:
        if event != DrafterOpened(self.state.drafter.epoch):  # twice, it is an opening of its own
            self.feed(event)

    def the_draft_is_late(self) -> None:
        self.feed(DraftLate(self.state.drafter.epoch, len(self.state.tokens)))

    def the_target_is_lost(self) -> None:
        self.lose_target(self.rng.choice([PeerUnavailableError("gone"), StaleMessageError("old")]))

    def the_target_refuses_the_draft(self) -> None:
        self.lose_target(InvalidArgumentError("bad_words", "leaves no token that may follow"))

    def lose_target(self, error: SpecdecError) -> None:
        epoch = self.state.target.epoch
        self.held.discard(("target", epoch))
        self.opening = [event for event in self.opening if event != TargetOpened(epoch)]
        self.feed(TargetLost(epoch, error))

    def the_drafter_is_lost(self) -> None:
        epoch = self.state.drafter.epoch
        self.held.discard(("drafter", epoch))
        self.opening = [event for event in self.opening if event != DrafterOpened(epoch)]
        self.feed(DrafterLost(epoch))

    def an_old_loss_is_told_again(self) -> None:
        gone = PeerUnavailableError("gone")
        self.feed(TargetLost(self.state.target.epoch - 1, gone))
        self.feed(DrafterLost(self.state.drafter.epoch - 1))

    def the_client_leaves(self) -> None:
        self.feed(Abort(FinishReason.CANCELLED))
        assert self.state.finish is FinishReason.CANCELLED

    def step(self) -> None:
        """One of the things that may happen now, the helpful ones more often."""
        may_lose = self.state.target_losses < 3
        is_drafted = self.state.draft is not None and self.state.draft.num_draft_tokens > 0
        odds: dict[Callable[[], None], float] = {
            self.a_peer_opens: 4 * bool(self.opening),
            self.the_target_answers: 4 * bool(self.extend),
            self.the_drafter_answers: 4 * bool(self.wish),
            self.the_newest_answer_arrives: 3 * bool(self.sent),
            self.an_older_answer_arrives: 3 * bool(self.sent),
            self.the_draft_is_late: 1,
            self.the_target_is_lost: 0.7 * may_lose,
            self.the_target_refuses_the_draft: 0.5 * (may_lose and is_drafted),
            self.the_drafter_is_lost: 0.7 * bool(self.state.spec.max_draft_tokens),
            self.an_old_loss_is_told_again: 0.5,
            self.the_client_leaves: 0.02,
        }
        (happens,) = self.rng.choices(list(odds), weights=list(odds.values()))
        self.seen[f"{happens.__name__} while {self.state.phase.value}"] += 1
        happens()


def storm(seed: str, name: str) -> Storm:
    """Run one session to its end."""
    walk = Storm(seed, name)
    for _ in range(5000):
        if walk.finish:
            return walk
        walk.step()
    raise AssertionError(f"session {seed} does not end")


@pytest.mark.parametrize("name", PARAMS)
@pytest.mark.parametrize("seed", range(12))
def test_every_storm_ends_with_the_text_of_plain_decoding(seed: int, name: str) -> None:
    for walk in (storm(f"{seed} {number}", name) for number in range(10)):
        if walk.state.finish is not FinishReason.CANCELLED:
            assert (len(walk.emitted), walk.text) == (walk.num_output, walk.whole_text)


def test_storms_reach_every_kind_of_weather() -> None:
    walks = [storm(f"weather {number}", "length") for number in range(60)]

    seen = sum((walk.seen for walk in walks), Counter[str]())
    phases = [phase.value for phase in Phase if phase is not Phase.FINISHED]
    for trouble in ("the_target_is_lost", "the_drafter_is_lost", "an_older_answer_arrives"):
        assert all(seen[f"{trouble} while {phase}"] > 20 for phase in phases)
    assert sum(walk.state.stats.num_accepted_tokens for walk in walks) > 40
    assert {walk.state.finish for walk in walks} == {FinishReason.LENGTH, FinishReason.CANCELLED}
