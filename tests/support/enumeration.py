"""Laws small enough to enumerate: targets and drafters that depend on the whole prefix, and what a rule makes of them."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

import torch

from specdec_core.sampling.draw import sparse_law
from specdec_core.types import OneHot, Proposal, Sparse

if TYPE_CHECKING:
    from collections.abc import Callable

    Law = list[float]
    Prefix = tuple[int, ...]
    SequenceLaw = dict[Prefix, float]
    Drafting = Callable[[Law], tuple[Law, Proposal]]  # q to the law drawn from and what is sent


def random_law(vocab: int, name: str, *, zeros: int = 0) -> Law:
    """A law that is a function of ``name``, with some tokens excluded."""
    source = random.Random(name)
    weights = [source.expovariate(1.0) for _ in range(vocab)]
    for token in source.sample(range(vocab), zeros):
        weights[token] = 0.0
    return [weight / math.fsum(weights) for weight in weights]


def target_law(vocab: int, seed: int, prefix: Prefix) -> Law:
    """An odd seed gives a target that excludes a token behind every prefix."""
    return random_law(vocab, f"target {seed} {prefix}", zeros=seed % 2)


def drafter_law(vocab: int, seed: int, prefix: Prefix) -> Law:
    return random_law(vocab, f"drafter {seed} {prefix}")


def dense(q: Law) -> tuple[Law, Proposal]:
    return q, Sparse((tuple(range(len(q))),), (tuple(q),))


def top_two(q: Law) -> tuple[Law, Proposal]:
    ids, probs = sparse_law(torch.tensor([q]).log(), 2)
    support, sent = tuple(ids[0].tolist()), tuple(probs[0].tolist())
    drawn_from = [0.0] * len(q)
    for token, prob in zip(support, sent, strict=True):
        drawn_from[token] = prob / math.fsum(sent)
    return drawn_from, Sparse((support,), (sent,))


def deterministic(q: Law) -> tuple[Law, Proposal]:
    return [float(token == q.index(max(q))) for token in range(len(q))], OneHot()


def disjoint_from_what_is_sent(q: Law) -> tuple[Law, Proposal]:
    rest = math.fsum(q[1:])
    return [0.0, *(prob / rest for prob in q[1:])], Sparse(((0,),), ((1.0,),))


def top_two_only_when_sending(q: Law) -> tuple[Law, Proposal]:
    """A drafter at fault, yet harmless: within what is sent q keeps its ratios, and the rest is judged as one-hot."""
    support = tuple(sorted(range(len(q)), key=lambda token: -q[token])[:2])
    return q, Sparse((support,), (tuple(q[token] for token in support),))


def top_two_only_when_drawing(q: Law) -> tuple[Law, Proposal]:
    """A drafter that lies, which no rule can mend: it truncates q before it draws, and sends all of it."""
    return top_two(q)[0], dense(q)[1]


def target_sequences(vocab: int, seed: int, prefix: Prefix, length: int) -> SequenceLaw:
    """The target's law of what follows ``prefix``, as whole sequences that begin with it."""
    law = {prefix: 1.0}
    for _ in range(length):
        law = {
            (*head, token): weight * prob
            for head, weight in law.items()
            for token, prob in enumerate(target_law(vocab, seed, head))
        }
    return law


def distance_from_target(emitted: SequenceLaw, *, vocab: int, seed: int, length: int) -> float:
    """Total variation over sequences of ``length``, each emission continued by the target alone, or cut there."""
    difference = {
        each: -weight for each, weight in target_sequences(vocab, seed, (), length).items()
    }
    for prefix, weight in emitted.items():
        head = prefix[:length]
        for sequence, rest in target_sequences(vocab, seed, head, length - len(head)).items():
            difference[sequence] += weight * rest
    return 0.5 * math.fsum(map(abs, difference.values()))
