"""What block verification needs of the two laws: how far a draft survives and the chance to stop at each length.

Sun et al., arXiv:2403.10444, Algorithm 2; the formulas are in ``specdec_core.verification.block``.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence


def log_survivals(log_ratios: Sequence[float]) -> list[float]:
    """log P_0, log P_1, ... of one draft, one more than its tokens; in logs, so that no product over- or underflows.

    Args:
        log_ratios: log p(x_i) - log q(x_i) of each draft token; -inf where p is 0, never inf.
    """
    return list(accumulate(log_ratios, _survive, initial=0.0))


def _survive(log_survival: float, log_ratio: float) -> float:
    return min(0.0, log_survival + log_ratio)


def stop_probs(
    target: torch.Tensor,
    rows: torch.Tensor,
    tokens: torch.Tensor,
    draft: torch.Tensor,
    log_survival: torch.Tensor,
) -> torch.Tensor:
    """h of each row, ``[rows]`` float64 in [0, 1]: S / (S + 1 - P) for the row's P.

    Only entries of q are looked at: where q is 0 the terms of S add up to P times the mass that p has there, which is what the
    entries leave of 1. At P = 1 the quotient is 1, and so where p = q makes it 0/0: the next P is then 1 again, and a longer
    prefix is certain.

    Args:
        target: ``[rows, vocab]`` log p, normalised.
        rows: ``[entries]`` int64, the row of each entry of q, which is 0 everywhere else.
        tokens: ``[entries]`` int64, the token id of each entry; a (row, token) pair occurs once.
        draft: ``[entries]`` float64 log q.
        log_survival: ``[rows]`` float64 log P, at most 0.
    """
    survival = log_survival.exp()
    at_entries = target[rows, tokens].to(torch.float64).exp()
    excess = (survival[rows] * at_entries - draft.exp()).clamp_(min=0.0)
    elsewhere = torch.ones_like(survival).index_add_(0, rows, at_entries, alpha=-1.0)
    residual_mass = (survival * elsewhere.clamp_(min=0.0)).index_add_(0, rows, excess)
    lost = log_survival.expm1().neg_()  # 1 - P
    return torch.where(lost == 0.0, 1.0, residual_mass / (residual_mass + lost))
