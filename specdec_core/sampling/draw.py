"""Drawing tokens: argmax of log-probability plus Gumbel noise (the Gumbel-max trick).

Noise is bounded, so a token more than MAX_GUMBEL - MIN_GUMBEL below the best of its row can never win. Rows with few tokens above
that line (greedy, top-k, nucleus, low temperature) compute noise there alone, which changes no draw.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from specdec_core.sampling.noise import (
    MAX_GUMBEL,
    MIN_GUMBEL,
    gumbel_of_rows,
    gumbel_of_tokens,
    noise_sources,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdec_core.philox import Stream
    from specdec_core.types import NoiseKey

_ROUNDING = 1e-3  # far above the float32 rounding of any score that can win
_REACH = MAX_GUMBEL - MIN_GUMBEL + _ROUNDING
_NARROW = 8  # a row with at most vocab / _NARROW tokens in reach is cheaper token by token


@torch.no_grad()
def draw(
    law: torch.Tensor, keys: Sequence[NoiseKey], positions: Sequence[int], stream: Stream
) -> list[int]:
    """One token per row: ``argmax(law + gumbel(...))`` in float32, ties to the lowest id.

    Args:
        law: ``[rows, vocab]`` float32 log-probabilities, normalised or not, each row with a finite entry.
        keys: Whose noise, one per row.
        positions: Absolute position of the token drawn, one per row.
        stream: Which of the independent uses.
    """
    in_reach = law > law.amax(dim=-1, keepdim=True) - _REACH
    counts = in_reach.sum(dim=-1).tolist()
    if all(count == 1 for count in counts):
        return law.argmax(dim=-1).tolist()
    sources = noise_sources(keys, positions, law.device)
    tokens = torch.empty(len(counts), dtype=torch.int64, device=law.device)
    narrow = [row for row, count in enumerate(counts) if count * _NARROW <= law.shape[-1]]
    if narrow:
        tokens[narrow] = _draw_in_reach(law[narrow], in_reach[narrow], sources[narrow], stream)
    wide = [row for row, count in enumerate(counts) if count * _NARROW > law.shape[-1]]
    if wide:
        noise = gumbel_of_rows(sources[wide], stream, law.shape[-1])
        tokens[wide] = noise.to(law.dtype).add_(law[wide]).argmax(dim=-1)
    return tokens.tolist()


def sparse_law(law: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The ``size`` likeliest tokens of each row, renormalised: a proposal small enough to send.

    Args:
        law: ``[rows, vocab]`` float32 log-probabilities.
        size: Tokens to keep; the vocabulary's size if that is smaller.

    Returns:
        Token ids, ``[rows, size']`` int64, likeliest first, and their probabilities, ``[rows, size']`` float32. Zero
        probabilities occur where a law has fewer tokens; drop them before sending.
    """
    top = law.topk(min(size, law.shape[-1]), dim=-1)
    return top.indices, torch.softmax(top.values, dim=-1, dtype=torch.float32)


@torch.no_grad()
def draw_sparse(
    ids: torch.Tensor,
    probs: torch.Tensor,
    keys: Sequence[NoiseKey],
    positions: Sequence[int],
    stream: Stream,
) -> list[int]:
    """One token per row, drawn in float64 from exactly the float32 ``probs`` that will be sent.

    Args:
        ids: ``[rows, K]`` int64, distinct within a row.
        probs: ``[rows, K]`` float32, not all zero in a row; a zero is never drawn.
        keys: Whose noise, one per row.
        positions: Absolute position of the token drawn, one per row.
        stream: Which of the independent uses.
    """
    sources = noise_sources(keys, positions, ids.device).unsqueeze(1)
    scores = probs.to(torch.float64).log() + gumbel_of_tokens(sources, stream, ids)
    return ids.gather(-1, scores.argmax(dim=-1, keepdim=True)).squeeze(-1).tolist()


def _draw_in_reach(
    law: torch.Tensor, in_reach: torch.Tensor, sources: torch.Tensor, stream: Stream
) -> torch.Tensor:  # [rows]
    """``draw`` with noise only where ``in_reach`` ``[rows, vocab]`` says; every row has such a token."""
    rows, tokens = in_reach.nonzero(as_tuple=True)
    noise = gumbel_of_tokens(sources[rows], stream, tokens).to(law.dtype)
    scores = noise.add_(law[rows, tokens])
    best = scores.new_full((law.shape[0],), -math.inf).scatter_reduce(0, rows, scores, "amax")
    contenders = torch.where(scores == best[rows], tokens, law.shape[-1])
    lowest = tokens.new_full((law.shape[0],), law.shape[-1])
    return lowest.scatter_reduce(0, rows, contenders, "amin")
