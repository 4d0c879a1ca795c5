"""The one function that turns logits into the law a token is drawn from.

Every row of every path goes through ``process``: prefill's last row, plain decoding, each draft position, the bonus. Its order is
that of vLLM V1 (``vllm/v1/sample/sampler.py``), the engine whose parameter names clients already use:

1. float32
2. the mask of structured output, then ``allowed_token_ids``
3. ``bad_words``
4. ``min_tokens``
5. ``logit_bias``
6. ``repetition_penalty`` (prompt and output; Keskar et al., CTRL, arXiv:1909.05858, in the form transformers gave it)
7. ``presence_penalty`` and ``frequency_penalty`` (output only; OpenAI's definition)
8. greedy, or ``temperature``
9. ``min_p``
10. ``top_k``
11. ``top_p``, on the law renormalised after ``top_k``
12. ``typical_p``, on the law renormalised after ``top_p``, where transformers has it (vLLM has none)

Where a user of transformers sees a difference: there ``min_p`` comes after ``top_k`` and ``top_p`` (it changes which mass ``top_p``
counts), masks come after the repetition penalty (same result), ``sequence_bias`` may span several tokens, ``top_k`` keeps every
token tied with the k-th, and ties at the edge of the nucleus fall where the sort puts them. Where a user of vLLM sees one: the
head of a bad word may lie in the prompt, as in transformers.

Ties go to the lower token id everywhere, so the law is a function of the row alone, whatever shares its batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from specdec_core.errors import InvalidArgumentError, InvariantError
from specdec_core.sampling.truncation import truncate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdec_core.params import SamplingParams

_EXCLUDED_BY_BYTE = torch.tensor(
    [[not byte >> bit & 1 for bit in range(8)] for byte in range(256)]
).view(torch.int64)[:, 0]  # eight booleans in each entry


@dataclass(frozen=True, slots=True)
class Row:
    """What is known of one token about to be drawn."""

    prefix: Sequence[int]  # every token before the one to be drawn, prompt included
    prompt_len: int
    params: SamplingParams  # stop_token_ids already hold the model's EOS ids
    mask: bytes | None = (
        None  # tokens that structured output allows, as ``GrammarState.mask`` packs them
    )


@torch.no_grad()
def process(logits: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
    """The law of each row as float32 log-probabilities, ``-inf`` where a token is excluded.

    A greedy row is one-hot: 0 at its argmax. ``logits`` is left as it was. Since each row stands alone, a caller that must know
    whose row raised can call again with the rows of one session at a time.

    Args:
        logits: ``[rows, vocab]``, any float dtype.
        rows: One per row of ``logits``, of any mix of sessions.

    Returns:
        ``[rows, vocab]``; every row has at least one finite entry.

    Raises:
        InvalidArgumentError: the masks of a row leave no token; names the field to relax.
        InvariantError: the counts differ, or a row of ``logits`` holds NaN or no largest finite value.
    """
    if len(rows) != logits.shape[0]:
        raise InvariantError(f"{logits.shape[0]} rows of logits for {len(rows)} prefixes")
    scores = logits.to(torch.float32, copy=True)
    _mask(scores, [row.mask for row in rows])
    for index, row in enumerate(rows):
        _edit(scores[index], row)
    best, best_ids = scores.max(dim=-1, keepdim=True)
    _check_survivors(best.squeeze(-1).tolist(), rows)
    params = [row.params for row in rows]
    if all(each.is_greedy for each in params):
        return _one_hot(scores, best_ids)
    temperatures = [1.0 if each.is_greedy else each.temperature for each in params]
    scores.sub_(best).div_(scores.new_tensor(temperatures).unsqueeze(-1))
    truncate(scores, params)
    law = torch.log_softmax(scores, dim=-1)
    greedy = [index for index, each in enumerate(params) if each.is_greedy]
    if greedy:
        law[greedy] = _one_hot(law[greedy], best_ids[greedy])
    return law


def _one_hot(like: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return torch.full_like(like, -math.inf).scatter_(-1, ids, 0.0)


def _mask(scores: torch.Tensor, masks: Sequence[bytes | None]) -> None:
    """Exclude in each row of ``scores`` ``[rows, vocab]`` what its mask, if it has one, does not allow."""
    masked = [index for index, mask in enumerate(masks) if mask is not None]
    if not masked:
        return
    vocab_size = scores.shape[-1]
    width = (vocab_size + 7) // 8
    packed = bytearray(
        b"".join(mask[:width].ljust(width, b"\0") for mask in masks if mask is not None)
    )
    eights = torch.frombuffer(packed, dtype=torch.uint8).to(scores.device, torch.int64)
    excluded = _EXCLUDED_BY_BYTE.to(scores.device)[eights].view(torch.bool).view(-1, width * 8)
    for index, row in zip(masked, excluded[:, :vocab_size], strict=True):
        scores[index].masked_fill_(row, -math.inf)


def _edit(scores: torch.Tensor, row: Row) -> None:  # scores [vocab], changed in place
    params = row.params
    if params.allowed_token_ids:
        excluded = torch.ones_like(scores, dtype=torch.bool)
        excluded[_ids(params.allowed_token_ids, scores)] = False
        scores.masked_fill_(excluded, -math.inf)
    banned = _banned(row)
    if banned:
        scores[_ids(banned, scores)] = -math.inf
    if params.logit_bias:
        ids, biases = zip(*params.logit_bias, strict=True)
        scores.index_add_(0, _ids(ids, scores), scores.new_tensor(biases))
    if params.repetition_penalty != 1.0:
        _penalise_repetition(scores, row.prefix, params.repetition_penalty)
    if params.presence_penalty or params.frequency_penalty:
        _penalise_output(scores, row.prefix[row.prompt_len :], params)


def _banned(row: Row) -> list[int]:
    """Tokens that would complete a bad word, and stop tokens while the output is too short."""
    banned = [
        word[-1]
        for word in row.params.bad_words
        if len(word) <= len(row.prefix) + 1 and _ends_with(row.prefix, word[:-1])
    ]
    if len(row.prefix) - row.prompt_len < row.params.min_tokens:
        banned.extend(row.params.stop_token_ids)
    return banned


def _ends_with(prefix: Sequence[int], head: tuple[int, ...]) -> bool:
    return tuple(prefix[len(prefix) - len(head) :]) == head


def _penalise_repetition(scores: torch.Tensor, prefix: Sequence[int], penalty: float) -> None:
    seen = _ids(prefix, scores)  # a token seen twice is written twice, with the same value
    old = scores[seen]
    scores[seen] = torch.where(old > 0, old / penalty, old * penalty)


def _penalise_output(scores: torch.Tensor, output: Sequence[int], params: SamplingParams) -> None:
    counts = torch.bincount(_ids(output, scores), minlength=scores.shape[-1])
    scores -= params.presence_penalty * (counts > 0) + params.frequency_penalty * counts


def _ids(tokens: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(list(tokens), dtype=torch.int64, device=like.device)


def _check_survivors(best: list[float], rows: Sequence[Row]) -> None:
    for index, (value, row) in enumerate(zip(best, rows, strict=True)):
        if math.isfinite(value):
            continue
        field = _excluding_field(row)
        if value == -math.inf and field is not None:
            raise InvalidArgumentError(field, "leaves no token that may follow")
        raise InvariantError(f"the largest logit of row {index} is {value}")


def _excluding_field(row: Row) -> str | None:
    """The broadest mask at work on a row."""
    if row.mask is not None:
        return "structured"
    if row.params.allowed_token_ids:
        return "allowed_token_ids"
    if row.params.bad_words:
        return "bad_words"
    if len(row.prefix) - row.prompt_len < row.params.min_tokens:
        return "min_tokens"
    return None
