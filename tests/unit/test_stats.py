from __future__ import annotations

import random
from dataclasses import replace

import pytest

from specdec_core.errors import InvariantError
from specdec_core.stats import FallbackReason, SpeculationStats

SOME = SpeculationStats().with_round(4, 2, 3).with_round(4, 4, 5).with_round(0, 0, 1)


def test_a_round_counts_its_tokens_at_every_position() -> None:
    total = SpeculationStats().with_round(4, 2, 3).with_round(4, 4, 5).with_round(0, 0, 1)

    assert total == SpeculationStats(
        num_rounds=3,
        num_drafts=2,
        num_draft_tokens=8,
        num_accepted_tokens=6,
        num_accepted_tokens_per_pos=(2, 2, 1, 1),
        num_committed_tokens=9,
    )
    total.check_integrity()


def test_a_rejected_position_is_counted_as_zero() -> None:
    assert SpeculationStats().with_round(3, 0, 1).num_accepted_tokens_per_pos == (0, 0, 0)


def test_the_rates_are_the_fields() -> None:
    assert SOME.acceptance_rate == pytest.approx(0.75)
    assert SOME.acceptance_length == pytest.approx(3.0)


def test_the_rates_of_nothing_are_zero() -> None:
    assert SpeculationStats().acceptance_rate == 0.0
    assert SpeculationStats().acceptance_length == 0.0


def test_plain_rounds_have_acceptance_length_one_and_no_draft() -> None:
    plain = SpeculationStats().with_round(0, 0, 1).with_round(0, 0, 1)

    assert (plain.acceptance_length, plain.acceptance_rate, plain.num_drafts) == (1.0, 0.0, 0)


def test_a_cut_round_commits_less_than_it_accepted() -> None:
    cut = SpeculationStats().with_round(4, 4, 2)

    cut.check_integrity()
    assert (cut.num_accepted_tokens, cut.num_committed_tokens) == (4, 2)


@pytest.mark.parametrize("counts", [(2, 3, 1), (2, -1, 0), (2, 1, 3), (2, 1, -1), (-1, -1, 0)])
def test_a_round_that_cannot_happen_is_refused(counts: tuple[int, int, int]) -> None:
    with pytest.raises(InvariantError, match="a round cannot"):
        SpeculationStats().with_round(*counts)


def test_fallbacks_are_counted_by_reason_in_a_stable_order() -> None:
    one = (
        SpeculationStats()
        .with_fallback(FallbackReason.NO_DRAFT)
        .with_fallback(FallbackReason.DEADLINE)
    )
    other = (
        SpeculationStats()
        .with_fallback(FallbackReason.DEADLINE)
        .with_fallback(FallbackReason.NO_DRAFT)
    )

    assert one == other
    assert one.with_fallback(FallbackReason.NO_DRAFT).fallbacks == (
        (FallbackReason.DEADLINE, 1),
        (FallbackReason.NO_DRAFT, 2),
    )


def test_stale_messages_are_counted() -> None:
    assert SpeculationStats().with_stale().with_stale().num_stale_messages == 2


def test_totals_add_up_field_by_field() -> None:
    left = SOME.with_stale().with_fallback(FallbackReason.DEADLINE)
    right = (
        SpeculationStats()
        .with_round(6, 5, 6)
        .with_fallback(FallbackReason.DEADLINE)
        .with_fallback(FallbackReason.DRAFTER_UNAVAILABLE)
    )

    assert left + right == SpeculationStats(
        num_rounds=4,
        num_drafts=3,
        num_draft_tokens=14,
        num_accepted_tokens=11,
        num_accepted_tokens_per_pos=(3, 3, 2, 2, 1, 0),
        num_committed_tokens=15,
        fallbacks=((FallbackReason.DEADLINE, 2), (FallbackReason.DRAFTER_UNAVAILABLE, 1)),
        num_stale_messages=1,
    )
    assert left + right == right + left
    assert left + SpeculationStats() == left


def test_totals_of_parts_equal_the_whole_and_keep_their_integrity() -> None:
    rng = random.Random(7)
    whole = SpeculationStats()
    parts = [SpeculationStats(), SpeculationStats()]
    for _ in range(300):
        drafted = rng.randrange(6)
        accepted = rng.randint(0, drafted)
        committed = rng.randint(0, accepted + 1)
        part = rng.randrange(2)
        whole = whole.with_round(drafted, accepted, committed)
        parts[part] = parts[part].with_round(drafted, accepted, committed)
        whole.check_integrity()

    assert parts[0] + parts[1] == whole


@pytest.mark.parametrize(
    ("broken", "law"),
    [
        (replace(SOME, num_rounds=-1), "negative"),
        (replace(SOME, num_stale_messages=-1), "negative"),
        (replace(SOME, num_drafts=4), "drafts <= rounds"),
        (replace(SOME, num_draft_tokens=1), "drafts <= drafted"),
        (replace(SOME, num_draft_tokens=5), "accepted <= drafted"),
        (replace(SOME, num_accepted_tokens_per_pos=(2, 1, 2, 1)), "never increases"),
        (replace(SOME, num_accepted_tokens_per_pos=(3, 1, 1, 1)), "first position <= drafts"),
        (replace(SOME, num_accepted_tokens_per_pos=(2, 2, 1)), "sums to accepted"),
        (replace(SOME, num_committed_tokens=10), "committed <= accepted"),
        (replace(SOME, num_committed_tokens=-1), "committed <= accepted"),
        (replace(SOME, fallbacks=((FallbackReason.DEADLINE, 0),)), "fallback counts"),
    ],
)
def test_integrity_names_the_broken_law(broken: SpeculationStats, law: str) -> None:
    with pytest.raises(InvariantError, match=law):
        broken.check_integrity()
