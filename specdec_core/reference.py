"""The oracle: plain and speculative decoding, slow and obvious, in Python floats. It shares nothing with what it checks but Philox.

``Logits`` is any function from a token sequence to the next token's logits. Random choices follow the noise contract (ARCHITECTURE.md): the
target's draw at position n is argmax(log p + g) with g keyed by (seed, n, token); see ``specdec_core.philox``.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import accumulate
from typing import TYPE_CHECKING

from specdec_core.philox import Stream, key_words, philox4x32

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specdec_core.params import SamplingParams
    from specdec_core.types import NoiseKey

    Logits = Callable[[Sequence[int]], Sequence[float]]


def law(
    logits: Sequence[float], tokens: Sequence[int], prompt_len: int, params: SamplingParams
) -> list[float]:
    """Probabilities of the token after ``tokens``; the order of the steps is that of ``specdec_core.sampling.process``."""
    output = tokens[prompt_len:]
    allowed = params.allowed_token_ids or range(len(logits))
    scores = [x if i in allowed else -math.inf for i, x in enumerate(logits)]
    for word in params.bad_words:
        head = word[:-1]
        if not head or tuple(tokens[-len(head) :]) == head:
            scores[word[-1]] = -math.inf
    if len(output) < params.min_tokens:
        for token in params.stop_token_ids:
            scores[token] = -math.inf
    for token, bias in params.logit_bias:
        scores[token] += bias
    penalty = params.repetition_penalty
    for token in set(tokens):
        scores[token] *= penalty if scores[token] < 0 else 1 / penalty
    for token, count in Counter(output).items():
        scores[token] -= params.presence_penalty + params.frequency_penalty * count
    if params.is_greedy:
        best = scores.index(max(scores))
        return [float(i == best) for i in range(len(scores))]
    return _truncate(_softmax([x / params.temperature for x in scores]), params)


def _softmax(scores: Sequence[float]) -> list[float]:
    top = max(scores)
    total = math.fsum(math.exp(x - top) for x in scores)
    return [math.exp(x - top) / total for x in scores]


def _truncate(probs: list[float], params: SamplingParams) -> list[float]:
    """min-p, then top-k, top-p and typical-p, each on what is left; ties go to the lower id."""
    floor = params.min_p * max(probs)
    alive = [i for i, p in enumerate(probs) if p >= floor and p > 0]
    alive = sorted(alive, key=lambda i: (-probs[i], i))[: params.top_k or None]
    law = _head(alive, {i: probs[i] for i in alive}, params.top_p)
    entropy = -sum(p * math.log(p) for p in law.values())
    by_surprise = sorted(law, key=lambda i: (abs(math.log(law[i]) + entropy), i))
    law = _head(by_surprise, law, params.typical_p)
    return [law.get(i, 0.0) for i in range(len(probs))]


def _head(order: Sequence[int], law: dict[int, float], share: float) -> dict[int, float]:
    """The first tokens that hold ``share`` of the mass, renormalised."""
    masses = accumulate((law[i] for i in order), initial=0.0)
    wanted = math.inf if share == 1.0 else share * sum(law.values())
    kept = [i for i, mass in zip(order, masses, strict=False) if mass < wanted]
    total = sum(law[i] for i in kept)
    return {i: law[i] / total for i in kept}


def gumbel(noise: NoiseKey, position: int, token: int, stream: Stream) -> float:
    """The noise of one token at one absolute position."""
    words = philox4x32((position, token // 4, int(stream), noise.sample_index), key_words(noise))
    return -math.log(-math.log1p(-(words[token % 4] + 0.5) * 2.0**-32))


def draw(
    probs: Sequence[float], noise: NoiseKey, position: int, stream: Stream = Stream.TOKEN
) -> int:
    """argmax(log p + g); a single possible token needs no noise."""
    alive = [i for i, p in enumerate(probs) if p > 0]
    return max(alive, key=lambda i: (math.log(probs[i]) + gumbel(noise, position, i, stream), -i))


def plain(
    logits: Logits, prompt: Sequence[int], params: SamplingParams, noise: NoiseKey, max_context: int
) -> list[int]:
    """Output tokens of decoding one token at a time."""
    tokens = list(prompt)
    while len(tokens) < min(len(prompt) + params.max_tokens, max_context):
        tokens.append(draw(law(logits(tokens), tokens, len(prompt), params), noise, len(tokens)))
        if tokens[-1] in params.stop_token_ids:
            break
    return tokens[len(prompt) :]


def speculative_round(
    p: Logits, q: Logits, tokens: Sequence[int], gamma: int, rng: Callable[[], float]
) -> list[int]:
    """One round of speculative sampling (arXiv 2211.17192, Algorithm 1) with the laws p and q themselves; ``rng`` gives uniforms."""
    drafted = list(tokens)
    for _ in range(gamma):
        drafted.append(_sample(q(drafted), rng))
    for i in range(len(tokens), len(drafted)):
        target, drafter, guess = p(drafted[:i]), q(drafted[:i]), drafted[i]
        if rng() * drafter[guess] >= target[guess]:
            residual = [max(a - b, 0.0) for a, b in zip(target, drafter, strict=True)]
            return [*drafted[len(tokens) : i], _sample(residual, rng)]
    return [*drafted[len(tokens) :], _sample(p(drafted), rng)]


def _sample(weights: Sequence[float], rng: Callable[[], float]) -> int:
    threshold = rng() * sum(weights)
    for i, weight in enumerate(weights):
        threshold -= weight
        if threshold < 0:
            return i
    return max(i for i, weight in enumerate(weights) if weight > 0)
