"""Three checks of finished generations: identity, law, counters. Pure; ``deployments.exactness.verify`` makes the generations."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

from deployments.exactness.runs import broken_laws
from deployments.exactness.statistics import POWER, compare
from specdec_core.stats import SpeculationStats

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from deployments.exactness.runs import Run

PLAIN = "plain"  # in place of a rule


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report; its fields are those of the JSON."""

    name: str
    rule: str
    statistic: float  # chi-square of a law; else how many runs are wrong
    p_value: float | None  # of a law
    n: int  # generations looked at; of a law, in each of the two samples
    passed: bool
    detail: str


def check_identity(name: str, rule: str, plain: Sequence[Run], speculative: Sequence[Run]) -> Check:
    """Speculative runs give the tokens of the plain ones, run by run."""
    differences = [
        f"prompt {number} {difference}"
        for number, (one, other) in enumerate(zip(plain, speculative, strict=True), start=1)
        if (difference := first_difference(one.tokens, other.tokens))
    ]
    idle = idleness(speculative)
    num_tokens = sum(len(run.tokens) for run in speculative)
    return Check(
        name,
        rule,
        statistic=float(len(differences)),
        p_value=None,
        n=len(speculative),
        passed=not (differences or idle),
        detail=differences[0] if differences else idle or f"all {num_tokens} tokens are the same",
    )


def first_difference(plain: Sequence[int], speculative: Sequence[int]) -> str:
    """Where two outputs part and with what; empty if they are the same."""
    for position, (one, other) in enumerate(zip_longest(plain, speculative)):
        if one != other:
            told = ("the end" if token is None else f"token {token}" for token in (one, other))
            return "differs first at output position {}: plain {}, speculative {}".format(
                position, *told
            )
    return ""


def check_law(
    name: str, rule: str, plain: Sequence[Run], speculative: Sequence[Run], *, level: float
) -> Check:
    """The outputs of both samples, taken whole, have one law; a sound system fails with probability ``level``, about."""
    test = compare((run.tokens for run in plain), (run.tokens for run in speculative))
    idle = idleness(speculative)
    if test.degrees_of_freedom == 0:
        idle = idle or "every output was the same, so no law was tested"
    found = (
        f"{test.degrees_of_freedom + 1} bins, distance {test.distance:.3f}; level {level:.2g}, "
        f"power {POWER:g} at distance {test.detectable_distance(level):.3f}"
    )
    return Check(
        name,
        rule,
        statistic=test.statistic,
        p_value=test.p_value,
        n=min(len(plain), len(speculative)),
        passed=test.p_value >= level and not idle,
        detail=idle or found,
    )


def check_counters(
    name: str, rule: str, runs: Sequence[Run], eos_token_ids: Iterable[int]
) -> Check:
    """Counters, usage and delivered tokens of every run agree, and so do their sums."""
    eos = tuple(eos_token_ids)
    broken = [laws for run in runs if (laws := broken_laws(run, eos))]
    total = sum((run.stats for run in runs), SpeculationStats())
    found = (
        f"{total.num_rounds} rounds; accepted {total.num_accepted_tokens} of {total.num_draft_tokens} drafted, "
        f"per position {list(total.num_accepted_tokens_per_pos)}; committed {total.num_committed_tokens}"
    )
    return Check(
        name,
        rule,
        statistic=float(len(broken)),
        p_value=None,
        n=len(runs),
        passed=not broken,
        detail=f"not true that {broken[0][0]}" if broken else found,
    )


def idleness(speculative: Sequence[Run]) -> str:
    """Why these runs show nothing of speculation; empty if drafts were verified."""
    if any(run.stats.num_draft_tokens for run in speculative):
        return ""
    reasons: Counter[str] = Counter()
    for run in speculative:
        reasons.update({reason.value: count for reason, count in run.stats.fallbacks})
    told = ", ".join(f"{reason} {count} times" for reason, count in sorted(reasons.items()))
    return f"no draft was verified, so nothing was tested ({told or 'none was asked for'})"
