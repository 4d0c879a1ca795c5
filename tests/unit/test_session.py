"""A session, input by input: what it asks of its peers, and what it commits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specdec_core.draft_length.fixed import Fixed
from specdec_core.errors import InvariantError, ProtocolError
from specdec_core.messages import Close, Extend, Open, Propose
from specdec_core.params import SamplingParams
from specdec_core.session.events import (
    DrafterOpened,
    Emit,
    Finish,
    OpenDrafter,
    OpenTarget,
    Release,
    RequestDraft,
    RequestVerify,
    TargetOpened,
)
from specdec_core.session.phases import Action, Phase
from specdec_core.session.round import commit
from specdec_core.stats import FallbackReason
from specdec_core.types import (
    CommittedToken,
    Coupled,
    DraftBlock,
    Evidence,
    FinishReason,
    OneHot,
    TargetDraws,
    TokenKind,
)
from tests.support.sessions import (
    PROMPT,
    Script,
    drafting,
    finished,
    first_round,
    spec_of,
    verifying,
)

ACCEPTED, RECOVERED = TokenKind.ACCEPTED, TokenKind.RECOVERED
BONUS, PLAIN = TokenKind.BONUS, TokenKind.PLAIN


def emitted(effect: object) -> list[tuple[int, TokenKind]]:
    assert isinstance(effect, Emit)
    return [(committed.token, committed.kind) for committed in effect.tokens]


def test_both_peers_are_opened_at_once_with_the_same_message() -> None:
    script = Script(spec_of())

    spec = script.spec
    message = Open("s", 1, 3, spec.params, spec.rule, spec.noise)
    assert script.effects == (OpenTarget(message), OpenDrafter(message))
    assert script.phase is Phase.OPENING


def test_no_drafter_is_opened_where_none_may_draft() -> None:
    script = Script(spec_of(max_draft_tokens=0))

    assert [type(effect) for effect in script.effects] == [OpenTarget]


def test_a_drafter_that_opens_first_reads_the_prompt_without_drafting() -> None:
    script = Script(spec_of())

    assert script.feed(DrafterOpened(1)) == (RequestDraft(Propose("s", 1, 0, PROMPT, 0)),)
    assert script.phase is Phase.OPENING


def test_the_first_round_is_plain_and_starts_without_the_drafter() -> None:
    script = Script(spec_of())

    effects = script.feed(TargetOpened(1))

    assert effects == (RequestVerify(Extend("s", 1, 0, PROMPT, DraftBlock(3, 1, (), OneHot()))),)
    assert script.phase is Phase.VERIFYING


def test_a_drafter_that_opens_late_reads_while_the_target_works() -> None:
    script = Script(spec_of())
    script.feed(TargetOpened(1))

    assert script.feed(DrafterOpened(1)) == (RequestDraft(Propose("s", 1, 0, PROMPT, 0)),)
    assert script.phase is Phase.VERIFYING


def test_a_plain_round_commits_one_token_and_asks_for_a_draft_behind_it() -> None:
    emit, request = first_round().verify(4)

    assert emit == Emit((CommittedToken(4, PLAIN),), "e")
    assert request == RequestDraft(Propose("s", 1, 3, (4,), 2))


def test_a_draft_is_verified_behind_the_last_committed_token() -> None:
    script = drafting()

    (request,) = script.propose(5, 6)

    assert request == RequestVerify(Extend("s", 1, 3, (4,), DraftBlock(4, 1, (5, 6), Coupled())))


def test_a_rejected_token_is_recovered_and_the_rest_is_rolled_back() -> None:
    script = verifying(draft=(5, 6))

    emit, request = script.verify(5, 9, 0)

    assert emitted(emit) == [(5, ACCEPTED), (9, RECOVERED)]
    assert request == RequestDraft(Propose("s", 1, 4, (5, 9), 2))
    (verify,) = script.propose(7, 8)
    assert verify == RequestVerify(Extend("s", 1, 5, (9,), DraftBlock(6, 1, (7, 8), Coupled())))


def test_a_draft_wrong_from_its_first_token_costs_nothing_but_the_draft() -> None:
    emit, request = verifying(draft=(5, 6)).verify(9, 6, 0)

    assert emitted(emit) == [(9, RECOVERED)]
    assert request == RequestDraft(Propose("s", 1, 4, (9,), 2))


def test_a_wholly_accepted_draft_earns_a_bonus_token() -> None:
    script = verifying(draft=(5, 6))

    emit, request = script.verify(5, 6, 7)

    assert emitted(emit) == [(5, ACCEPTED), (6, ACCEPTED), (7, BONUS)]
    assert request == RequestDraft(Propose("s", 1, 4, (5, 6, 7), 2))
    (verify,) = script.propose(8)
    assert verify == RequestVerify(Extend("s", 1, 6, (7,), DraftBlock(7, 1, (8,), Coupled())))


def test_stats_count_what_each_round_drafted_accepted_and_committed() -> None:
    script = verifying(draft=(5, 6))
    script.verify(5, 9, 0)
    script.propose(7, 8)
    script.verify(7, 8, 3)

    stats = script.state.stats
    assert (stats.num_rounds, stats.num_drafts, stats.num_draft_tokens) == (3, 2, 4)
    assert (stats.num_accepted_tokens, stats.num_accepted_tokens_per_pos) == (3, (2, 1))
    assert stats.num_committed_tokens == 6
    assert script.state.output == (4, 5, 9, 7, 8, 3)


def test_the_draft_is_clipped_so_that_its_bonus_is_the_last_token_allowed() -> None:
    script = drafting(spec_of(SamplingParams(max_tokens=4), max_draft_tokens=8))

    assert script.effects[1] == RequestDraft(Propose("s", 1, 3, (4,), 2))
    script.propose(5, 6)
    script.verify(5, 6, 7)
    assert (script.state.output, script.state.finish) == ((4, 5, 6, 7), FinishReason.LENGTH)


def test_the_draft_is_clipped_to_what_request_and_deployment_allow() -> None:
    script = drafting(replace(spec_of(max_draft_tokens=2), draft_length=Fixed(9)))

    assert script.effects[1] == RequestDraft(Propose("s", 1, 3, (4,), 2))


def test_the_last_token_is_verified_plainly_without_counting_a_fallback() -> None:
    script = first_round(spec_of(SamplingParams(max_tokens=2)))

    _, request = script.verify(4)

    assert request == RequestVerify(Extend("s", 1, 3, (4,), DraftBlock(4, 1, (), OneHot())))
    assert script.state.stats.fallbacks == ()


def test_the_draft_is_clipped_at_the_end_of_the_context() -> None:
    script = drafting(spec_of(max_context=6, max_draft_tokens=8))

    assert script.effects[1] == RequestDraft(Propose("s", 1, 3, (4,), 1))
    script.propose(5)
    script.verify(5, 6)
    assert (len(script.state.tokens), script.state.finish) == (6, FinishReason.LENGTH)


def test_a_session_without_a_drafter_decodes_plainly_and_counts_why() -> None:
    script = Script(spec_of())
    script.feed(TargetOpened(1))

    _, request = script.verify(4)

    assert request == RequestVerify(Extend("s", 1, 3, (4,), DraftBlock(4, 1, (), OneHot())))
    assert script.state.stats.fallbacks == ((FallbackReason.DRAFTER_UNAVAILABLE, 1),)


def test_an_empty_draft_is_a_plain_round() -> None:
    script = drafting()

    script.propose()
    emit, _ = script.verify(5)

    assert emitted(emit) == [(5, PLAIN)]
    assert script.state.stats.fallbacks == ((FallbackReason.NO_DRAFT, 1),)
    assert script.state.stats.num_drafts == 0


def test_an_end_of_sequence_in_mid_block_cuts_the_rest() -> None:
    script = verifying(spec_of(SamplingParams(stop_token_ids=(5,)), max_draft_tokens=2), (5, 6))

    emit, release, finish = script.verify(5, 6, 7)

    assert emitted(emit) == [(5, ACCEPTED)]
    assert script.text == "e"
    assert release == Release(Close("s", 1), Close("s", 1))
    assert finish == Finish(FinishReason.STOP, None)
    assert script.state.stats.num_accepted_tokens == 2
    assert script.state.stats.num_committed_tokens == 2


def test_a_stop_string_in_mid_block_cuts_the_rest() -> None:
    script = verifying(spec_of(SamplingParams(stop=("f",))), (5, 6))

    script.verify(5, 6, 7)

    assert script.state.output == (4, 5)
    assert (script.text, script.state.finish) == ("e", FinishReason.STOP)


def test_delivered_tokens_are_the_output() -> None:
    script = verifying()
    script.verify(5, 6, 7)

    assert tuple(committed.token for committed in script.committed) == script.state.output
    assert script.text == "efgh"


def test_a_stop_token_is_ignored_where_the_request_ignores_the_end_of_sequence() -> None:
    params = SamplingParams(ignore_eos=True).with_eos((5,))
    script = verifying(spec_of(params), (5, 6))

    script.verify(5, 6, 7)

    assert script.state.output == (4, 5, 6, 7)


def test_evidence_that_does_not_fit_the_draft_is_refused() -> None:
    script = verifying(draft=(5, 6))

    with pytest.raises(ProtocolError, match="does not fit a draft of 2 at 4"):
        script.verify(5, 6)
    assert script.phase is Phase.VERIFYING


def test_evidence_without_a_draft_is_a_bug() -> None:
    state = Script(spec_of()).state

    with pytest.raises(InvariantError, match="no draft"):
        commit(state, Evidence(3, 1, TargetDraws((4,))))


def test_a_handler_that_leaves_its_phases_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = dict.fromkeys(Action, frozenset[Phase]())
    monkeypatch.setattr("specdec_core.session.session.NEXT_PHASES", nowhere)

    with pytest.raises(InvariantError, match="start_rounds led from opening to verifying"):
        Script(spec_of()).feed(TargetOpened(1))


def test_integrity_names_the_broken_fact() -> None:
    state = verifying().state

    broken = replace(state, gate=replace(state.gate, num_output_tokens=9))

    with pytest.raises(InvariantError, match="the gate counts every output token"):
        broken.check_integrity()


def test_a_finished_session_holds_no_draft() -> None:
    script = finished()

    assert (script.phase, script.state.draft) == (Phase.FINISHED, None)
