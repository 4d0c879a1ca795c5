"""The acceptance rules on literal evidence, and the ratio rule's acceptance probability by counting."""

from __future__ import annotations

import math

import pytest

from specdec_core.errors import ProtocolError
from specdec_core.philox import Stream, uniform
from specdec_core.types import (
    Coupled,
    DraftBlock,
    Evidence,
    NoiseKey,
    OneHot,
    RatioTest,
    TargetDraws,
    TokenKind,
    Verdict,
)
from specdec_core.verification import coupled, ratio
from specdec_core.verification.decide import decide

NOISE = NoiseKey(7)
NEVER = -math.inf
ACCEPTED, RECOVERED, BONUS, PLAIN = TokenKind


def draft(*tokens: int, base_len: int = 10) -> DraftBlock:
    return DraftBlock(base_len, 1, tokens, Coupled())


def evidence(outcome: TargetDraws | RatioTest, base_len: int = 10) -> Evidence:
    return Evidence(base_len, 1, outcome)


def one_hot(*ratios: float, residual: tuple[int, ...]) -> RatioTest:
    """Evidence of a one-hot drafter: q is 1, so that p / q are the target's probabilities."""
    logs = tuple(math.log(each) if each else NEVER for each in ratios)
    return RatioTest(logs, (0.0,) * len(ratios), residual, 99)


@pytest.mark.parametrize(
    ("guesses", "draws", "verdict"),
    [
        ((), (4,), Verdict(0, 4, PLAIN)),
        ((5,), (5, 6), Verdict(1, 6, BONUS)),
        ((5,), (4, 6), Verdict(0, 4, RECOVERED)),
        ((5, 6, 7), (5, 6, 7, 8), Verdict(3, 8, BONUS)),
        ((5, 6, 7), (5, 9, 7, 8), Verdict(1, 9, RECOVERED)),
        ((5, 6, 7), (4, 6, 7, 8), Verdict(0, 4, RECOVERED)),
        ((5, 5, 5), (5, 5, 6, 5), Verdict(2, 6, RECOVERED)),
    ],
)
def test_coupled_accepts_while_the_target_drew_the_same(
    guesses: tuple[int, ...], draws: tuple[int, ...], verdict: Verdict
) -> None:
    assert decide(draft(*guesses), evidence(TargetDraws(draws)), NOISE) == verdict


def test_coupled_counts_nothing_behind_the_first_difference() -> None:
    assert coupled.count_accepted((1, 2, 3, 4), TargetDraws((1, 9, 3, 4, 5))) == 1


def test_a_ratio_of_one_or_more_always_accepts() -> None:
    test = RatioTest((math.log(0.5), -1.0), (math.log(0.25), -1.0), (3, 4), 99)
    for seed in range(200):
        assert decide(draft(5, 6), evidence(test), NoiseKey(seed)) == Verdict(2, 99, BONUS)


def test_a_token_the_target_never_draws_is_never_accepted() -> None:
    test = RatioTest((NEVER, -0.1), (-80.0, -0.1), (3, 4), 99)
    for seed in range(200):
        assert decide(draft(5, 6), evidence(test), NoiseKey(seed)) == Verdict(0, 3, RECOVERED)


def test_a_ratio_too_small_for_a_float_does_not_overflow() -> None:
    assert decide(draft(5), evidence(RatioTest((-1e4,), (0.0,), (3,), 9)), NOISE).num_accepted == 0
    assert decide(draft(5), evidence(RatioTest((0.0,), (-1e4,), (3,), 9)), NOISE).num_accepted == 1


def test_the_recovered_token_is_the_residual_of_the_rejected_position() -> None:
    test = one_hot(1.0, 0.0, 1.0, residual=(30, 31, 32))
    assert decide(draft(5, 6, 7), evidence(test), NOISE) == Verdict(1, 31, RECOVERED)


def test_a_ratio_round_without_a_draft_is_plain() -> None:
    outcome = RatioTest((), (), (), 8)
    assert decide(draft(), evidence(outcome), NOISE) == Verdict(0, 8, PLAIN)


@pytest.mark.parametrize("seed", range(20))
def test_each_coin_is_the_accept_noise_at_the_absolute_position_of_its_token(seed: int) -> None:
    noise = NoiseKey(seed, 3)
    coins = [uniform(noise, position, Stream.ACCEPT) for position in (10, 11, 12)]
    above = tuple(math.log(coin) + 1e-9 for coin in coins)
    for rejected in range(3):
        logs = (*above[:rejected], math.log(coins[rejected]), *above[rejected + 1 :])
        test = RatioTest(logs, (0.0,) * 3, (30, 31, 32), 99)
        verdict = decide(draft(5, 6, 7), evidence(test), noise)
        assert verdict == Verdict(rejected, 30 + rejected, RECOVERED)
    all_accepted = RatioTest(above, (0.0,) * 3, (30, 31, 32), 99)
    assert decide(draft(5, 6, 7), evidence(all_accepted), noise) == Verdict(3, 99, BONUS)


@pytest.mark.parametrize(
    ("target_prob", "draft_prob", "accepted"),
    [(0.3, 1.0, 300), (0.125, 0.5, 250), (0.2, 0.8, 250), (0.5, 0.5, 1000), (0.6, 0.1, 1000)],
)
def test_exactly_the_share_p_over_q_of_all_coins_accepts(
    target_prob: float, draft_prob: float, accepted: int
) -> None:
    test = RatioTest((math.log(target_prob),), (math.log(draft_prob),), (3,), 99)
    coins = iter([(index + 0.5) / 1000 for index in range(1000)])

    count = sum(ratio.count_accepted(test, lambda _: next(coins)) for _ in range(1000))

    assert count == accepted


def test_coins_of_many_seeds_accept_a_one_hot_draft_with_the_targets_probability() -> None:
    """Binomial with p = 0.3, 20000 seeds: five standard deviations are 324, a false-alarm rate of 6e-7; seeds are fixed."""
    test = evidence(one_hot(0.3, residual=(3,)))

    count = sum(decide(draft(5), test, NoiseKey(seed)).num_accepted for seed in range(20_000))

    assert abs(count - 6000) < 324


@pytest.mark.parametrize(
    ("block", "given"),
    [
        (draft(5, 6), evidence(TargetDraws((5, 6)))),
        (draft(5, 6), evidence(TargetDraws((5, 6, 7, 8)))),
        (draft(), evidence(TargetDraws(()))),
        (draft(5, 6), evidence(TargetDraws((5, 6, 7)), base_len=9)),
        (draft(5), evidence(RatioTest((), (0.0,), (3,), 4))),
        (draft(5), evidence(RatioTest((0.0,), (), (3,), 4))),
        (draft(5), evidence(RatioTest((0.0,), (0.0,), (), 4))),
        (draft(5), evidence(RatioTest((0.0,), (0.0,), (3,), 4), base_len=11)),
    ],
)
def test_evidence_that_does_not_fit_its_draft_is_refused(
    block: DraftBlock, given: Evidence
) -> None:
    with pytest.raises(ProtocolError, match="does not fit a draft"):
        decide(block, given, NOISE)


def test_the_proposal_does_not_matter_to_the_decision() -> None:
    test = evidence(one_hot(1.0, 0.0, residual=(30, 31)))
    deterministic = DraftBlock(10, 1, (5, 6), OneHot())
    assert decide(deterministic, test, NOISE) == decide(draft(5, 6), test, NOISE)


def test_kinds_are_told_apart() -> None:
    assert {ACCEPTED, RECOVERED, BONUS, PLAIN} == set(TokenKind)
