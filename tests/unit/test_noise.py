"""The noise: Philox against its published vectors, and Gumbel variates that depend on their names alone."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from specdec_core import philox
from specdec_core.philox import Stream, philox4x32
from specdec_core.sampling import noise
from specdec_core.sampling.noise import MAX_GUMBEL, MIN_GUMBEL, gumbel, gumbel_at
from specdec_core.types import NoiseKey

CPU = torch.device("cpu")
ONES = 0xFFFFFFFF
# kat_vectors of the Random123 distribution: counter, key, output of philox4x32-10.
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (ONES, ONES, ONES, ONES),
        (ONES, ONES),
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
FALSE_ALARM = 1e-4  # of each statistical test below, for a key drawn at random; the keys are fixed
SEED = 0xDEADBEEFCAFEF00D


def row(
    seed: int = 1,
    *,
    position: int = 5,
    stream: Stream = Stream.TOKEN,
    sample_index: int = 0,
    vocab_size: int = 64,
) -> torch.Tensor:
    return gumbel([NoiseKey(seed, sample_index)], [position], stream, vocab_size, CPU)[0]


@pytest.mark.parametrize(("counter", "key", "output"), KNOWN_ANSWERS)
def test_philox_on_ints_gives_the_published_words(
    counter: tuple[int, int, int, int], key: tuple[int, int], output: tuple[int, int, int, int]
) -> None:
    assert philox4x32(counter, key) == output


def test_philox_on_tensors_gives_the_published_words_side_by_side() -> None:
    counters = torch.tensor([counter for counter, _, _ in KNOWN_ANSWERS]).unbind(dim=-1)
    keys = torch.tensor([key for _, key, _ in KNOWN_ANSWERS]).unbind(dim=-1)

    words = philox4x32((counters[0], counters[1], counters[2], counters[3]), (keys[0], keys[1]))

    assert torch.stack(words, dim=-1).tolist() == [list(each) for _, _, each in KNOWN_ANSWERS]


def test_each_token_has_the_word_its_name_says() -> None:
    key = NoiseKey(seed=SEED, sample_index=3)
    values = gumbel([key], [123_456_789], Stream.RESIDUAL, 11, CPU)[0].tolist()

    for token, value in enumerate(values):
        counter = (123_456_789, token // 4, 3, 3)
        word = philox4x32(counter, (0xCAFEF00D, 0xDEADBEEF))[token % 4]
        expected = -math.log(-math.log1p(-(word + 0.5) / 2**32))
        assert value == pytest.approx(expected, rel=1e-6)


def test_the_scalar_uniform_is_the_first_word_of_the_same_counter() -> None:
    key = NoiseKey(seed=SEED, sample_index=2)

    uniform = philox.uniform(key, 77, Stream.ACCEPT)

    first = gumbel([key], [77], Stream.ACCEPT, 4, CPU)[0, 0].item()
    assert first == pytest.approx(-math.log(-math.log1p(-uniform)), rel=1e-6)


def test_noise_at_some_tokens_equals_gathering_the_whole_row() -> None:
    keys = [NoiseKey(1), NoiseKey(2**64 - 1, 9), NoiseKey(1)]
    positions = [0, 2**31 - 1, 1]
    token_ids = torch.tensor([[0, 3, 4, 999], [998, 1, 1, 7], [5, 6, 7, 8]])

    sparse = gumbel_at(keys, positions, Stream.DRAFT, token_ids)

    whole = gumbel(keys, positions, Stream.DRAFT, 1000, CPU)
    assert sparse.dtype is torch.float32
    assert torch.equal(sparse, whole.gather(-1, token_ids))


def test_noise_of_a_row_ignores_its_batch_and_the_width_of_the_vocabulary() -> None:
    keys = [NoiseKey(4), NoiseKey(5)]

    both = gumbel(keys, [9, 10], Stream.TOKEN, 1001, CPU)

    assert torch.equal(both[1], row(5, position=10, vocab_size=1001))
    assert torch.equal(both[1, :50], row(5, position=10, vocab_size=50))


@pytest.mark.parametrize(
    "other",
    [
        row(2),
        row(1 + 2**32),
        row(position=6),
        row(stream=Stream.ACCEPT),
        row(stream=Stream.DRAFT),
        row(stream=Stream.RESIDUAL),
        row(sample_index=1),
    ],
    ids=["seed", "seed's high word", "position", "accept", "draft", "residual", "sample"],
)
def test_every_part_of_the_name_changes_every_value(other: torch.Tensor) -> None:
    assert not (row() == other).any()


def test_neighbouring_tokens_differ() -> None:
    values = row(vocab_size=4096)

    assert not (values[1:] == values[:-1]).any()


def test_the_extreme_words_stay_finite_and_inside_the_stated_range() -> None:
    highest, lowest = noise._gumbel_of_words(torch.tensor([0, ONES])).tolist()

    assert MAX_GUMBEL - 2e-3 < highest < MAX_GUMBEL
    assert MIN_GUMBEL < lowest < MIN_GUMBEL + 1e-3


def test_no_rows_and_no_tokens_give_empty_noise() -> None:
    assert gumbel([], [], Stream.TOKEN, 7, CPU).shape == (0, 7)
    assert gumbel_at(
        [NoiseKey(1)], [0], Stream.TOKEN, torch.empty(1, 0, dtype=torch.int64)
    ).shape == (1, 0)


@pytest.mark.parametrize("stream", list(Stream))
def test_marginals_are_gumbel_by_kolmogorov_smirnov(stream: Stream) -> None:
    values = gumbel([NoiseKey(SEED)] * 20, range(20), stream, 5_000, CPU).flatten().numpy()

    assert stats.kstest(values, stats.gumbel_r.cdf).pvalue > FALSE_ALARM
    assert stats.kstest(values * 1.03, stats.gumbel_r.cdf).pvalue < FALSE_ALARM  # the test can fail


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (row(vocab_size=100_000), row(position=6, vocab_size=100_000)),
        (row(vocab_size=100_000), row(stream=Stream.RESIDUAL, vocab_size=100_000)),
        (row(vocab_size=100_000), row(sample_index=1, vocab_size=100_000)),
        (row(vocab_size=100_000)[:-1], row(vocab_size=100_000)[1:]),
        (row(vocab_size=100_000)[:-4], row(vocab_size=100_000)[4:]),
    ],
    ids=["positions", "streams", "samples", "neighbours", "blocks"],
)
def test_noise_under_different_names_is_uncorrelated(
    first: torch.Tensor, second: torch.Tensor
) -> None:
    assert stats.spearmanr(first.numpy(), second.numpy()).pvalue > FALSE_ALARM
