"""Each pair of the transition table: what a current input does in each phase, and that an outdated one does nothing."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, get_args

import pytest

from specdec_core.errors import PeerUnavailableError, ProtocolError
from specdec_core.messages import Proposed, Verified
from specdec_core.session.events import (
    Abort,
    DrafterLost,
    DrafterOpened,
    DraftLate,
    Input,
    TargetLost,
    TargetOpened,
)
from specdec_core.session.phases import NEXT_PHASES, TRANSITIONS, Action, Phase
from specdec_core.session.session import advance
from specdec_core.types import Coupled, DraftBlock, Evidence, FinishReason, TargetDraws
from tests.support.sessions import drafting, finished, opening, proposed, verified, verifying

if TYPE_CHECKING:
    from specdec_core.session.state import SessionState

GONE = PeerUnavailableError("gone")
PATHS = {
    Phase.OPENING: opening,
    Phase.DRAFTING: drafting,
    Phase.VERIFYING: verifying,
    Phase.FINISHED: finished,
}
# What a current input leads to, written down apart from the table.
EXPECTED = {
    (Phase.OPENING, TargetOpened): Phase.VERIFYING,
    (Phase.DRAFTING, TargetOpened): ProtocolError,
    (Phase.VERIFYING, TargetOpened): ProtocolError,
    (Phase.OPENING, TargetLost): Phase.OPENING,
    (Phase.DRAFTING, TargetLost): Phase.OPENING,
    (Phase.VERIFYING, TargetLost): Phase.OPENING,
    (Phase.OPENING, DrafterOpened): Phase.OPENING,
    (Phase.DRAFTING, DrafterOpened): ProtocolError,
    (Phase.VERIFYING, DrafterOpened): Phase.VERIFYING,
    (Phase.OPENING, DrafterLost): Phase.OPENING,
    (Phase.DRAFTING, DrafterLost): Phase.VERIFYING,
    (Phase.VERIFYING, DrafterLost): Phase.VERIFYING,
    (Phase.OPENING, DraftLate): Phase.OPENING,
    (Phase.DRAFTING, DraftLate): Phase.VERIFYING,
    (Phase.VERIFYING, DraftLate): Phase.VERIFYING,
    (Phase.OPENING, Proposed): Phase.OPENING,
    (Phase.DRAFTING, Proposed): Phase.VERIFYING,
    (Phase.VERIFYING, Proposed): Phase.VERIFYING,
    (Phase.OPENING, Verified): Phase.OPENING,
    (Phase.DRAFTING, Verified): Phase.DRAFTING,
    (Phase.VERIFYING, Verified): Phase.DRAFTING,
    (Phase.OPENING, Abort): Phase.FINISHED,
    (Phase.DRAFTING, Abort): Phase.FINISHED,
    (Phase.VERIFYING, Abort): Phase.FINISHED,
} | {(Phase.FINISHED, kind): Phase.FINISHED for kind in get_args(Input)}


def current(state: SessionState, kind: type[Input]) -> Input:
    """An input of this kind that bears the stamp the session knows."""
    inputs: dict[type[Input], Input] = {
        TargetOpened: TargetOpened(state.target.epoch),
        TargetLost: TargetLost(state.target.epoch, GONE),
        DrafterOpened: DrafterOpened(state.drafter.epoch),
        DrafterLost: DrafterLost(state.drafter.epoch),
        DraftLate: DraftLate(state.drafter.epoch, len(state.tokens)),
        Proposed: proposed(state, 5),
        Verified: verified(state, 5, 6, 7),
        Abort: Abort(FinishReason.CANCELLED),
    }
    return inputs[kind]


def outdated(state: SessionState, kind: type[Input]) -> Input:
    """An input of this kind from an epoch before."""
    target, drafter = state.target.epoch - 1, state.drafter.epoch - 1
    base_len = len(state.tokens)
    inputs: dict[type[Input], Input] = {
        TargetOpened: TargetOpened(target),
        TargetLost: TargetLost(target, GONE),
        DrafterOpened: DrafterOpened(drafter),
        DrafterLost: DrafterLost(drafter),
        DraftLate: DraftLate(drafter, base_len),
        Proposed: Proposed("s", DraftBlock(base_len, drafter, (5,), Coupled())),
        Verified: Verified("s", Evidence(base_len, target, TargetDraws((5, 6, 7)))),
    }
    return inputs[kind]


def test_the_table_has_every_pair_and_no_other() -> None:
    assert set(TRANSITIONS) == set(product(Phase, get_args(Input))) == set(EXPECTED)
    assert set(NEXT_PHASES) == set(Action) == set(TRANSITIONS.values())


@pytest.mark.parametrize(("phase", "kind"), EXPECTED, ids=str)
def test_each_input_does_in_each_phase_what_the_table_says(phase: Phase, kind: type[Input]) -> None:
    state = PATHS[phase]().state
    assert state.phase is phase
    event = current(state, kind)
    expected = EXPECTED[phase, kind]

    if not isinstance(expected, Phase):
        assert TRANSITIONS[phase, kind] is Action.REFUSE
        with pytest.raises(expected, match=f"{kind.__name__} cannot happen while {phase.value}"):
            advance(state, event)
        return
    following, _ = advance(state, event)

    following.check_integrity()
    assert following.phase is expected
    assert expected in {phase, *NEXT_PHASES[TRANSITIONS[phase, kind]]}


@pytest.mark.parametrize("kind", [kind for kind in get_args(Input) if kind is not Abort])
@pytest.mark.parametrize("phase", [Phase.OPENING, Phase.DRAFTING, Phase.VERIFYING])
def test_an_outdated_input_is_counted_and_does_nothing_else(
    phase: Phase, kind: type[Input]
) -> None:
    state = PATHS[phase]().state

    following, effects = advance(state, outdated(state, kind))

    assert effects == ()
    assert following.stats == state.stats.with_stale()
    assert (following.phase, following.tokens) == (state.phase, state.tokens)
