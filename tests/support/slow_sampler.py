"""The sampler of ``specdec_core.sampling.process`` again, in plain Python floats: slow, obvious, independent."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdec_core.params import SamplingParams


def slow_law(
    logits: Sequence[float], prefix: Sequence[int], prompt_len: int, params: SamplingParams
) -> list[float]:
    """Probabilities of one row, or all zeros where the masks leave nothing."""
    scores = {token: float(logit) for token, logit in enumerate(logits)}
    scores = _mask(scores, prefix, prompt_len, params)
    scores = _shift(scores, prefix, prompt_len, params)
    scores = {token: score for token, score in scores.items() if score > -math.inf}
    if not scores:
        return [0.0] * len(logits)
    ranked = sorted(scores, key=lambda token: (-scores[token], token))
    if params.is_greedy:
        weights = {ranked[0]: 1.0}
    else:
        best = scores[ranked[0]]
        weights = {token: math.exp((scores[token] - best) / params.temperature) for token in ranked}
        weights = _truncate(weights, params)
    total = math.fsum(weights.values())
    return [weights.get(token, 0.0) / total for token in range(len(logits))]


def _mask(
    scores: dict[int, float], prefix: Sequence[int], prompt_len: int, params: SamplingParams
) -> dict[int, float]:
    banned = set()
    if params.allowed_token_ids:
        banned |= set(scores) - set(params.allowed_token_ids)
    for word in params.bad_words:
        *head, last = word
        if not head or list(prefix)[-len(head) :] == head:
            banned.add(last)
    if len(prefix) - prompt_len < params.min_tokens:
        banned |= set(params.stop_token_ids)
    return {token: score for token, score in scores.items() if token not in banned}


def _shift(
    scores: dict[int, float], prefix: Sequence[int], prompt_len: int, params: SamplingParams
) -> dict[int, float]:
    output = list(prefix)[prompt_len:]
    shifted = {}
    for token, score in scores.items():
        value = score + sum(bias for biased, bias in params.logit_bias if biased == token)
        if token in prefix:
            penalty = params.repetition_penalty
            value = value / penalty if value > 0 else value * penalty
        if token in output:
            value -= params.presence_penalty + params.frequency_penalty * output.count(token)
        shifted[token] = value
    return shifted


def _truncate(weights: dict[int, float], params: SamplingParams) -> dict[int, float]:
    """min_p, top_k, top_p and typical_p of weights in descending order whose first is 1."""
    kept = [token for token, weight in weights.items() if weight >= params.min_p]
    if params.top_k:
        kept = kept[: params.top_k]
    if params.top_p < 1.0:
        total = math.fsum(weights[token] for token in kept)
        nucleus: list[int] = []
        reached = 0.0
        for token in kept:
            if reached >= params.top_p * total:
                break
            nucleus.append(token)
            reached += weights[token]
        kept = nucleus
    if params.typical_p < 1.0:
        kept = _typical({token: weights[token] for token in kept}, params.typical_p)
    return {token: weights[token] for token in kept}


def _typical(weights: dict[int, float], share: float) -> list[int]:
    """Tokens in the order of how far their surprise is from the entropy, until they hold the share."""
    total = math.fsum(weights.values())
    surprise = {token: math.log(total / weight) for token, weight in weights.items()}
    entropy = math.fsum(weights[token] * surprise[token] for token in weights) / total
    kept: list[int] = []
    for token in sorted(weights, key=lambda each: (abs(surprise[each] - entropy), each)):
        if math.fsum(weights[each] for each in kept) >= share * total:
            break
        kept.append(token)
    return kept
