"""The coupled rule, and greedy as its case without noise.

The target draws y_k = argmax(log p_k + g_k) with noise keyed by (seed, position, token); the drafter guessed x_k with the same
noise. Accept while x_k = y_k (Daliri et al., arXiv 2408.07978, drafter-invariant coupling). Every committed token is the target's
own draw, so the text does not depend on the drafter at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdec_core.types import TargetDraws


def count_accepted(draft_tokens: tuple[int, ...], draws: TargetDraws) -> int:
    """Length of the longest prefix of the draft that the target drew too."""
    for index, (guess, drawn) in enumerate(zip(draft_tokens, draws.tokens, strict=False)):
        if guess != drawn:
            return index
    return len(draft_tokens)
