"""Ways to get the logits of every position of one text: each shares its forwards differently."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import torch

from specdec_core.models.forward import Segment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdec_core.models.forward import CausalModel

VERIFIED_COUNTS = range(2, 18)  # a draft of up to 16 tokens after the last committed one
_NUM_OTHERS = 3


def text(length: int, vocab_size: int, seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(vocab_size) for _ in range(length)]


def in_chunks(model: CausalModel, tokens: Sequence[int], counts: Sequence[int]) -> torch.Tensor:
    """The logits of all ``tokens``, fed ``counts`` at a time."""
    kv = model.new_sequence()
    rows = []
    for count in counts:
        chunk = tokens[kv.length : kv.length + count]
        rows.append(model.forward([Segment(kv, chunk, len(chunk))]))
    kv.release()
    return torch.cat(rows)


def whole(model: CausalModel, tokens: Sequence[int]) -> torch.Tensor:
    return in_chunks(model, tokens, [len(tokens)])


def one_by_one(model: CausalModel, tokens: Sequence[int]) -> torch.Tensor:
    return in_chunks(model, tokens, [1] * len(tokens))


def at_random_cuts(model: CausalModel, tokens: Sequence[int], seed: int) -> torch.Tensor:
    return in_chunks(model, tokens, _random_counts(len(tokens), seed))


def verified(model: CausalModel, tokens: Sequence[int], count: int) -> torch.Tensor:
    """The last ``count`` rows, after a rejected block of as many other tokens was rolled back."""
    base = len(tokens) - count
    kv = model.new_sequence()
    model.forward([Segment(kv, tokens[:base], 0)])
    model.forward([Segment(kv, list(reversed(tokens))[:count], count)])
    kv.truncate(base)
    rows = model.forward([Segment(kv, tokens[base:], count)])
    kv.release()
    return rows


def among_others(model: CausalModel, tokens: Sequence[int], seed: int) -> torch.Tensor:
    """The rows of one session whose every forward is shared with others of other lengths, at a random place among them."""
    draw = random.Random(seed)
    kv = model.new_sequence()
    others = [model.new_sequence() for _ in range(_NUM_OTHERS)]
    rows = []
    for count in _random_counts(len(tokens), seed):
        chunk = tokens[kv.length : kv.length + count]
        beside = [
            Segment(other, text(draw.choice((1, 2, 5, 19)), model.spec.vocab_size, seed), 1)
            for other in draw.sample(others, draw.randint(1, _NUM_OTHERS))
        ]
        place = draw.randint(0, len(beside))
        segments = [*beside[:place], Segment(kv, chunk, count), *beside[place:]]
        rows.append(model.forward(segments)[place : place + count])
        for other in others:
            other.truncate(min(other.length, draw.randint(0, len(tokens))))
    for sequence in (kv, *others):
        sequence.release()
    return torch.cat(rows)


def _random_counts(total: int, seed: int) -> list[int]:
    draw = random.Random(seed)
    counts: list[int] = []
    while sum(counts) < total:
        counts.append(min(draw.choice((1, 1, 2, 3, 8, 21)), total - sum(counts)))
    return counts
