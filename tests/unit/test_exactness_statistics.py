"""The chi-square test of two samples: tails against scipy, level and power against simulation."""

from __future__ import annotations

import math
import random

import pytest
from scipy import stats

from deployments.exactness.statistics import (
    POWER,
    chi_square_survival,
    compare,
    group_by_prefix,
    noncentral_survival,
    noncentrality,
)


@pytest.mark.parametrize("freedom", [1, 2, 7, 31, 299])
@pytest.mark.parametrize("quantile", [0.0, 0.5, 1.0, 2.5, 6.0])
def test_the_tail_is_that_of_scipy(freedom: int, quantile: float) -> None:
    statistic = quantile * freedom

    expected = stats.chi2.sf(statistic, freedom)
    assert chi_square_survival(statistic, freedom) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("freedom", [1, 12, 100])
@pytest.mark.parametrize("noncentral", [1e-9, 3.0, 40.0, 900.0])
def test_the_noncentral_tail_is_that_of_scipy(freedom: int, noncentral: float) -> None:
    statistic = freedom + 0.8 * noncentral

    expected = stats.ncx2.sf(statistic, freedom, noncentral)
    assert noncentral_survival(statistic, freedom, noncentral) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("level", [0.05, 1e-4, 1e-9])
def test_the_noncentrality_gives_the_power_asked_for(level: float) -> None:
    needed = noncentrality(level, 30, 0.9)

    assert stats.ncx2.sf(stats.chi2.isf(level, 30), 30, needed) == pytest.approx(0.9, abs=1e-7)


def test_the_statistic_is_that_of_a_contingency_table() -> None:
    left = [(1,)] * 30 + [(2,)] * 50 + [(3,)] * 20
    right = [(1,)] * 40 + [(2,)] * 45 + [(3,)] * 65

    test = compare(left, right)

    expected = stats.chi2_contingency([[30, 50, 20], [40, 45, 65]], correction=False)
    assert test.statistic == pytest.approx(expected.statistic)
    assert test.p_value == pytest.approx(expected.pvalue)
    assert test.degrees_of_freedom == 2
    assert test.distance == pytest.approx((0.3 - 40 / 150) + (0.5 - 0.3))


def test_rare_outcomes_join_those_that_share_the_longest_beginning() -> None:
    pooled: dict[tuple[int, ...], int] = {
        (1, 1, 1): 12,
        (1, 1, 2): 6,
        (1, 1, 3): 5,
        (1, 2, 1): 4,
        (1, 3, 1): 8,
        (2, 1, 1): 3,
    }

    bin_of = group_by_prefix(pooled, 10)

    assert bin_of == {
        (1, 1, 1): (3, (1, 1, 1)),
        (1, 1, 2): (2, (1, 1)),
        (1, 1, 3): (2, (1, 1)),
        (1, 2, 1): (1, (1,)),
        (1, 3, 1): (1, (1,)),
        (2, 1, 1): (2, (1, 1)),  # too rare for a bin of what is left: it joins the smallest
    }


def test_an_outcome_that_ended_early_is_not_taken_for_the_rest_of_its_prefix() -> None:
    pooled = {(1,): 20, (1, 2): 6, (1, 3): 6}

    bin_of = group_by_prefix(pooled, 10)

    assert bin_of[1,] == (2, (1,))
    assert bin_of[1, 2] == bin_of[1, 3] == (1, (1,))


def test_one_outcome_leaves_nothing_to_compare() -> None:
    test = compare([(1, 2)] * 40, [(1, 2)] * 40)

    assert (test.degrees_of_freedom, test.statistic, test.p_value) == (0, 0.0, 1.0)
    assert test.detectable_distance(0.01) == math.inf


def drawn(rng: random.Random, weights: list[float], size: int) -> list[tuple[int, ...]]:
    outcomes = [(n // 5, n % 5) for n in range(len(weights))]
    return rng.choices(outcomes, weights, k=size)


def test_one_law_is_rejected_as_often_as_the_level_says() -> None:
    """3000 comparisons at 5 %: between 3.8 % and 6 % with probability above 0.99, had the statistic its limit law."""
    rng = random.Random(1)
    weights = [1 / (n + 1) for n in range(40)]

    p_values = [
        compare(drawn(rng, weights, 120), drawn(rng, weights, 160)).p_value for _ in range(3000)
    ]

    assert 0.03 < sum(p < 0.05 for p in p_values) / 3000 < 0.06
    assert sum(p < 0.001 for p in p_values) <= 10


def test_laws_as_far_apart_as_is_called_detectable_are_told_apart_that_often() -> None:
    """The bound is met by laws whose difference is in proportion to their mean; others are found more often."""
    rng = random.Random(2)
    size, level, num_bins = 600, 1e-3, 10
    distance = compare(
        drawn(rng, [1.0] * num_bins, size), drawn(rng, [1.0] * num_bins, size)
    ).detectable_distance(level)
    shift = 2 * distance / num_bins
    low, high = 1 / num_bins - shift / 2, 1 / num_bins + shift / 2
    one, other = [low, high] * (num_bins // 2), [high, low] * (num_bins // 2)

    found = sum(
        compare(drawn(rng, one, size), drawn(rng, other, size)).p_value < level for _ in range(400)
    )

    assert sum(abs(a - b) for a, b in zip(one, other, strict=True)) / 2 == pytest.approx(distance)
    assert POWER - 0.06 < found / 400 < POWER + 0.06
