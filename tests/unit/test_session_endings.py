"""How a session ends from outside, and what it makes of messages that come after the end or out of time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from specdec_core.errors import PeerUnavailableError, ProtocolError
from specdec_core.messages import Close, Failed
from specdec_core.session.events import (
    Abort,
    DrafterLost,
    DrafterOpened,
    DraftLate,
    Finish,
    Release,
    TargetLost,
    TargetOpened,
)
from specdec_core.session.phases import Phase
from specdec_core.session.replies import from_drafter, from_target
from specdec_core.types import Coupled, FinishReason
from tests.support.sessions import (
    Script,
    drafting,
    finished,
    first_round,
    opening,
    proposed,
    spec_of,
    verified,
    verifying,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdec_core.session.events import Input

GONE = PeerUnavailableError("gone")


@pytest.mark.parametrize(
    ("path", "holds_target"),
    [(opening, False), (first_round, True), (drafting, True), (verifying, True)],
)
def test_an_abort_releases_whoever_holds_the_session(
    path: Callable[[], Script], holds_target: bool
) -> None:
    script = path()

    effects = script.feed(Abort(FinishReason.CANCELLED))

    target = Close("s", 1) if holds_target else None
    assert effects == (Release(target, Close("s", 1)), Finish(FinishReason.CANCELLED, None))


def test_an_abort_before_anything_opened_has_nothing_to_close() -> None:
    effects = Script(spec_of()).feed(Abort(FinishReason.ERROR, GONE))

    assert effects == (Release(None, None), Finish(FinishReason.ERROR, GONE))


@pytest.mark.parametrize(
    "event",
    [
        TargetOpened(1),
        TargetLost(1, GONE),
        DrafterOpened(1),
        DrafterLost(1),
        DraftLate(1, 4),
        Abort(FinishReason.CANCELLED),
        proposed(drafting().state, 5),
        verified(verifying().state, 5, 6, 7),
    ],
    ids=lambda event: type(event).__name__,
)
def test_inputs_after_the_end_are_ignored(event: Input) -> None:
    script = finished()
    before = script.state

    assert script.feed(event) == ()
    assert script.state == before


@pytest.mark.parametrize("event", [TargetOpened(2), DrafterOpened(2)])
def test_an_opening_that_cannot_happen_now_is_refused(event: Input) -> None:
    script = drafting()
    script.feed(DrafterLost(1), TargetLost(1, GONE), TargetOpened(2), DrafterOpened(2))
    script.verify(4)
    assert script.phase is Phase.DRAFTING

    with pytest.raises(ProtocolError, match=f"{type(event).__name__} cannot happen while drafting"):
        script.feed(event)


@pytest.mark.parametrize("event", [TargetOpened(1), DrafterOpened(1)])
def test_an_opening_of_an_older_epoch_is_stale_in_every_phase(event: Input) -> None:
    script = drafting()
    script.feed(DrafterLost(1), TargetLost(1, GONE), TargetOpened(2), DrafterOpened(2))
    script.verify(4)

    assert script.feed(event) == ()
    assert script.state.stats.num_stale_messages == 1


def test_a_failed_reply_is_the_loss_of_its_peer() -> None:
    failed = Failed("s", 3, 0, GONE)

    assert from_target(failed) == TargetLost(3, GONE)
    assert from_drafter(failed) == DrafterLost(3)


def test_any_other_reply_is_an_input_as_it_is() -> None:
    answer, evidence = proposed(drafting().state, 5), verified(verifying().state, 5, 6, 7)

    assert from_drafter(answer) is answer
    assert from_target(evidence) is evidence
    assert answer.block.proposal == Coupled()
