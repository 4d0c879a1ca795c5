"""``draw``: the shortcuts change no draw, and what is drawn follows the law."""

from __future__ import annotations

import math
import random

import pytest
import torch
from scipy import stats

from specdec_core.philox import Stream
from specdec_core.sampling.draw import draw, draw_sparse, sparse_law
from specdec_core.sampling.noise import gumbel
from specdec_core.types import NoiseKey

CPU = torch.device("cpu")
FALSE_ALARM = 1e-4  # of each chi-square test, for keys drawn at random; the keys are fixed
INF = math.inf


def random_law(rows: int, vocab: int, *, spread: float, seed: int) -> torch.Tensor:
    source = random.Random(seed)
    logits = [[source.gauss(0.0, spread) for _ in range(vocab)] for _ in range(rows)]
    return torch.tensor(logits).log_softmax(dim=-1)


def keep_top(law: torch.Tensor, size: int) -> torch.Tensor:
    return torch.full_like(law, -INF).scatter(-1, law.topk(size).indices, law.topk(size).values)


@pytest.mark.parametrize(
    "law",
    [
        random_law(20, 2000, spread=2.0, seed=1),
        random_law(20, 2000, spread=60.0, seed=2),
        keep_top(random_law(20, 2000, spread=2.0, seed=3), 50),
        keep_top(random_law(20, 2000, spread=2.0, seed=4), 1),
        random_law(20, 3, spread=1.0, seed=5),
        torch.cat(
            [
                keep_top(random_law(7, 2000, spread=2.0, seed=6), 40),
                random_law(7, 2000, spread=2.0, seed=7),
                keep_top(random_law(7, 2000, spread=2.0, seed=8), 1),
                random_law(7, 2000, spread=40.0, seed=9),
            ]
        )[torch.arange(28).reshape(4, 7).T.flatten()],
    ],
    ids=["wide", "steep", "top-k", "one-hot", "tiny", "mixed"],
)
def test_draws_equal_the_argmax_with_the_whole_noise(law: torch.Tensor) -> None:
    keys = [NoiseKey(100 + row, row % 3) for row in range(len(law))]
    positions = [7 * row for row in range(len(law))]

    drawn = draw(law, keys, positions, Stream.TOKEN)

    noise = gumbel(keys, positions, Stream.TOKEN, law.shape[-1], CPU)
    assert drawn == (law + noise).argmax(dim=-1).tolist()


@pytest.mark.parametrize("finite", [range(1, 400), (399, 20, 7)], ids=["wide", "narrow"])
def test_equal_scores_go_to_the_lowest_id(finite: range | tuple[int, ...]) -> None:
    keys = [NoiseKey(5)]
    noise = gumbel(keys, [3], Stream.TOKEN, 400, CPU)
    law = torch.full((1, 400), -INF)
    law[0, list(finite)] = -noise[0, list(finite)]  # law + noise is 0 at each of them

    assert draw(law, keys, [3], Stream.TOKEN) == [min(finite)]


def test_draws_do_not_need_a_normalised_law() -> None:
    law = random_law(10, 500, spread=2.0, seed=12)
    keys = [NoiseKey(row) for row in range(10)]

    shifted = draw(law - 16.0, keys, [0] * 10, Stream.RESIDUAL)

    assert shifted == draw(law, keys, [0] * 10, Stream.RESIDUAL)


def test_no_rows_draw_nothing() -> None:
    assert draw(torch.zeros(0, 5), [], [], Stream.TOKEN) == []


@pytest.mark.parametrize("stream", list(Stream))
def test_draws_over_positions_follow_the_law_by_chi_square(stream: Stream) -> None:
    probs = [0.5, 0.25, 0.15, 0.0, 0.07, 0.03]
    count = 20_000
    law = torch.tensor(probs).log().expand(count, -1)

    drawn = draw(law, [NoiseKey(99)] * count, range(count), stream)

    observed = torch.bincount(torch.tensor(drawn), minlength=6).tolist()
    assert observed.pop(3) == 0
    expected = [count * prob for prob in probs if prob > 0]
    assert stats.chisquare(observed, expected).pvalue > FALSE_ALARM
    wrong = [count * prob for prob in (0.48, 0.27, 0.15, 0.07, 0.03)]
    assert stats.chisquare(observed, wrong).pvalue < FALSE_ALARM  # the test can fail


def test_a_sparse_law_is_the_renormalised_top() -> None:
    law = torch.tensor([[0.1, 0.4, 0.2, 0.3], [1.0, 0.0, 0.0, 0.0]]).log()

    ids, probs = sparse_law(law, 3)

    assert ids.dtype is torch.int64
    assert probs.dtype is torch.float32
    assert ids[0].tolist() == [1, 3, 2]
    assert probs[0].tolist() == pytest.approx([4 / 9, 3 / 9, 2 / 9])
    assert ids[1, 0].item() == 0
    assert probs[1].tolist() == [1.0, 0.0, 0.0]


def test_a_sparse_law_is_no_larger_than_the_vocabulary() -> None:
    ids, probs = sparse_law(torch.tensor([[0.25, 0.75]]).log(), 64)

    assert ids.tolist() == [[1, 0]]
    assert probs[0].tolist() == pytest.approx([0.75, 0.25])


def test_sparse_draws_follow_the_probabilities_as_sent_by_chi_square() -> None:
    count = 20_000
    ids = torch.tensor([[30, 2, 17, 9]]).expand(count, -1)
    probs = torch.tensor([[0.6, 0.3, 0.1, 0.0]]).expand(count, -1)

    drawn = draw_sparse(ids, probs, [NoiseKey(3)] * count, range(count), Stream.DRAFT)

    observed = [drawn.count(token) for token in (30, 2, 17)]
    assert sum(observed) == count
    assert stats.chisquare(observed, [12_000, 6_000, 2_000]).pvalue > FALSE_ALARM


def test_a_sparse_draw_uses_the_noise_of_the_token_not_of_its_rank() -> None:
    keys = [NoiseKey(1)] * 50
    ids, probs = torch.tensor([[8, 3, 5]] * 50), torch.tensor([[0.5, 0.25, 0.25]] * 50)
    order = [2, 0, 1]

    drawn = draw_sparse(ids, probs, keys, range(50), Stream.DRAFT)

    assert drawn == draw_sparse(ids[:, order], probs[:, order], keys, range(50), Stream.DRAFT)
    assert len(set(drawn)) == 3
