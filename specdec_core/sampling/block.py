"""What block verification needs of the two laws: how far a draft survives and the chance to stop at each length.

Sun et al., arXiv:2403.10444, Algorithm 2; the formulas are in ``specdec_core.verification.block``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from specdec_core.sampling.ratio import Comparison


def survive(log_survival: float, log_ratio: float) -> float:
    """The next log P: min(0, log P + log p(x)/q(x)); in logs no product over- or underflows.

    Args:
        log_survival: log P so far; 0 before the first token, -inf once p was 0.
        log_ratio: -inf where p is 0, never inf.
    """
    return min(0.0, log_survival + log_ratio)


def stop_probs(both: Comparison, log_survival: torch.Tensor) -> torch.Tensor:
    """The h of each row, ``[rows]`` float64 in [0, 1]: S / (S + 1 - P) for the row's P.

    Only entries of q are looked at: where q is 0 the terms of S add up to P times the mass that p has there, which is what the
    entries leave of 1. At P = 1 the quotient is 1, also where p = q makes it 0/0: P stays 1 there, and a longer prefix is certain.

    Args:
        both: The laws, p normalised.
        log_survival: ``[rows]`` float64 log P of the draft up to each row, at most 0.
    """
    survival = log_survival.exp()
    target = both.target[both.rows, both.tokens].to(torch.float64).exp()
    excess = (survival[both.rows] * target - both.logprobs.exp()).clamp_(min=0.0)
    elsewhere = torch.ones_like(survival).index_add_(0, both.rows, target, alpha=-1.0)
    residual = (survival * elsewhere.clamp_(min=0.0)).index_add_(0, both.rows, excess)
    lost = log_survival.expm1().neg_()  # 1 - P
    return torch.where(lost == 0.0, 1.0, residual / (residual + lost))
