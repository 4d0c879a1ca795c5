"""Whether two samples come from one law: Pearson's chi-square test of homogeneity, its false-alarm rate and its power.

The bins are chosen by looking at both samples together, never at their difference, so that the test keeps its level: under one law
the split of the pooled outcomes over the two samples does not depend on how the pool is grouped.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    Outcome = tuple[int, ...]
    Bin = tuple[int, Outcome]  # length of the prefix its outcomes share, and that prefix

LEAST_EXPECTATION = 5.0  # of a bin in either sample
POWER = 0.9  # at which a detectable distance is stated
_BISECTIONS = 60
_POISSON_SPREADS = (
    12.0  # standard deviations of the mixture that are summed; the rest is below 1e-20
)


@dataclass(frozen=True, slots=True)
class Homogeneity:
    """The outcome of one test."""

    statistic: float
    degrees_of_freedom: int  # bins less one; 0 where there is nothing to compare
    p_value: float
    distance: float  # total variation between the binned samples, noise included
    effective_size: float  # n m / (n + m) of samples of n and m

    def detectable_distance(self, level: float) -> float:
        """Laws at least this far apart in total variation, over these bins, are told apart with probability ``POWER``.

        The noncentrality of the test is ``effective_size * sum((p - q)**2 / mean)``, and by Cauchy-Schwarz the sum is at
        least ``(2 * total variation)**2``.
        """
        if self.degrees_of_freedom == 0:
            return math.inf
        needed = noncentrality(level, self.degrees_of_freedom, POWER)
        return 0.5 * math.sqrt(needed / self.effective_size)


def compare(left: Iterable[Outcome], right: Iterable[Outcome]) -> Homogeneity:
    """Test two independent samples, neither of them empty, for one law of whole outcomes."""
    counts = Counter(left), Counter(right)
    sizes = tuple(sample.total() for sample in counts)
    pooled = counts[0] + counts[1]
    least = LEAST_EXPECTATION * sum(sizes) / min(sizes)
    bin_of = group_by_prefix(pooled, math.ceil(least))
    bins = sorted(set(bin_of.values()))
    observed = [_binned(sample, bin_of) for sample in counts]
    statistic = distance = 0.0
    for each in bins:
        share = sum(sample[each] for sample in observed) / sum(sizes)
        statistic += sum(
            (sample[each] - size * share) ** 2 / (size * share)
            for sample, size in zip(observed, sizes, strict=True)
        )
        distance += abs(observed[0][each] / sizes[0] - observed[1][each] / sizes[1]) / 2
    freedom = len(bins) - 1
    return Homogeneity(
        statistic,
        freedom,
        chi_square_survival(statistic, freedom) if freedom else 1.0,
        distance,
        sizes[0] * sizes[1] / sum(sizes),
    )


def group_by_prefix(pooled: Mapping[Outcome, int], least: int) -> dict[Outcome, Bin]:
    """Each outcome's bin, none with fewer than ``least`` outcomes unless there is one bin alone.

    An outcome that is frequent enough is a bin of its own. The others are merged with those that share their beginning, the
    longest that suffices, so that rare continuations still tell something of the tokens before them.
    """
    bin_of: dict[Outcome, Bin] = {}
    rest = set(pooled)
    for length in range(max(map(len, pooled), default=0), -1, -1):
        sharing: defaultdict[Outcome, list[Outcome]] = defaultdict(list)
        for outcome in rest:
            sharing[outcome[:length]].append(outcome)
        for prefix, members in sharing.items():
            if sum(pooled[each] for each in members) >= least:
                bin_of |= dict.fromkeys(members, (length, prefix))
                rest.difference_update(members)
    sizes = _binned(pooled, bin_of)
    smallest = min(sizes, key=lambda each: (sizes[each], each), default=(0, ()))
    return bin_of | dict.fromkeys(rest, smallest)


def _binned(counts: Mapping[Outcome, int], bin_of: Mapping[Outcome, Bin]) -> Counter[Bin]:
    totals: Counter[Bin] = Counter()
    for outcome, bin_ in bin_of.items():
        totals[bin_] += counts[outcome]
    return totals


def chi_square_survival(statistic: float, freedom: float) -> float:
    """Probability that a chi-square variable exceeds ``statistic``."""
    return float(_upper_gamma(torch.tensor(freedom / 2, dtype=torch.float64), statistic / 2))


def noncentral_survival(statistic: float, freedom: float, noncentral: float) -> float:
    """The same for a noncentral one: a Poisson(noncentral / 2) mixture of central ones with 2 more degrees of freedom each."""
    mean = noncentral / 2
    reach = _POISSON_SPREADS * math.sqrt(mean + 1)
    number = torch.arange(max(0, int(mean - reach)), int(mean + reach) + 12, dtype=torch.float64)
    log_weights = torch.special.xlogy(number, mean) - mean - torch.lgamma(number + 1)
    return float((log_weights.exp() * _upper_gamma(freedom / 2 + number, statistic / 2)).sum())


def noncentrality(level: float, freedom: int, power: float) -> float:
    """The noncentrality at which a test of this level rejects with probability ``power``."""
    critical = _solve(lambda x: -chi_square_survival(x, freedom), -level)
    return _solve(lambda x: noncentral_survival(critical, freedom, x), power)


def _upper_gamma(shape: torch.Tensor, x: float) -> torch.Tensor:
    tail: torch.Tensor = torch.special.gammaincc(shape, torch.tensor(x, dtype=torch.float64))
    return tail


def _solve(increasing: Callable[[float], float], value: float) -> float:
    """The positive argument at which a function takes ``value``, by doubling and bisection."""
    low, high = 0.0, 1.0
    while increasing(high) < value:
        low, high = high, 2 * high
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if increasing(middle) < value else (low, middle)
    return high
