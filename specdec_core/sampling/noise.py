"""Gumbel noise that is a function of (seed, position, token id) and of nothing else.

The word k of a token is word ``token_id % 4`` of Philox at counter (position, token_id // 4, stream, sample index) under the
request's seed, so any subset of a vocabulary can be computed alone, in any batch, on any machine. Then, in float64,

    u = (k + 1/2) / 2**32,   E = -log1p(-u) ~ Exp(1),   g = -log E ~ Gumbel(0, 1),   rounded to float32 at the end.

Resolution: u takes 2**32 equally likely values inside (0, 1), so the distribution function of E is off by at most 2**-33 and g
lies in [-3.13, 22.875]. A token more than e**26 times less likely than the likeliest is therefore never drawn. float64 logarithms
may differ by an ulp between machines; the rounding to float32 hides that except about once in 2**28 tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from specdec_core.philox import key_words, philox4x32

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdec_core.philox import Stream
    from specdec_core.types import NoiseKey

MAX_GUMBEL = 22.875  # 33 log 2, rounded up: k = 0
MIN_GUMBEL = -3.13  # -log(33 log 2), rounded down: k = 2**32 - 1
_WORDS = 4  # of 32 bits in one Philox block


def gumbel(
    keys: Sequence[NoiseKey],
    positions: Sequence[int],
    stream: Stream,
    vocab_size: int,
    device: torch.device,
) -> torch.Tensor:
    """The noise of every token of the vocabulary, ``[rows, vocab_size]`` float32.

    Args:
        keys: Whose noise, one per row.
        positions: Absolute position of the token to be drawn, below 2**31, one per row.
        stream: Which of the independent uses.
        vocab_size: Width of a row.
        device: Where the result lives.
    """
    sources = noise_sources(keys, positions, device)
    return gumbel_of_rows(sources, stream, vocab_size).to(torch.float32)


def gumbel_at(
    keys: Sequence[NoiseKey], positions: Sequence[int], stream: Stream, token_ids: torch.Tensor
) -> torch.Tensor:
    """The noise of some tokens: what gathering ``gumbel`` at ``token_ids`` would give.

    Args:
        keys: Whose noise, one per row.
        positions: Absolute position of the token to be drawn, below 2**31, one per row.
        stream: Which of the independent uses.
        token_ids: ``[rows, K]`` int64.

    Returns:
        ``[rows, K]`` float32 on the device of ``token_ids``.
    """
    sources = noise_sources(keys, positions, token_ids.device)
    return gumbel_of_tokens(sources.unsqueeze(1), stream, token_ids).to(torch.float32)


def noise_sources(
    keys: Sequence[NoiseKey], positions: Sequence[int], device: torch.device
) -> torch.Tensor:
    """What tells rows of noise apart, ``[rows, 4]`` int64: position, sample index, key low, key high."""
    sources = [
        (position, key.sample_index, *key_words(key))
        for key, position in zip(keys, positions, strict=True)
    ]
    return torch.tensor(sources, dtype=torch.int64, device=device).reshape(-1, 4)


def gumbel_of_rows(sources: torch.Tensor, stream: Stream, vocab_size: int) -> torch.Tensor:
    """Noise of every token in float64; ``sources`` ``[rows, 4]`` gives ``[rows, vocab_size]``."""
    blocks = torch.arange(-(-vocab_size // _WORDS), device=sources.device)
    words = _philox(sources.unsqueeze(1), blocks, stream)  # [rows, blocks, 4]
    return _gumbel_of_words(words.flatten(start_dim=1)[:, :vocab_size])


def gumbel_of_tokens(
    sources: torch.Tensor, stream: Stream, token_ids: torch.Tensor
) -> torch.Tensor:
    """Noise of some tokens in float64; ``sources`` ``[..., 4]`` broadcasts against ``token_ids`` ``[...]``."""
    words = _philox(sources, token_ids // _WORDS, stream)  # [..., 4]
    own = words.gather(-1, (token_ids % _WORDS).unsqueeze(-1))
    return _gumbel_of_words(own.squeeze(-1))


def _philox(sources: torch.Tensor, blocks: torch.Tensor, stream: Stream) -> torch.Tensor:
    position, sample_index, key_low, key_high = sources.unbind(dim=-1)
    streams = torch.full_like(position, int(stream))
    counter = (position, blocks, streams, sample_index)
    return torch.stack(philox4x32(counter, (key_low, key_high)), dim=-1)


def _gumbel_of_words(words: torch.Tensor) -> torch.Tensor:
    negated_uniforms = words.to(torch.float64).add_(0.5).mul_(-(2.0**-32))
    return negated_uniforms.log1p_().neg_().log_().neg_()
