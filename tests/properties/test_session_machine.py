"""The session in a storm: whatever its peers do and in whatever order, its output is what plain decoding gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

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
    from specdec_core.errors import SpecdecError
    from specdec_core.session.events import Effect, Input

GONE = PeerUnavailableError("gone")
SEQUENCE = (4, 5, 9, 4, 0, 2, 2, 7, 9, 9, 1, 5, 3, 8, 6, 4, 4, 5, 9, 2, 1, 0, 7, 3)
PARAMS = {
    "length": SamplingParams(max_tokens=17),
    "stop token": SamplingParams(max_tokens=24, stop_token_ids=(8,)),
    "stop string": SamplingParams(max_tokens=24, stop=("ihz", "gee")),
}
ENDS = {"length": 17, "stop token": 14, "stop string": 17}  # output tokens of plain decoding
TEXTS = {
    "length": letters(SEQUENCE[:17]),
    "stop token": letters(SEQUENCE[:13]),
    "stop string": letters(SEQUENCE[:14]),
}


class Storm(RuleBasedStateMachine):
    """A driver whose peers answer at any time, twice, late, or not at all, and a target that draws ``SEQUENCE``."""

    def __init__(self) -> None:
        super().__init__()
        self.extend: Extend | None = None  # being worked on by the target
        self.wish: Propose | None = None  # being worked on by the drafter
        self.opening: list[Input] = []  # what will answer the opens that run
        self.sent: list[Input] = []  # answers on their way, or seen before
        self.target_kv: list[int] = []
        self.drafter_kv: list[int] = []
        self.held: set[tuple[str, int]] = set()  # (peer, epoch) that hold the session
        self.emitted: list[int] = []
        self.text = ""
        self.finish: Finish | None = None

    @initialize(name=st.sampled_from(sorted(PARAMS)), max_draft_tokens=st.integers(0, 5))
    def begin(self, name: str, max_draft_tokens: int) -> None:
        self.name = name
        self.state, effects = start(spec_of(PARAMS[name], max_draft_tokens=max_draft_tokens))
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

    # The peers.

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

    @precondition(lambda self: self.opening)
    @rule(data=st.data())
    def a_peer_opens(self, data: st.DataObject) -> None:
        event = self.opening.pop(data.draw(st.integers(0, len(self.opening) - 1)))
        match event:
            case TargetOpened(epoch) if epoch == self.state.target.epoch:
                self.held.add(("target", epoch))
            case DrafterOpened(epoch) if epoch == self.state.drafter.epoch:
                self.held.add(("drafter", epoch))
        if self.finish is None:  # a driver closes by itself what opens after the end
            self.sent.append(event)
            self.feed(event)

    @precondition(lambda self: self.extend)
    @rule(garbage=st.integers(0, 25))
    def the_target_answers(self, garbage: int) -> None:
        """Draws behind a wrong draft token are draws of another text."""
        assert self.extend
        draft, start_at = self.extend.draft, self.extend.draft.base_len - len(PROMPT)
        draws = list(SEQUENCE[start_at : start_at + draft.num_draft_tokens + 1])
        wrong = [guess != draw for guess, draw in zip(draft.tokens, draws, strict=False)]
        if any(wrong):
            rest = wrong.index(True) + 1
            draws[rest:] = [garbage] * (len(draws) - rest)
        outcome = TargetDraws(tuple(draws))
        self.sent.append(Verified("s", Evidence(draft.base_len, self.extend.epoch, outcome)))
        self.extend = None

    @precondition(lambda self: self.wish)
    @rule(shift=st.sampled_from([0, 0, 1, -30]), size=st.integers(0, 7), flip=st.integers(0, 7))
    def the_drafter_answers(self, shift: int, size: int, flip: int) -> None:
        """Right, wrong from ``flip`` on, outside the vocabulary, too long or empty."""
        assert self.wish
        base_len = self.wish.base_len + len(self.wish.tokens)
        known = SEQUENCE[base_len - len(PROMPT) :][:size]
        tokens = tuple(token + shift * (index >= flip) for index, token in enumerate(known))
        block = DraftBlock(base_len, self.wish.epoch, tokens, OneHot())
        self.sent.append(Proposed("s", block))
        self.wish = None

    @precondition(lambda self: self.wish)
    @rule()
    def the_drafter_sends_a_law_too_few(self) -> None:
        assert self.wish
        base_len = self.wish.base_len + len(self.wish.tokens)
        block = DraftBlock(base_len, self.wish.epoch, (SEQUENCE[base_len - 3],), Sparse((), ()))
        self.sent.append(Proposed("s", block))
        self.wish = None

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def an_answer_arrives_in_any_order_and_perhaps_again(self, data: st.DataObject) -> None:
        newest_first = data.draw(st.integers(0, min(5, len(self.sent) - 1)))
        event = self.sent[-1 - newest_first]
        duplicate = isinstance(event, DrafterOpened) and event.epoch == self.state.drafter.epoch
        if not duplicate:  # that would be a new opening, not an answer
            self.feed(event)

    @rule()
    def the_draft_is_late(self) -> None:
        self.feed(DraftLate(self.state.drafter.epoch, len(self.state.tokens)))

    @precondition(lambda self: self.finish is None)
    @rule(is_stale=st.booleans(), error=st.sampled_from([GONE, StaleMessageError("behind")]))
    def the_target_is_lost(self, is_stale: bool, error: SpecdecError) -> None:
        epoch = self.state.target.epoch
        if not is_stale and self.state.target_losses < 3:
            self.held.discard(("target", epoch))
            self.opening = [event for event in self.opening if event != TargetOpened(epoch)]
        if is_stale or self.state.target_losses < 3:
            self.feed(TargetLost(epoch - is_stale, error))

    @precondition(lambda self: self.extend and self.extend.draft.tokens)
    @rule()
    def the_target_refuses_the_draft(self) -> None:
        epoch = self.state.target.epoch
        if self.state.target_losses < 3 and self.state.phase is Phase.VERIFYING:
            self.held.discard(("target", epoch))
            self.feed(TargetLost(epoch, InvalidArgumentError("bad_words", "leave no token")))

    @precondition(lambda self: self.finish is None and self.state.spec.max_draft_tokens)
    @rule(is_stale=st.booleans())
    def the_drafter_is_lost(self, is_stale: bool) -> None:
        epoch = self.state.drafter.epoch
        if not is_stale:
            self.held.discard(("drafter", epoch))
            self.opening = [event for event in self.opening if event != DrafterOpened(epoch)]
        self.feed(DrafterLost(epoch - is_stale))

    @precondition(lambda self: len(self.emitted) > 9 and self.finish is None)
    @rule(odds=st.integers(0, 9))
    def the_client_leaves(self, odds: int) -> None:
        if odds == 0:
            self.feed(Abort(FinishReason.CANCELLED))
            assert self.state.finish is FinishReason.CANCELLED

    # What always holds.

    @invariant()
    def the_state_is_sound(self) -> None:
        self.state.check_integrity()

    @invariant()
    def the_output_is_a_prefix_of_plain_decoding(self) -> None:
        assert tuple(self.emitted) == self.state.output
        assert self.state.output == SEQUENCE[: len(self.emitted)]
        assert TEXTS[self.name].startswith(self.text)

    @invariant()
    def a_finished_session_has_released_everything(self) -> None:
        if self.finish:
            assert self.held == set()
            assert self.finish.reason is self.state.finish

    def teardown(self) -> None:
        """Left alone, the session ends as plain decoding does."""
        while self.finish is None:
            self.feed(self.next_answer())
        self.a_finished_session_has_released_everything()
        if self.state.finish is not FinishReason.CANCELLED:
            assert len(self.emitted) == ENDS[self.name]
            assert self.text == TEXTS[self.name]

    def next_answer(self) -> Input:
        epoch, base_len = self.state.target.epoch, len(self.state.tokens)
        match self.state.phase:
            case Phase.OPENING:
                self.held.add(("target", epoch))
                return TargetOpened(epoch)
            case Phase.DRAFTING:
                return DraftLate(self.state.drafter.epoch, base_len)
            case _:
                draw = SEQUENCE[base_len - len(PROMPT)]
                draft = self.state.draft.tokens if self.state.draft else ()
                draws = TargetDraws((draw,) + (25,) * len(draft))
                return Verified("s", Evidence(base_len, epoch, draws))


Storm.TestCase.settings = settings(max_examples=300, stateful_step_count=50, deadline=None)
TestStorm = Storm.TestCase
