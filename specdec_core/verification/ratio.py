"""The ratio rule of speculative sampling.

Accept x_k with probability min(1, p_k(x_k) / q_k(x_k)), in logs so that no quotient over- or underflows; at the first rejection
emit a draw of (p - q)+ normalised (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318). The target computed the
scalars and made the residual draws; only the coins are flipped here.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdec_core.types import RatioTest


def count_accepted(test: RatioTest, accept_uniform: Callable[[int], float]) -> int:
    """Number of draft tokens accepted before the first rejection.

    Args:
        test: The target's evidence.
        accept_uniform: Draft index -> uniform in (0, 1), independent of every draft and target draw.
    """
    pairs = zip(test.target_logprobs, test.draft_logprobs, strict=True)
    for index, (target_logprob, draft_logprob) in enumerate(pairs):
        if math.log(accept_uniform(index)) >= target_logprob - draft_logprob:
            return index
    return len(test.target_logprobs)
