"""What a session does when a peer is lost, late or wrong, when the client leaves, and when messages come out of time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from specdec_core.errors import (
    InvalidArgumentError,
    OverloadedError,
    PeerUnavailableError,
    ProtocolError,
    SpecdecError,
    StaleMessageError,
)
from specdec_core.messages import Close, Extend, Propose
from specdec_core.session.events import (
    DrafterLost,
    DrafterOpened,
    DraftLate,
    Finish,
    OpenDrafter,
    OpenTarget,
    Release,
    RequestDraft,
    RequestVerify,
    TargetLost,
    TargetOpened,
)
from specdec_core.session.phases import Phase
from specdec_core.stats import FallbackReason
from specdec_core.types import DraftBlock, FinishReason, OneHot, Sparse
from tests.support.sessions import (
    PROMPT,
    Script,
    drafting,
    first_round,
    opening,
    proposed,
    spec_of,
    verified,
    verifying,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdec_core.types import Proposal

GONE = PeerUnavailableError("gone")


def plain(epoch: int, base_len: int, tokens: tuple[int, ...], drafter_epoch: int) -> RequestVerify:
    empty = DraftBlock(base_len + len(tokens), drafter_epoch, (), OneHot())
    return RequestVerify(Extend("s", epoch, base_len, tokens, empty))


@pytest.mark.parametrize("path", [opening, first_round, verifying])
def test_a_drafter_lost_outside_its_turn_is_only_replaced(path: Callable[[], Script]) -> None:
    script = path()
    phase = script.phase

    (reopen,) = script.feed(DrafterLost(1))

    assert isinstance(reopen, OpenDrafter)
    assert (reopen.message.epoch, script.phase) == (2, phase)
    assert script.state.stats.fallbacks == ()


def test_a_drafter_lost_while_it_drafts_is_replaced_behind_a_plain_round() -> None:
    script = drafting()

    verify, reopen = script.feed(DrafterLost(1))

    assert verify == plain(1, 3, (4,), drafter_epoch=2)
    assert isinstance(reopen, OpenDrafter)
    assert reopen.message.epoch == 2
    assert script.state.stats.fallbacks == ((FallbackReason.DRAFTER_LOST, 1),)


def test_a_replaced_drafter_reads_everything_committed_and_drafts_again() -> None:
    script = drafting()
    script.feed(DrafterLost(1))

    assert script.feed(DrafterOpened(2)) == (RequestDraft(Propose("s", 2, 0, (*PROMPT, 4), 0)),)
    _, request = script.verify(5)

    assert request == RequestDraft(Propose("s", 2, 4, (5,), 2))


def test_a_late_draft_gives_a_plain_round_and_its_answer_is_stale() -> None:
    script = drafting()
    answer = proposed(script.state, 5, 6)

    (verify,) = script.feed(DraftLate(1, 4))

    assert verify == plain(1, 3, (4,), drafter_epoch=1)
    assert script.feed(answer) == ()
    assert script.state.stats.num_stale_messages == 1
    assert script.state.stats.fallbacks == ((FallbackReason.DEADLINE, 1),)


def test_an_answer_of_the_round_before_is_stale_while_the_next_draft_is_awaited() -> None:
    script = drafting()
    late = proposed(script.state, 5, 6)
    script.feed(DraftLate(1, 4))
    script.verify(7)

    assert script.feed(late) == ()
    assert script.phase is Phase.DRAFTING
    assert script.state.stats.num_stale_messages == 1


def test_a_deadline_that_passes_after_its_draft_came_changes_nothing() -> None:
    script = verifying()

    assert script.feed(DraftLate(1, 4)) == ()
    assert script.phase is Phase.VERIFYING
    assert script.state.stats.num_stale_messages == 1


def test_a_deadline_of_the_round_before_is_stale() -> None:
    script = verifying()
    script.verify(5, 6, 7)

    assert script.feed(DraftLate(1, 4)) == ()
    assert script.phase is Phase.DRAFTING


@pytest.mark.parametrize("tokens", [(5, 6, 7), (5, 26), (-1,)], ids=["long", "beyond", "negative"])
def test_a_draft_the_target_could_not_take_is_dropped(tokens: tuple[int, ...]) -> None:
    script = drafting()

    (verify,) = script.propose(*tokens)

    assert verify == plain(1, 3, (4,), drafter_epoch=1)
    assert script.state.stats.fallbacks == ((FallbackReason.INVALID_DRAFT, 1),)


def test_a_draft_longer_than_what_is_left_of_the_output_is_dropped() -> None:
    script = verifying(spec_of(max_context=8, max_draft_tokens=3), draft=(5,))
    script.verify(5, 6)  # six of eight tokens: one draft token has room

    (verify,) = script.propose(7, 8)

    assert verify == plain(1, 5, (6,), drafter_epoch=1)


@pytest.mark.parametrize(
    "proposal",
    [Sparse(((5,),), ((1.0,),)), Sparse(((5,), (6, 7)), ((1.0,), (1.0,)))],
    ids=["a law is missing", "a probability is missing"],
)
def test_a_sparse_draft_must_hold_a_law_for_each_token(proposal: Proposal) -> None:
    script = drafting()

    script.propose(5, 6, proposal=proposal)

    assert script.state.stats.fallbacks == ((FallbackReason.INVALID_DRAFT, 1),)


def test_a_sound_sparse_draft_is_verified_as_sent() -> None:
    script = drafting()
    proposal = Sparse(((5, 1), (6,)), ((0.75, 0.25), (1.0,)))

    (verify,) = script.propose(5, 6, proposal=proposal)

    assert verify == RequestVerify(Extend("s", 1, 3, (4,), DraftBlock(4, 1, (5, 6), proposal)))


@pytest.mark.parametrize("path", [opening, first_round, drafting, verifying])
def test_a_lost_target_is_replaced_under_the_next_epoch(path: Callable[[], Script]) -> None:
    script = path()

    (reopen,) = script.feed(TargetLost(1, GONE))

    assert isinstance(reopen, OpenTarget)
    assert (reopen.message.epoch, script.phase) == (2, Phase.OPENING)


def test_a_new_target_reads_every_committed_token_and_the_text_goes_on() -> None:
    script = verifying(draft=(5, 6))
    late = verified(script.state, 5, 6, 7)
    script.feed(TargetLost(1, GONE))

    (request,) = script.feed(TargetOpened(2))

    assert request == plain(2, 0, (*PROMPT, 4), drafter_epoch=1)
    assert script.feed(late) == ()  # evidence of the lost target
    script.verify(5)
    assert (script.state.output, script.text) == ((4, 5), "ef")
    assert script.effects[1] == RequestDraft(Propose("s", 1, 4, (5,), 2))


def test_four_targets_lost_in_a_row_end_the_session() -> None:
    script = drafting()
    for epoch in (1, 2, 3):
        script.feed(TargetLost(epoch, StaleMessageError("behind")))

    release, finish = script.feed(TargetLost(4, GONE))

    assert release == Release(None, Close("s", 1))
    assert finish == Finish(FinishReason.ERROR, GONE)


def test_a_committed_token_forgives_the_targets_lost_before() -> None:
    script = first_round()
    for epoch in range(1, 9):
        script.feed(TargetLost(epoch, GONE), TargetOpened(epoch + 1))
        script.verify(4)
        if script.phase is Phase.DRAFTING:
            script.propose(5, 6)

    assert script.state.output == (4,) * 8


@pytest.mark.parametrize("error", [OverloadedError("full"), ProtocolError("bad")])
def test_an_error_that_another_target_would_give_too_ends_the_session(error: SpecdecError) -> None:
    script = verifying()

    _, finish = script.feed(TargetLost(1, error))

    assert finish == Finish(FinishReason.ERROR, error)


def test_a_plain_round_refused_as_invalid_ends_the_session() -> None:
    script = first_round()
    error = InvalidArgumentError("allowed_token_ids", "leaves no token that may follow")

    _, finish = script.feed(TargetLost(1, error))

    assert finish == Finish(FinishReason.ERROR, error)


def test_a_draft_refused_as_invalid_is_tried_again_plainly() -> None:
    script = verifying(draft=(5, 6))
    error = InvalidArgumentError("bad_words", "leaves no token that may follow")

    (reopen,) = script.feed(TargetLost(1, error))
    assert isinstance(reopen, OpenTarget)
    assert script.feed(TargetOpened(2)) == (plain(2, 0, (*PROMPT, 4), drafter_epoch=1),)
    _, finish = script.feed(TargetLost(2, error))

    assert finish == Finish(FinishReason.ERROR, error)
