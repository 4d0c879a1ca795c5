"""Log-probabilities told to a client: of the target's law before any option, as OpenAI and vLLM tell them by default.

``log_softmax`` of the raw logits in float32: temperature, penalties, masks and truncation change which token is drawn but not what
is told of it. Each row stands alone, so a position is told the same whether it was decoded plainly or verified in a draft.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from specdec_core.sampling.truncation import among_largest
from specdec_core.types import DraftLogprobs, TokenLogprobs

if TYPE_CHECKING:
    from collections.abc import Sequence

_ROWS_AT_ONCE = 64  # of a prompt, so that a long one needs little memory


@dataclass(frozen=True, slots=True)
class LogprobRequest:
    """One draft whose session asks for log-probabilities."""

    rows: range  # of the logits: one per draft token, and the bonus
    draft: tuple[int, ...]  # [len(rows) - 1]
    emitted: tuple[int, ...]  # [len(rows)] what would follow each prefix of the draft
    num_top: int


@torch.no_grad()
def draft_logprobs(logits: torch.Tensor, requests: Sequence[LogprobRequest]) -> list[DraftLogprobs]:
    """What each verdict may need, in order.

    Args:
        logits: ``[rows, vocab]`` as the model gave them, any float dtype.
        requests: Any of the drafts whose rows these are.
    """
    if not requests:
        return []
    rows = [row for request in requests for row in request.rows]
    # The bonus row has no draft token; its place is filled with the emitted one and dropped again.
    named = [
        pair
        for request in requests
        for pair in zip((*request.draft, request.emitted[-1]), request.emitted, strict=True)
    ]
    num_top = max(request.num_top for request in requests)
    logprobs, tops = _told(logits[rows], torch.tensor(named), num_top)
    told, start = [], 0
    for request in requests:
        end = start + len(request.rows)
        told.append(
            DraftLogprobs(
                draft=tuple(draft for draft, _ in logprobs[start : end - 1]),
                emitted=tuple(emitted for _, emitted in logprobs[start:end]),
                top=tuple(top[: request.num_top] for top in tops[start:end]),
            )
        )
        start = end
    return told


@torch.no_grad()
def token_logprobs(
    logits: torch.Tensor, tokens: Sequence[int], num_top: int
) -> list[TokenLogprobs]:
    """What each row of ``logits`` ``[rows, vocab]`` says of its token and of the ``num_top`` likeliest."""
    named = torch.tensor(tokens, dtype=torch.int64).reshape(-1, 1)
    parts = zip(torch.split(logits, _ROWS_AT_ONCE), torch.split(named, _ROWS_AT_ONCE), strict=True)
    return [
        TokenLogprobs(logprob, top)
        for rows, ids in parts
        for (logprob,), top in zip(*_told(rows, ids, num_top), strict=True)
    ]


def _told(
    logits: torch.Tensor, tokens: torch.Tensor, num_top: int
) -> tuple[list[list[float]], list[tuple[tuple[int, float], ...]]]:
    """Of ``tokens`` ``[rows, n]`` and of the likeliest, the lower id first in a tie."""
    law = torch.log_softmax(logits.to(torch.float32), dim=-1)
    own = law.gather(-1, tokens.to(law.device)).tolist()
    size = min(num_top, law.shape[-1])
    if size == 0:
        return own, [()] * len(own)
    edges = law.topk(size).values[:, -1:]
    sizes = torch.full_like(edges, size, dtype=torch.int64)
    ids = among_largest(law, sizes, edges).nonzero()[:, 1].reshape(-1, size)  # ascending
    values, order = law.gather(-1, ids).sort(dim=-1, descending=True, stable=True)
    pairs = zip(ids.gather(-1, order).tolist(), values.tolist(), strict=True)
    return own, [tuple(zip(*pair, strict=True)) for pair in pairs]
