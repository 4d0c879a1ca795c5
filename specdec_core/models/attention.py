"""Causal attention of a ragged batch: each session's new tokens against that session's keys and values.

The loop over sessions is plain Python around one SDPA call each. On a CPU that beats padding and gathering (measured), because the KV
is read where it lies; the linears around it run over all rows of the batch at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdec_core.models.storage import StoredSequence

_MAX_FOLDED_ROWS = (
    16  # more new tokens than this use SDPA's own grouped-query path, without a mask per query head
)


@dataclass(frozen=True, slots=True)
class AttentionRule:
    """What a layer does beside softmax(scale · QKᵀ) V."""

    scale: float
    window: int | None = None  # a token sees itself and the window - 1 tokens before it
    softcap: float | None = None  # scores become softcap · tanh(scores / softcap)


@dataclass(frozen=True, slots=True)
class Span:
    """The rows of the packed batch that are one session's new tokens."""

    sequence: StoredSequence
    begin: int
    end: int


class StepAttention(Protocol):
    """The attention of one step, layer after layer."""

    def attend(
        self,
        layer: int,
        queries: torch.Tensor,  # [total, num_heads, key_dim]
        keys: torch.Tensor,  # [total, num_kv_heads, key_dim]
        values: torch.Tensor,  # [total, num_kv_heads, value_dim]
        rule: AttentionRule,
    ) -> torch.Tensor:
        """Store the new keys and values of ``layer``; returns [total, num_heads * value_dim]."""
        ...


class AttentionBackend(Protocol):
    """Makes the attention of each step; chosen once, when a model is loaded."""

    def __call__(self, spans: Sequence[Span]) -> StepAttention:
        """The attention of one step over ``spans``, whose sequences have already grown by their new tokens."""
        ...


