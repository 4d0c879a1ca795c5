"""Expected speed-up of speculative decoding over plain decoding.

alpha is the chance that one draft token is accepted, gamma the draft length, tau the expected tokens a round commits (the target's
own token included), c the cost of drafting one token over the cost of one plain step of the target. Times are in any one unit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec_core.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence


def expected_tokens(acceptance: float, num_draft_tokens: int) -> float:
    """Tau = (1 - alpha^(gamma+1)) / (1 - alpha) when every draft token is accepted with the same chance.

    Leviathan et al., "Fast inference from transformers via speculative decoding" (2211.17192), equation 1.

    Raises:
        InvalidArgumentError: if ``acceptance`` is outside [0, 1] or ``num_draft_tokens`` is negative.
    """
    if num_draft_tokens < 0:
        raise InvalidArgumentError(
            "num_draft_tokens", f"must not be negative, got {num_draft_tokens}"
        )
    return acceptance_length([acceptance] * num_draft_tokens)


def acceptance_length(rates: Sequence[float]) -> float:
    """Tau = 1 + sum over k of the product of rates[0..k].

    Args:
        rates: For each draft position, the chance of acceptance given that all before it were accepted; [num_draft_tokens].

    Raises:
        InvalidArgumentError: if a rate is outside [0, 1].
    """
    tokens = survival = 1.0
    for rate in rates:
        if not 0.0 <= rate <= 1.0:
            raise InvalidArgumentError("acceptance", f"must be in [0, 1], got {rate}")
        survival *= rate
        tokens += survival
    return tokens


def wall_time_speedup(acceptance: float, num_draft_tokens: int, cost_ratio: float) -> float:
    """(1 - alpha^(gamma+1)) / ((1 - alpha) (gamma c + 1)), if verifying a draft costs no more than one plain step.

    Leviathan et al., theorem 3.8. With gamma 1 any c below alpha speeds up.

    Raises:
        InvalidArgumentError: if ``cost_ratio`` is negative, or as ``expected_tokens`` does.
    """
    if cost_ratio < 0.0:
        raise InvalidArgumentError("cost_ratio", f"must not be negative, got {cost_ratio}")
    tokens = expected_tokens(acceptance, num_draft_tokens)
    return tokens / (num_draft_tokens * cost_ratio + 1.0)


def measured_speedup(
    tokens_per_round: float, *, plain_time: float, draft_time: float, verify_time: float
) -> float:
    """S = tau T_t(1) / (T_draft(gamma) + T_t(gamma+1)), from measured times.

    Args:
        tokens_per_round: Tau, expected or counted.
        plain_time: One target step with one token, T_t(1).
        draft_time: The whole draft of a round, network included; 0 when it is hidden behind the verification.
        verify_time: One target step with the draft and the token before it, T_t(gamma+1).

    Raises:
        InvalidArgumentError: if a round takes no time.
    """
    round_time = draft_time + verify_time
    if round_time <= 0.0:
        raise InvalidArgumentError("verify_time", "a round must take time")
    return tokens_per_round * plain_time / round_time


def best_num_draft_tokens(acceptance: float, cost_ratio: float, max_draft_tokens: int) -> int:
    """The draft length of the highest ``wall_time_speedup``, the shortest of equals; 0 where drafting does not pay."""
    return max(
        range(max_draft_tokens + 1),
        key=lambda num_draft_tokens: wall_time_speedup(acceptance, num_draft_tokens, cost_ratio),
    )
