"""Literal sessions: a spec in one line, the peers' answers to whatever the session waits for, and paths into each phase."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specdec_core.draft_length.fixed import Fixed
from specdec_core.messages import Proposed, Verified
from specdec_core.params import SamplingParams
from specdec_core.session.events import DrafterOpened, Emit, TargetOpened
from specdec_core.session.session import advance, start
from specdec_core.session.state import SessionSpec
from specdec_core.types import (
    AcceptanceRule,
    Coupled,
    DraftBlock,
    Evidence,
    NoiseKey,
    TargetDraws,
)
from tests.support.generation import letters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdec_core.session.commit_gate import TextDecoder
    from specdec_core.session.events import Effect, Input
    from specdec_core.session.phases import Phase
    from specdec_core.session.state import SessionState
    from specdec_core.types import CommittedToken, Proposal

PROMPT = (1, 2, 3)


def spec_of(
    params: SamplingParams | None = None,
    *,
    prompt: tuple[int, ...] = PROMPT,
    vocab_size: int = 26,
    max_context: int = 64,
    max_draft_tokens: int = 2,
    decode: TextDecoder = letters,
) -> SessionSpec:
    return SessionSpec(
        session_id="s",
        prompt=prompt,
        params=params or SamplingParams(),
        rule=AcceptanceRule.COUPLED,
        noise=NoiseKey(7),
        vocab_size=vocab_size,
        max_context=max_context,
        max_draft_tokens=max_draft_tokens,
        draft_length=Fixed(max_draft_tokens),
        decode=decode,
    )


def proposed(state: SessionState, *tokens: int, proposal: Proposal | None = None) -> Proposed:
    """The drafter's answer to what the session asks now."""
    block = DraftBlock(len(state.tokens), state.drafter.epoch, tokens, proposal or Coupled())
    return Proposed("s", block)


def verified(state: SessionState, *draws: int) -> Verified:
    """The target's answer to what the session asks now."""
    return Verified("s", Evidence(len(state.tokens), state.target.epoch, TargetDraws(draws)))


@dataclass
class Script:
    """A session and all it has emitted; every step is checked."""

    spec: SessionSpec
    effects: tuple[Effect, ...] = ()
    committed: list[CommittedToken] = field(default_factory=list)
    text: str = ""

    def __post_init__(self) -> None:
        self.state, self.effects = start(self.spec)

    @property
    def phase(self) -> Phase:
        return self.state.phase

    @property
    def epochs(self) -> tuple[int, int]:
        return self.state.target.epoch, self.state.drafter.epoch

    def feed(self, *events: Input) -> tuple[Effect, ...]:
        """The effects of the last of these inputs."""
        for event in events:
            self.state, self.effects = advance(self.state, event)
            self.state.check_integrity()
            for effect in self.effects:
                if isinstance(effect, Emit):
                    self.committed += effect.tokens
                    self.text += effect.text
        return self.effects

    def propose(self, *tokens: int, proposal: Proposal | None = None) -> tuple[Effect, ...]:
        return self.feed(proposed(self.state, *tokens, proposal=proposal))

    def verify(self, *draws: int) -> tuple[Effect, ...]:
        return self.feed(verified(self.state, *draws))


def opening(spec: SessionSpec | None = None) -> Script:
    """Waits for the target; the drafter is open."""
    script = Script(spec or spec_of())
    script.feed(DrafterOpened(1))
    return script


def first_round(spec: SessionSpec | None = None) -> Script:
    """Verifies plainly while the drafter reads."""
    script = opening(spec)
    script.feed(TargetOpened(1))
    return script


def drafting(spec: SessionSpec | None = None, first: int = 4) -> Script:
    """Waits for the first draft, behind one committed token."""
    script = first_round(spec)
    script.verify(first)
    return script


def verifying(spec: SessionSpec | None = None, draft: Sequence[int] = (5, 6)) -> Script:
    """Waits for evidence on the first draft."""
    script = drafting(spec)
    script.propose(*draft)
    return script


def finished(spec: SessionSpec | None = None) -> Script:
    """Stopped after 26 letters at most, by the end of the context."""
    script = first_round(spec or spec_of(max_context=4))
    script.verify(4)
    return script
