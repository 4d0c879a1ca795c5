from __future__ import annotations

import random

import pytest

from specdec_core.errors import InvalidArgumentError
from specdec_core.speedup import (
    acceptance_length,
    best_num_draft_tokens,
    expected_tokens,
    measured_speedup,
    wall_time_speedup,
)


@pytest.mark.parametrize(
    ("acceptance", "num_draft_tokens", "tokens"),
    [
        (0.0, 4, 1.0),
        (0.5, 1, 1.5),
        (0.5, 3, 1.875),
        (0.7, 2, 2.19),
        (0.8, 4, 3.3616),
        (0.9, 0, 1.0),
        (1.0, 4, 5.0),
    ],
)
def test_expected_tokens_by_hand(acceptance: float, num_draft_tokens: int, tokens: float) -> None:
    assert expected_tokens(acceptance, num_draft_tokens) == pytest.approx(tokens)


@pytest.mark.parametrize("acceptance", [0.05, 0.3, 0.679, 0.841, 0.999])
@pytest.mark.parametrize("num_draft_tokens", [1, 3, 7, 15])
def test_expected_tokens_is_the_closed_form_of_leviathan(
    acceptance: float, num_draft_tokens: int
) -> None:
    closed = (1 - acceptance ** (num_draft_tokens + 1)) / (1 - acceptance)

    assert expected_tokens(acceptance, num_draft_tokens) == pytest.approx(closed)


def test_expected_tokens_is_the_mean_of_simulated_rounds() -> None:
    rng = random.Random(11)
    committed = 0
    for _ in range(20_000):
        accepted = 0
        while accepted < 5 and rng.random() < 0.7:
            accepted += 1
        committed += accepted + 1

    assert expected_tokens(0.7, 5) == pytest.approx(committed / 20_000, abs=0.05)


def test_acceptance_length_multiplies_the_rates_up_to_each_position() -> None:
    assert acceptance_length([0.8, 0.5, 0.25]) == pytest.approx(1 + 0.8 + 0.4 + 0.1)


def test_a_rate_of_zero_hides_the_positions_behind_it() -> None:
    assert acceptance_length([0.5, 0.0, 1.0]) == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("acceptance", "num_draft_tokens", "cost_ratio", "speedup"),
    [
        (0.8, 4, 0.1, 3.3616 / 1.4),
        (0.8, 4, 0.0, 3.3616),
        (0.5, 1, 0.5, 1.0),
        (0.5, 0, 0.5, 1.0),
        (0.0, 4, 0.25, 0.5),
    ],
)
def test_wall_time_speedup_by_hand(
    acceptance: float, num_draft_tokens: int, cost_ratio: float, speedup: float
) -> None:
    assert wall_time_speedup(acceptance, num_draft_tokens, cost_ratio) == pytest.approx(speedup)


@pytest.mark.parametrize("acceptance", [0.1, 0.5, 0.9])
def test_one_draft_token_pays_exactly_when_it_costs_less_than_its_acceptance(
    acceptance: float,
) -> None:
    assert wall_time_speedup(acceptance, 1, acceptance - 0.01) > 1.0
    assert wall_time_speedup(acceptance, 1, acceptance + 0.01) < 1.0


def test_measured_speedup_is_the_int4_self_drafter_of_the_research_notes() -> None:
    # engine.md: tau 3.28 at gamma 5, five draft steps at c 0.1, T5/T1 1.2 packed and 1.74 unpacked.
    packed = measured_speedup(3.28, plain_time=1.0, draft_time=0.5, verify_time=1.2)
    unpacked = measured_speedup(3.28, plain_time=1.0, draft_time=0.5, verify_time=1.74)

    assert packed == pytest.approx(1.9, abs=0.05)
    assert unpacked == pytest.approx(1.5, abs=0.05)


def test_measured_speedup_falls_to_leviathan_when_verifying_costs_one_step() -> None:
    tau = expected_tokens(0.8, 4)

    general = measured_speedup(tau, plain_time=4.8, draft_time=4 * 0.48, verify_time=4.8)

    assert general == pytest.approx(wall_time_speedup(0.8, 4, 0.1))


@pytest.mark.parametrize(
    ("acceptance", "cost_ratio", "max_draft_tokens", "best"),
    [
        (0.8, 0.9, 8, 0),  # a drafter almost as slow as the target
        (0.5, 0.5, 8, 0),  # one token breaks even: the shorter of equals
        (0.6, 0.4, 8, 1),
        (0.8, 0.0, 8, 8),  # free drafts: as many as allowed
        (0.9, 0.05, 2, 2),
        (0.9, 0.05, 32, 13),  # speed-ups 4.661, 4.674, 4.671 at 12, 13, 14
    ],
)
def test_best_draft_length_by_hand(
    acceptance: float, cost_ratio: float, max_draft_tokens: int, best: int
) -> None:
    assert best_num_draft_tokens(acceptance, cost_ratio, max_draft_tokens) == best


@pytest.mark.parametrize("acceptance", [-0.1, 1.1, float("nan")])
def test_an_acceptance_that_is_no_probability_is_refused(acceptance: float) -> None:
    with pytest.raises(InvalidArgumentError, match="acceptance"):
        expected_tokens(acceptance, 1)


def test_a_negative_draft_length_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="num_draft_tokens"):
        expected_tokens(0.5, -1)


def test_a_negative_cost_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="cost_ratio"):
        wall_time_speedup(0.5, 1, -0.1)


def test_a_round_that_takes_no_time_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="verify_time"):
        measured_speedup(2.0, plain_time=1.0, draft_time=0.0, verify_time=0.0)
