"""min_p, top_k and top_p on many rows at once, sorting no more of a row than its answer needs.

All three keep the largest scores of a row. top_k and top_p both come down to "the n largest, ties to the lower id", where n and
the n-th largest value are read from a sorted head of the row; the head is a ``topk``, never a sort of the vocabulary, unless a
nucleus is wider than the widest head.
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
    """Put ``-inf`` in place where min_p, then top_k, then top_p exclude a token; greedy rows are left alone.

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
        shares = torch.tensor(list(top_p.values()), dtype=torch.float64, device=scores.device)
        sizes, edges = _nuclei(chosen, shares.unsqueeze(-1))
        scores[list(top_p)] = _keep_largest(chosen, sizes, edges)


def _nuclei(scores: torch.Tensor, top_p: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The fewest largest tokens whose mass reaches the share ``top_p`` ``[rows, 1]``; the one that crosses it counts.

    Returns:
        How many they are and the score of the least of them, both ``[rows, 1]``.
    """
    vocab_size = scores.shape[-1]
    wanted = scores.exp().sum(dim=-1, keepdim=True, dtype=torch.float64) * top_p
    sizes = torch.empty_like(wanted, dtype=torch.int64)
    edges = torch.empty_like(wanted, dtype=scores.dtype)
    open_rows = torch.arange(len(scores), device=scores.device)
    for width in (*_HEADS, vocab_size):
        head = scores[open_rows].topk(min(width, vocab_size)).values
        reached = head.exp().cumsum(dim=-1, dtype=torch.float64)
        short = (reached < wanted[open_rows]).sum(dim=-1, keepdim=True)
        sizes[open_rows] = (short + 1).clamp_(max=head.shape[-1])
        edges[open_rows] = head.gather(-1, sizes[open_rows] - 1)
        open_rows = open_rows[short.squeeze(-1) == head.shape[-1]]
        if open_rows.numel() == 0:
            break
    return sizes, edges


def _keep_largest(scores: torch.Tensor, sizes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
    """Exclude in place all but the ``sizes`` largest of each row, ties to the lower id.

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
    return scores.masked_fill_(~keep, -math.inf)