class RaggedAttention:
    """The attention of one step over several sessions, whose sequences have already grown by their new tokens."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = spans
        self._masks: dict[tuple[int, int | None, int], torch.Tensor] = {}

    def attend(
        self,
        layer: int,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        rule: AttentionRule,
    ) -> torch.Tensor:
        if len(self._spans) == 1:
            return self._attend_span(0, layer, (queries, keys, values), rule)
        output = queries.new_empty(queries.shape[0], queries.shape[1] * values.shape[2])
        for index, span in enumerate(self._spans):
            rows = slice(span.begin, span.end)
            output[rows] = self._attend_span(
                index, layer, (queries[rows], keys[rows], values[rows]), rule
            )
        return output

    def _attend_span(
        self,
        index: int,
        layer: int,
        new: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        rule: AttentionRule,
    ) -> torch.Tensor:
        queries, new_keys, new_values = new
        keys, values = self._spans[index].sequence.write(layer, new_keys, new_values)
        num_new = queries.shape[0]
        if rule.window is not None:
            out_of_reach = max(0, keys.shape[1] - num_new - rule.window + 1)
            keys, values = keys[:, out_of_reach:], values[:, out_of_reach:]
        if rule.softcap is not None:
            mask = self._mask(index, queries, keys, rule.window)
            return _capped(queries, keys, values, rule, mask)
        if num_new > _MAX_FOLDED_ROWS:
            if keys.shape[1] == num_new and (rule.window is None or num_new <= rule.window):
                return _grouped(queries, keys, values, rule, None)
            mask = self._mask(index, queries, keys, rule.window)
            return _grouped(queries, keys, values, rule, mask)
        return _folded(queries, keys, values, rule, self._mask(index, queries, keys, rule.window))

    def _mask(
        self, index: int, queries: torch.Tensor, keys: torch.Tensor, window: int | None
    ) -> torch.Tensor | None:
        """What the new tokens of a span may see, the same in every layer of a step; None where one token sees every key."""
        if queries.shape[0] == 1:
            return None
        num_new, num_heads = queries.shape[:2]
        groups = num_heads // keys.shape[0] if num_new <= _MAX_FOLDED_ROWS else 1
        mask = self._masks.get((index, window, groups))
        if mask is None:
            mask = causal_mask(num_new, keys.shape[1], window, queries).repeat(groups, 1)
            self._masks[index, window, groups] = mask
        return mask


class RowwiseAttention:
    """One new token at a time: the order in which its sums are added up depends on its position alone.

    So a token's output has the same bits in a prefill, a verified block and a decoding step, alone or among other sessions.
    """

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = spans

    def attend(
        self,
        layer: int,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        rule: AttentionRule,
    ) -> torch.Tensor:
        output = queries.new_empty(queries.shape[0], queries.shape[1] * values.shape[2])
        for span in self._spans:
            rows = slice(span.begin, span.end)
            all_keys, all_values = span.sequence.write(layer, keys[rows], values[rows])
            past = (
                all_keys.shape[1] - span.end
            )  # of row r, keys up to position past + r are visible
            for row in range(span.begin, span.end):
                end = past + row + 1
                reach = slice(0 if rule.window is None else max(0, end - rule.window), end)
                output[row] = _attend_token(
                    queries[row : row + 1], all_keys[:, reach], all_values[:, reach], rule
                )
        return output


def _attend_token(
    query: torch.Tensor,  # [1, num_heads, key_dim]
    keys: torch.Tensor,
    values: torch.Tensor,
    rule: AttentionRule,
) -> torch.Tensor:  # [1, num_heads * value_dim]
    if rule.softcap is not None:
        return _capped(query, keys, values, rule, None)
    return _folded(query, keys, values, rule, None)


def causal_mask(
    num_new: int, num_keys: int, window: int | None, like: torch.Tensor
) -> torch.Tensor:  # [num_new, num_keys]
    """0 where a new token may look and -inf elsewhere, the new tokens being the last ``num_new`` keys; dtype and device of ``like``."""
    own = torch.arange(num_keys - num_new, num_keys, device=like.device)[:, None]
    other = torch.arange(num_keys, device=like.device)
    hidden = other > own
    if window is not None:
        hidden |= other <= own - window
    return like.new_zeros(num_new, num_keys).masked_fill_(hidden, float("-inf"))


def _folded(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    rule: AttentionRule,
    mask: torch.Tensor | None,  # [groups * num_new, num_keys]; None if one token sees every key
) -> torch.Tensor:
    """Query heads that share a KV head become rows of one head, so that each key and value is read once."""
    rows = _fold(queries, keys.shape[0])
    output = functional.scaled_dot_product_attention(
        rows[None], keys[None], values[None], attn_mask=mask, scale=rule.scale
    )
    return _unfold(output[0], queries.shape[0])


def _grouped(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    rule: AttentionRule,
    mask: torch.Tensor | None,  # [num_new, num_keys]; None if the new tokens are all there is
) -> torch.Tensor:
    output = functional.scaled_dot_product_attention(
        queries.transpose(0, 1)[None],
        keys[None],
        values[None],
        attn_mask=mask,
        is_causal=mask is None,
        scale=rule.scale,
        enable_gqa=True,
    )
    return output[0].transpose(0, 1).flatten(1)


def _capped(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    rule: AttentionRule,
    mask: torch.Tensor | None,  # as in _folded or _grouped, by the number of new tokens
) -> torch.Tensor:
    """Soft-capped scores, which SDPA has no kernel for (Gemma 2, arXiv:2408.00118, section 2)."""
    softcap = rule.softcap
    num_new, num_kv_heads = queries.shape[0], keys.shape[0]
    scores = torch.bmm(_fold(queries, num_kv_heads), keys.transpose(1, 2)).mul_(rule.scale)
    if softcap is not None:
        scores = scores.div_(softcap).tanh_().mul_(softcap)
    if mask is not None:
        scores = scores.view(num_kv_heads, -1, *mask.shape).add_(mask).view_as(scores)
    weights = torch.softmax(scores, dim=-1, dtype=_softmax_dtype(scores)).to(values.dtype)
    return _unfold(torch.bmm(weights, values), num_new)


def _softmax_dtype(scores: torch.Tensor) -> torch.dtype:
    return torch.float64 if scores.dtype == torch.float64 else torch.float32


def _fold(
    queries: torch.Tensor, num_kv_heads: int
) -> torch.Tensor:  # [num_kv_heads, groups * num_new, key_dim]
    num_new, num_heads, key_dim = queries.shape
    groups = num_heads // num_kv_heads
    by_kv_head = queries.view(num_new, num_kv_heads, groups, key_dim).permute(1, 2, 0, 3)
    return by_kv_head.reshape(num_kv_heads, groups * num_new, key_dim)


def _unfold(
    rows: torch.Tensor,  # [num_kv_heads, groups * num_new, value_dim]
    num_new: int,
) -> torch.Tensor:  # [num_new, num_heads * value_dim]
    num_kv_heads, _, value_dim = rows.shape
    by_token = rows.view(num_kv_heads, -1, num_new, value_dim).permute(2, 0, 1, 3)
    return by_token.reshape(num_new, -1)
