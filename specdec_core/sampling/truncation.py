"""min_p, top_k, top_p and typical_p on many rows at once, sorting no more of a row than its answer needs.

The first three keep the largest scores of a row, typical_p those nearest the entropy. The last three come down to "the n largest,
ties to the lower id", where n and the n-th largest value are read from a sorted head of the row; the head is a ``topk``, never a
sort of the vocabulary, unless a nucleus is wider than the widest head.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdec_core.params import SamplingParams

_HEADS = (256, 4096)  # widths tried before the whole vocabulary; most nuclei fit the first


def truncate(scores: torch.Tensor, params: Sequence[SamplingParams]) -> None:
    """Put ``-inf`` in place where min_p, then top_k, top_p and typical_p exclude a token; greedy rows are left alone.

    Args:
        scores: ``[rows, vocab]`` float32, unnormalised log-probabilities whose largest is 0 in each row.
        params: One per row.
    """
    sampled = [(index, each) for index, each in enumerate(params) if not each.is_greedy]
    min_p = {index: each.min_p for index, each in sampled if each.min_p > 0.0}
    if min_p:
        floors = scores.new_tensor([math.log(value) for value in min_p.values()])
        chosen = scores[list(min_p)]
        scores[list(min_p)] = chosen.masked_fill_(chosen < floors.unsqueeze(-1), -math.inf)
    top_k = {index: each.top_k for index, each in sampled if 0 < each.top_k < scores.shape[-1]}
    if top_k:
        chosen = scores[list(top_k)]
        sizes = torch.tensor(list(top_k.values()), device=scores.device).unsqueeze(-1)
        edges = chosen.topk(max(top_k.values())).values.gather(-1, sizes - 1)
        scores[list(top_k)] = _keep_largest(chosen, sizes, edges)
    top_p = {index: each.top_p for index, each in sampled if each.top_p < 1.0}
    if top_p:
        chosen = scores[list(top_p)]
        sizes, edges = _nuclei(chosen, chosen.exp(), list(top_p.values()))
        scores[list(top_p)] = _keep_largest(chosen, sizes, edges)
    typical_p = {index: each.typical_p for index, each in sampled if each.typical_p < 1.0}
    if typical_p:
        chosen = scores[list(typical_p)]
        scores[list(typical_p)] = _keep_typical(chosen, list(typical_p.values()))


def _keep_typical(scores: torch.Tensor, shares: Sequence[float]) -> torch.Tensor:
    """Exclude in place all but the tokens whose surprise -log p is nearest the row's entropy, up to a share of the mass.

    Locally typical sampling, Meister et al., arXiv 2202.00666, equation 8.
    """
    law = scores.to(torch.float64).log_softmax(dim=-1)
    surprise = torch.where(law > -math.inf, law * law.exp(), 0.0)
    entropy = -surprise.sum(dim=-1, keepdim=True)
    closeness = -(law + entropy).abs()  # -inf where a token is excluded
    sizes, edges = _nuclei(closeness, scores.exp(), shares)
    return scores.masked_fill_(~among_largest(closeness, sizes, edges), -math.inf)


def _nuclei(
    ranks: torch.Tensor, masses: torch.Tensor, shares: Sequence[float]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The fewest tokens, largest rank first, whose mass reaches a share of the row's; the one that crosses it counts.

    Args:
        ranks: ``[rows, vocab]``.
        masses: ``[rows, vocab]``, in any unit.
        shares: ``[rows]``.

    Returns:
        How many they are and the rank of the least of them, both ``[rows, 1]``.
    """
    vocab_size = ranks.shape[-1]
    share = torch.tensor(shares, dtype=torch.float64, device=ranks.device).unsqueeze(-1)
    wanted = masses.sum(dim=-1, keepdim=True, dtype=torch.float64) * share
    sizes = torch.empty_like(wanted, dtype=torch.int64)
    edges = torch.empty_like(wanted, dtype=ranks.dtype)
    open_rows = torch.arange(len(ranks), device=ranks.device)
    for width in (*_HEADS, vocab_size):
        head = ranks[open_rows].topk(min(width, vocab_size))
        held = masses[open_rows].gather(-1, head.indices)
        short = (held.cumsum(dim=-1, dtype=torch.float64) < wanted[open_rows]).sum(-1, keepdim=True)
        sizes[open_rows] = (short + 1).clamp_(max=held.shape[-1])
        edges[open_rows] = head.values.gather(-1, sizes[open_rows] - 1)
        open_rows = open_rows[short.squeeze(-1) == held.shape[-1]]
        if open_rows.numel() == 0:
            break
    return sizes, edges


def _keep_largest(scores: torch.Tensor, sizes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
    """Exclude in place all but the ``sizes`` largest of each row."""
    return scores.masked_fill_(~among_largest(scores, sizes, edges), -math.inf)


def among_largest(scores: torch.Tensor, sizes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
    """Which tokens are among the ``sizes`` largest of their row, ties to the lower id; ``[rows, vocab]`` bool.

    Args:
        scores: ``[rows, vocab]``.
        sizes: ``[rows, 1]``.
        edges: ``[rows, 1]``, the score of the least that stays.
    """
    keep = scores >= edges
    if bool((keep.sum(dim=-1, keepdim=True) > sizes).any()):
        tied = scores == edges
        room = sizes - (keep & ~tied).sum(dim=-1, keepdim=True)
        keep &= ~tied | (tied.cumsum(dim=-1) <= room)
    return keep
