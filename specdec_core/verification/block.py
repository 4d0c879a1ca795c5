"""Block verification (Sun et al., arXiv 2403.10444): the draft is tested as a whole, from its end.

With P_0 = 1, P_i = min(1, P_{i-1} p(x_i) / q(x_i)), S_i = sum_x (P_i p(x | x_1..x_i) - q(x | x_1..x_i))+ and independent uniforms
eta_i, the number of accepted tokens is

    N = max{i : eta_i <= h_i},   h_i = S_i / (S_i + 1 - P_i) for i < gamma,   h_gamma = P_gamma,   and 0 where there is none.

Behind N < gamma tokens follows a draw of (P_N p - q)+ normalised, behind all of them one of p. The law is the target's, as under
``ratio``, and on average never fewer tokens are accepted; where every q is one-hot the two accept alike. The target computed h and
made the draws; only the coins are flipped here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdec_core.types import BlockTest


def count_accepted(test: BlockTest, accept_uniform: Callable[[int], float]) -> int:
    """Length of the longest prefix of the draft whose coin accepts it.

    Args:
        test: The target's evidence.
        accept_uniform: Draft index -> uniform in (0, 1), independent of every draft and target draw and of the coins of other
            rounds: unlike under ``ratio``, the coins behind the accepted tokens have been looked at.
    """
    for length in range(len(test.accept_probs), 0, -1):
        if accept_uniform(length - 1) <= test.accept_probs[length - 1]:
            return length
    return 0
