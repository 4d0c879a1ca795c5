"""The two laws of the tests that compare p with q: q as it was sent, and the residual (p - q)+.

Leviathan et al., arXiv:2211.17192, Theorem 1: accepting x ~ q with probability min(1, p(x)/q(x)) and drawing from the normalised
residual otherwise has the law p. Block verification scales p in both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from specdec_core.types import Sparse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdec_core.types import DraftBlock


@dataclass(frozen=True, slots=True)
class DraftLaw:
    """The law one draft token is judged by, where it is positive."""

    token: int
    support: tuple[int, ...]  # distinct ids, ``token`` among them
    logprobs: tuple[float, ...]

    @property
    def token_logprob(self) -> float:
        return self.logprobs[self.support.index(self.token)]


def draft_law(draft: DraftBlock, index: int) -> DraftLaw:
    """The law of the draft token at ``index``.

    A sparse law is normalised, since the drafter's draw depended on the ratios of what it sent alone. A deterministic drafter's
    law is one-hot; so is that of a token its own law gives no mass, which is exact wherever the token came from: the drafter first
    chose whether to draw from what it sent or to insist on a token, and each choice made on the prefix alone has an exact test.
    """
    token = draft.tokens[index]
    if isinstance(draft.proposal, Sparse):
        sent = zip(draft.proposal.support[index], draft.proposal.probs[index], strict=True)
        positive = {each: prob for each, prob in sent if prob > 0.0}
        if token in positive:
            total = math.fsum(positive.values())
            logprobs = tuple(math.log(prob / total) for prob in positive.values())
            return DraftLaw(token, tuple(positive), logprobs)
    return DraftLaw(token, (token,), (0.0,))


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rows of the target's law beside the law of the draft token tested at each."""

    target: torch.Tensor  # [rows, vocab] log p
    target_logprobs: tuple[float, ...]  # [rows] log p of the draft token, -inf where p is 0
    draft_logprobs: tuple[float, ...]  # [rows] log q of the draft token, finite
    rows: torch.Tensor  # [entries] int64, the row of each entry of q, which is 0 everywhere else
    tokens: (
        torch.Tensor
    )  # [entries] int64, the token id of each entry; a (row, token) pair occurs once
    logprobs: torch.Tensor  # [entries] float64 log q, finite

    @property
    def log_ratios(self) -> list[float]:
        """Log p(x) / q(x) of each draft token."""
        pairs = zip(self.target_logprobs, self.draft_logprobs, strict=True)
        return [target - draft for target, draft in pairs]


def compare(target: torch.Tensor, laws: Sequence[DraftLaw]) -> Comparison:
    """Put draft laws, one per row and at least one, beside ``target`` ``[rows, vocab]``; the tokens are in its vocabulary."""
    vocab_size = target.shape[-1]
    entries = [
        (row, token, logprob)
        for row, law in enumerate(laws)
        for token, logprob in zip(law.support, law.logprobs, strict=True)
        if token < vocab_size  # a drafter's vocabulary may be padded further
    ]
    rows, tokens, logprobs = zip(*entries, strict=True)
    own = target[list(range(len(laws))), [law.token for law in laws]]
    return Comparison(
        target=target,
        target_logprobs=tuple(own.tolist()),
        draft_logprobs=tuple(law.token_logprob for law in laws),
        rows=torch.tensor(rows, device=target.device),
        tokens=torch.tensor(tokens, device=target.device),
        logprobs=torch.tensor(logprobs, dtype=torch.float64, device=target.device),
    )


def residual_law(
    target: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor, draft: torch.Tensor
) -> torch.Tensor:
    """Unnormalised log (p - q)+ of each row, in the dtype of ``target``; log p where p - q leaves no mass.

    log (p - q) = log p + log(1 - exp(log q - log p)), through expm1, is stable for p near q. No mass is left where p = q, so that
    a rejection cannot happen but for rounding, or where p is one-hot at the token of a one-hot q: p is then the law to draw from.

    Args:
        target: ``[rows, vocab]`` log p.
        rows: ``[entries]`` int64, the row of each entry of q, which is 0 everywhere else.
        tokens: ``[entries]`` int64, the token id of each entry; a (row, token) pair occurs once.
        draft: ``[entries]`` float64 log q, above -inf; under block verification log q - log P.
    """
    at_entries = target[rows, tokens].to(torch.float64)
    remaining = torch.expm1(draft - at_entries).neg_().clamp_(min=0.0)  # 1 - q/p
    residual = target.clone()
    residual[rows, tokens] = (at_entries + remaining.log_()).to(target.dtype)
    is_empty = residual.amax(dim=-1, keepdim=True) == -math.inf
    return torch.where(is_empty, target, residual)
