"""The checks of ``specdec verify-exactness``: a sound server passes them all, and each kind of wrong one fails its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from deployments.exactness.checks import PLAIN, first_difference
from deployments.exactness.runs import run_of
from deployments.exactness.verify import Plan, verify
from deployments.transport.api_records import Finished, GenerationCall, Produced, TextPrompt
from specdec_core.errors import InvalidArgumentError, ProtocolError
from specdec_core.params import GenerationParams
from specdec_core.stats import FallbackReason, SpeculationStats
from specdec_core.types import AcceptanceRule, CommittedToken, FinishReason, TokenKind
from tests.support.chain_server import EOS, ChainServer, full_target

if TYPE_CHECKING:
    from collections.abc import Callable

    from deployments.transport.api_records import GenerationEvent

    Events = list[GenerationEvent]
    ChangeStats = Callable[[SpeculationStats], SpeculationStats]

SMALL = Plan(num_samples=60, num_candidates=0, num_law_tokens=3)
LARGE = Plan(num_samples=1500, num_candidates=0, num_law_tokens=4)


def failures(server: ChainServer, plan: Plan = SMALL) -> dict[tuple[str, str], str]:
    """(name, rule) of each failed check, and its detail."""
    checks = verify(server, plan, lambda _: None)
    return {(each.name, each.rule): each.detail for each in checks if not each.passed}


def only(
    condition: Callable[[GenerationCall], bool], change: Callable[[Events, Finished], Events]
) -> ChainServer:
    """A server that changes what it tells of the generations that meet a condition."""

    def tamper(call: GenerationCall, events: Events) -> Events:
        last = events[-1]
        assert isinstance(last, Finished)
        return change(events, last) if condition(call) else events

    return ChainServer(tamper=tamper)


def is_speculative(call: GenerationCall) -> bool:
    return call.params.speculation.max_draft_tokens > 0


def is_greedy_ratio(call: GenerationCall) -> bool:
    is_ratio = call.params.speculation.rule is AcceptanceRule.RATIO
    return is_speculative(call) and is_ratio and call.params.sampling.is_greedy


def with_stats(change: ChangeStats) -> Callable[[Events, Finished], Events]:
    return lambda events, last: [
        *events[:-1],
        replace(last, speculation=change(last.speculation)),
    ]


def test_a_sound_server_passes_every_check_of_every_rule() -> None:
    checks = verify(ChainServer(), LARGE, lambda _: None)

    rules = [rule.value for rule in AcceptanceRule]
    assert [(each.name, each.rule) for each in checks] == [
        *(("greedy identity", rule) for rule in rules),
        ("seeded identity", "coupled"),
        *(("first-token law", rule) for rule in rules),
        *(("counters", rule) for rule in (PLAIN, *rules)),
    ]
    assert [each.detail for each in checks if not each.passed] == []
    assert {each.n for each in checks if each.name == "first-token law"} == {1500}


def test_resampling_from_the_whole_target_law_fails_the_law_and_nothing_else() -> None:
    failed = failures(ChainServer(recover=full_target), LARGE)

    assert set(failed) == {("first-token law", "ratio"), ("first-token law", "block")}


def test_a_greedy_output_that_parts_is_named_by_prompt_position_and_tokens() -> None:
    def change(events: Events, _last: Finished) -> Events:
        second = events[2]
        assert isinstance(second, Produced)
        first_token = second.tokens[0]
        wrong = replace(first_token, token=(first_token.token % 4) + 1)
        return [*events[:2], replace(second, tokens=(wrong, *second.tokens[1:])), *events[3:]]

    failed = failures(only(is_greedy_ratio, change))

    assert set(failed) == {("greedy identity", "ratio")}
    assert failed["greedy identity", "ratio"].startswith(
        "prompt 1 differs first at output position 1: plain token "
    )


def test_a_token_lost_at_the_end_of_a_sequence_fails_identity_and_counters() -> None:
    def change(events: Events, last: Finished) -> Events:
        produced = events[-2]
        assert isinstance(produced, Produced)
        if last.finish_reason is not FinishReason.STOP:
            return events
        return [*events[:-2], replace(produced, tokens=produced.tokens[:-1]), last]

    failed = failures(only(is_speculative, change))

    assert "tokens delivered == usage" in failed["counters", "coupled"]
    assert "the end" in failed["seeded identity", "coupled"]


def test_a_token_behind_the_end_of_a_sequence_fails_identity_and_counters() -> None:
    def change(events: Events, last: Finished) -> Events:
        if last.finish_reason is not FinishReason.STOP:
            return events
        extra = Produced(last.completion_tokens, (CommittedToken(3, TokenKind.BONUS),), "")
        stats = last.speculation.with_round(0, 0, 1)
        count = last.completion_tokens + 1
        return [*events[:-1], extra, replace(last, completion_tokens=count, speculation=stats)]

    failed = failures(only(is_speculative, change))

    assert "nothing follows an end-of-sequence token" in failed["counters", "ratio"]
    assert "plain the end, speculative token 3" in failed["seeded identity", "coupled"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda stats: replace(stats, num_rounds=999),
            "committed == accepted + rounds before cuts",
        ),
        (
            lambda stats: replace(stats, num_accepted_tokens=10**6),
            "committed == accepted + rounds before cuts",
        ),
        (
            lambda stats: replace(stats, num_draft_tokens=10**6),
            "drafted <= drafts * max_draft_tokens",
        ),
        (
            lambda stats: replace(stats, num_committed_tokens=1),
            "tokens delivered == tokens committed",
        ),
        (
            lambda stats: replace(stats, num_accepted_tokens_per_pos=(1, 2)),
            "accepted per position never increases",
        ),
        (
            lambda stats: replace(stats, num_accepted_tokens_per_pos=()),
            "accepted per position sums to accepted",
        ),
    ],
)
def test_counters_that_do_not_reconcile_fail_their_check_and_no_other(
    change: ChangeStats, says: str
) -> None:
    failed = failures(only(is_speculative, with_stats(change)))

    assert set(failed) == {("counters", rule.value) for rule in AcceptanceRule}
    assert says in failed["counters", "coupled"]


def test_a_place_told_twice_fails_the_counters() -> None:
    def change(events: Events, _last: Finished) -> Events:
        return [
            replace(each, first_index=0) if isinstance(each, Produced) else each for each in events
        ]

    failed = failures(only(is_speculative, change))

    assert failed["counters", "block"] == "not true that every token has its own place"


def test_plain_decoding_that_claims_drafts_fails_its_counters() -> None:
    def change(events: Events, _last: Finished) -> Events:
        return [
            replace(each, tokens=tuple(replace(t, kind=TokenKind.BONUS) for t in each.tokens))
            if isinstance(each, Produced)
            else each
            for each in events
        ]

    failed = failures(only(lambda call: not is_speculative(call), change))

    assert failed == {("counters", PLAIN): "not true that plain decoding drafts nothing"}


def test_a_drafter_that_never_answers_passes_nothing_since_nothing_was_tested() -> None:
    def change(events: Events, last: Finished) -> Events:
        tokens = [t.token for each in events if isinstance(each, Produced) for t in each.tokens]
        stats = SpeculationStats().with_round(0, 0, 1)
        for _ in tokens[1:]:
            stats = stats.with_fallback(FallbackReason.DEADLINE).with_round(0, 0, 1)
        plain = tuple(CommittedToken(token, TokenKind.PLAIN) for token in tokens)
        return [events[0], Produced(0, plain, ""), replace(last, speculation=stats)]

    failed = failures(only(is_speculative, change))

    assert {name for name, _ in failed} == {"greedy identity", "seeded identity", "first-token law"}
    assert failed["greedy identity", "ratio"] == (
        "no draft was verified, so nothing was tested (deadline 188 times)"
    )


def test_a_law_of_one_outcome_is_not_called_tested() -> None:
    def change(events: Events, last: Finished) -> Events:
        stats = last.speculation.with_round(3, 0, 0)
        token = Produced(0, (CommittedToken(EOS, TokenKind.PLAIN),), "")
        reason = FinishReason.STOP
        return [events[0], token, Finished(reason, 1, 1, stats)]

    failed = failures(only(lambda call: not call.params.sampling.is_greedy, change))

    assert failed["first-token law", "ratio"] == "every output was the same, so no law was tested"


def test_no_two_sampled_runs_share_a_seed_and_the_base_seed_changes_all() -> None:
    seeds: list[int | None] = []

    def note(call: GenerationCall, events: Events) -> Events:
        if call.params.sampling.max_tokens == SMALL.num_law_tokens:
            seeds.append(call.params.seed)
        return events

    verify(ChainServer(tamper=note), SMALL, lambda _: None)
    verify(ChainServer(tamper=note), replace(SMALL, seed=1), lambda _: None)

    assert len(seeds) == 2 * SMALL.num_samples * (1 + len(AcceptanceRule))
    assert len(set(seeds)) == len(seeds)


def test_the_law_is_restricted_to_the_tokens_seen_most() -> None:
    allowed: set[tuple[int, ...]] = set()

    def note(call: GenerationCall, events: Events) -> Events:
        if is_speculative(call) and call.params.sampling.max_tokens == SMALL.num_law_tokens:
            allowed.add(call.params.sampling.allowed_token_ids)
        return events

    verify(ChainServer(tamper=note), replace(SMALL, num_candidates=3), lambda _: None)

    (chosen,) = allowed
    assert len(chosen) == 3
    assert EOS not in chosen


def test_a_server_without_a_drafter_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(InvalidArgumentError, match="nothing to verify"):
        verify(ChainServer(max_draft_tokens=0), SMALL, lambda _: None)


def test_a_plan_that_tests_no_law_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="temperature"):
        Plan(temperature=0.0)
    with pytest.raises(InvalidArgumentError, match="candidates"):
        Plan(num_candidates=1)


def test_the_level_of_one_law_is_shared_out_among_the_rules() -> None:
    plan = Plan(alpha=0.03, rules=(AcceptanceRule.COUPLED, AcceptanceRule.RATIO))

    assert plan.level == pytest.approx(0.015)


@pytest.mark.parametrize("kept", [slice(1, None), slice(0, -1), slice(0, 1), slice(-1, None)])
def test_a_stream_that_does_not_begin_or_end_is_a_broken_contract(kept: slice) -> None:
    call = GenerationCall(TextPrompt("x"), GenerationParams(seed=3))
    (events,) = ChainServer().generate_many([call], at_once=1)

    with pytest.raises(ProtocolError):
        run_of(call, events[kept])


@pytest.mark.parametrize(
    ("plain", "speculative", "says"),
    [
        ((1, 2), (1, 2), ""),
        ((1, 2), (1, 3), "differs first at output position 1: plain token 2, speculative token 3"),
        ((1, 2), (1,), "differs first at output position 1: plain token 2, speculative the end"),
        ((), (0,), "differs first at output position 0: plain the end, speculative token 0"),
    ],
)
def test_the_first_difference_is_named(
    plain: tuple[int, ...], speculative: tuple[int, ...], says: str
) -> None:
    assert first_difference(plain, speculative) == says
