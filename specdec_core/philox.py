"""Philox4x32-10, the counter-based generator behind every random choice.

Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). The same code runs on Python ints and on int64 tensors:
only ``+ * ^ & >>`` are used, and every word is masked to 32 bits after each product, so a product that wraps in int64 keeps the
bits that are read.

The counter is (absolute position of the token drawn, block, stream, sample index), the key is the request's 64-bit seed.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol, Self, TypeVar

from specdec_core.types import NoiseKey

MASK32 = 0xFFFFFFFF
_MULTIPLIER_0 = 0xD2511F53
_MULTIPLIER_1 = 0xCD9E8D57
_WEYL_0 = 0x9E3779B9
_WEYL_1 = 0xBB67AE85
_ROUNDS = 10


class _Word(Protocol):
    """An int, or an int64 torch.Tensor (this module must not import torch)."""

    def __add__(self, other: int, /) -> Self: ...
    def __mul__(self, other: int, /) -> Self: ...
    def __rshift__(self, other: int, /) -> Self: ...
    def __and__(self, other: int, /) -> Self: ...
    def __xor__(self, other: Self, /) -> Self: ...


Word = TypeVar("Word", bound=_Word)


class Stream(IntEnum):
    """Independent uses of the noise at one position."""

    TOKEN = 0  # the target's draw; shared with the drafter under ``coupled``
    ACCEPT = 1  # the coin of a draft token under ``ratio`` and ``block``
    DRAFT = 2  # the drafter's own draw where its law is tested
    RESIDUAL = 3  # the residual draw under ``ratio`` and ``block``
    ROUND = 4  # the key of one round's own noise


def philox4x32(
    counter: tuple[Word, Word, Word, Word], key: tuple[Word, Word]
) -> tuple[Word, Word, Word, Word]:
    """Ten rounds of Philox on a 4-word counter; 32-bit values in ints, or in int64 tensors that broadcast together."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0 = c0 * _MULTIPLIER_0
        product1 = c2 * _MULTIPLIER_1
        c0, c1, c2, c3 = (
            ((product1 >> 32) & MASK32) ^ c1 ^ k0,
            product1 & MASK32,
            ((product0 >> 32) & MASK32) ^ c3 ^ k1,
            product0 & MASK32,
        )
        k0 = (k0 + _WEYL_0) & MASK32
        k1 = (k1 + _WEYL_1) & MASK32
    return c0, c1, c2, c3


def key_words(noise: NoiseKey) -> tuple[int, int]:
    """The 64-bit seed as two 32-bit key words, low word first."""
    return noise.seed & MASK32, (noise.seed >> 32) & MASK32


def uniform(noise: NoiseKey, position: int, stream: Stream) -> float:
    """One uniform in the open interval (0, 1): (k + 1/2) / 2**32 of the first word at ``position``."""
    words = philox4x32((position, 0, int(stream), noise.sample_index), key_words(noise))
    return (words[0] + 0.5) * 2.0**-32


def round_key(noise: NoiseKey, base_len: int) -> NoiseKey:
    """The key of what is random in the round at ``base_len`` alone.

    Under ``block`` the number of accepted tokens depends on every coin and draft token of the block. The next round draws again
    at the positions of those not accepted; with the noise of a position alone it would repeat what it was selected by.
    """
    low, high, _, _ = philox4x32(
        (base_len, 0, int(Stream.ROUND), noise.sample_index), key_words(noise)
    )
    return NoiseKey(high << 32 | low, noise.sample_index)
