"""The oracle against laws worked out by hand, and its speculative round against every outcome of its uniforms."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import product

import pytest

from specdec_core.params import SamplingParams
from specdec_core.philox import Stream, key_words, philox4x32
from specdec_core.reference import draw, gumbel, law, plain, speculative_round
from specdec_core.types import NoiseKey

LOGITS = (math.log(0.5), math.log(0.3), math.log(0.2))
LAWS = [
    (SamplingParams(), (), (0.5, 0.3, 0.2)),
    (SamplingParams(temperature=0.5), (), (0.25 / 0.38, 0.09 / 0.38, 0.04 / 0.38)),
    (SamplingParams(temperature=0.0), (), (1.0, 0.0, 0.0)),
    (SamplingParams(top_k=2), (), (0.625, 0.375, 0.0)),
    (SamplingParams(top_k=7), (), (0.5, 0.3, 0.2)),
    (SamplingParams(top_p=0.4), (), (1.0, 0.0, 0.0)),
    (SamplingParams(top_p=0.6), (), (0.625, 0.375, 0.0)),
    (SamplingParams(top_p=0.81), (), (0.5, 0.3, 0.2)),
    (SamplingParams(min_p=0.5), (), (0.625, 0.375, 0.0)),
    (SamplingParams(min_p=0.7), (), (1.0, 0.0, 0.0)),
    (SamplingParams(min_p=0.5, top_p=0.62), (), (1.0, 0.0, 0.0)),  # .625 of what min_p left
    (SamplingParams(top_k=2, top_p=0.62), (), (1.0, 0.0, 0.0)),
    (SamplingParams(allowed_token_ids=(1, 2)), (), (0.0, 0.6, 0.4)),
    (SamplingParams(bad_words=((0,),)), (), (0.0, 0.6, 0.4)),
    (SamplingParams(bad_words=((2, 1),)), (), (0.5 / 0.7, 0.0, 0.2 / 0.7)),
    (SamplingParams(bad_words=((1, 2, 0),)), (), (0.0, 0.6, 0.4)),
    (SamplingParams(bad_words=((0, 2, 0),)), (), (0.5, 0.3, 0.2)),
    (SamplingParams(min_tokens=1, stop_token_ids=(0,)), (), (0.0, 0.6, 0.4)),
    (SamplingParams(min_tokens=1, stop_token_ids=(0,)), (1,), (0.5, 0.3, 0.2)),
    (SamplingParams(logit_bias=((1, math.log(5)),)), (), (0.5 / 2.2, 1.5 / 2.2, 0.2 / 2.2)),
    (SamplingParams(repetition_penalty=2.0), (), (0.5 / 0.63, 0.09 / 0.63, 0.04 / 0.63)),
    (SamplingParams(presence_penalty=1.0), (), (0.5, 0.3, 0.2)),
    (SamplingParams(presence_penalty=math.log(2)), (0, 0), (0.25 / 0.75, 0.3 / 0.75, 0.2 / 0.75)),
    (SamplingParams(frequency_penalty=math.log(2)), (0, 0), (0.2, 0.48, 0.32)),
]
PROMPT = (1, 2)


@pytest.mark.parametrize(("params", "output", "expected"), LAWS)
def test_the_law_is_the_one_worked_out_by_hand(
    params: SamplingParams, output: tuple[int, ...], expected: tuple[float, ...]
) -> None:
    probs = law(LOGITS, (*PROMPT, *output), len(PROMPT), params)

    assert probs == pytest.approx(expected, abs=1e-12)
    assert math.fsum(probs) == pytest.approx(1.0, abs=1e-12)


def test_a_positive_logit_is_divided_by_the_repetition_penalty() -> None:
    probs = law((2.0, 0.0, 0.0), (0,), 1, SamplingParams(repetition_penalty=2.0))

    assert probs == pytest.approx([math.e / (math.e + 2), 1 / (math.e + 2), 1 / (math.e + 2)])


def test_a_nucleus_that_reaches_its_share_exactly_takes_no_more() -> None:
    assert law((0.0, 0.0), (1,), 1, SamplingParams(top_p=0.5)) == [1.0, 0.0]


def test_ties_go_to_the_lower_id() -> None:
    assert law((0.0, 0.0, 0.0), (1,), 1, SamplingParams(top_k=1)) == [1.0, 0.0, 0.0]
    assert law((0.0, 1.0, 1.0), (1,), 1, SamplingParams(temperature=0.0)) == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("token", [0, 3, 4, 1023])
def test_gumbel_noise_is_the_word_the_contract_names(token: int) -> None:
    noise = NoiseKey(0xDEADBEEFCAFEF00D, 3)
    words = philox4x32((17, token // 4, int(Stream.TOKEN), 3), key_words(noise))
    uniform = (words[token % 4] + 0.5) / 2**32

    # -log1p(-u), not -log(1 - u): the same variate with its precision kept near u = 0
    assert gumbel(noise, 17, token, Stream.TOKEN) == pytest.approx(
        -math.log(-math.log(1 - uniform)), rel=1e-9
    )


def test_a_draw_is_the_argmax_of_log_probability_and_noise() -> None:
    probs, noise = (0.2, 0.5, 0.0, 0.3), NoiseKey(7)
    for position in range(50):
        scores = {
            token: math.log(probs[token]) + gumbel(noise, position, token, Stream.TOKEN)
            for token in (0, 1, 3)
        }
        assert draw(probs, noise, position) == max(scores, key=lambda token: scores[token])


def test_draws_occur_as_often_as_the_law_says() -> None:
    """Five standard deviations of 20000 draws (false-alarm rate 6e-7 a token); positions are fixed."""
    probs = (0.5, 0.3, 0.2)
    drawn = [draw(probs, NoiseKey(7), position) for position in range(20_000)]
    for token, prob in enumerate(probs):
        deviation = math.sqrt(20_000 * prob * (1 - prob))
        assert abs(drawn.count(token) - 20_000 * prob) < 5 * deviation


def counting_logits(tokens: Sequence[int]) -> list[float]:
    """Greedy decoding counts upwards modulo 3."""
    return [float(token == (tokens[-1] + 1) % 3) for token in range(3)]


@pytest.mark.parametrize(
    ("params", "max_context", "output"),
    [
        (SamplingParams(temperature=0.0, max_tokens=4), 99, [1, 2, 0, 1]),
        (SamplingParams(temperature=0.0, max_tokens=4), 3, [1, 2]),
        (SamplingParams(temperature=0.0, max_tokens=4, stop_token_ids=(2,)), 99, [1, 2]),
    ],
)
def test_plain_decoding_ends_where_it_should(
    params: SamplingParams, max_context: int, output: list[int]
) -> None:
    assert plain(counting_logits, (0,), params, NoiseKey(7), max_context) == output


GRID = (
    0.125,
    0.375,
    0.625,
    0.875,
)  # exact for laws in quarters: each cell of the unit interval once
Law = tuple[float, float, float]
Laws = Callable[[Sequence[int]], Law]


def target(tokens: Sequence[int]) -> Law:
    return ((0.25, 0.5, 0.25), (0.5, 0.25, 0.25), (0.25, 0.25, 0.5))[tokens[-1]]


def good(tokens: Sequence[int]) -> Law:
    return ((0.5, 0.25, 0.25), (0.25, 0.5, 0.25), (0.5, 0.25, 0.25))[tokens[-1]]


def narrow(tokens: Sequence[int]) -> Law:
    return ((0.0, 1.0, 0.0), (0.5, 0.5, 0.0), (1.0, 0.0, 0.0))[tokens[-1]]


def wrong_residual(tokens: Sequence[int]) -> Law:
    """A target that the round is not told about: the negative control."""
    return ((0.5, 0.25, 0.25), (0.5, 0.25, 0.25), (0.25, 0.25, 0.5))[tokens[-1]]


def completed(outputs: dict[tuple[int, ...], float], size: int) -> dict[tuple[int, ...], float]:
    """The law of the first ``size`` tokens when plain decoding goes on behind each output."""
    joint: dict[tuple[int, ...], float] = defaultdict(float)
    for output, prob in outputs.items():
        for rest in product(range(3), repeat=size - len(output)):
            tokens = (*output, *rest)
            ends = range(len(output), size)
            joint[tokens] += prob * math.prod(target((0, *tokens[:i]))[tokens[i]] for i in ends)
    return joint


def total_variation(q: Laws, gamma: int, told: Laws = target) -> float:
    """Distance of ``gamma`` drafted tokens and the one behind them from plain decoding, over every grid of uniforms."""
    outputs: dict[tuple[int, ...], float] = defaultdict(float)
    num_uniforms = 2 * gamma + 1
    for uniforms in product(GRID, repeat=num_uniforms):
        output = speculative_round(told, q, (0,), gamma, iter(uniforms).__next__)
        outputs[tuple(output)] += 4.0**-num_uniforms
    joint, exact = completed(outputs, gamma + 1), completed({(): 1.0}, gamma + 1)
    return sum(abs(joint[tokens] - prob) for tokens, prob in exact.items()) / 2


@pytest.mark.parametrize("gamma", [0, 1, 2])
@pytest.mark.parametrize("q", [target, good, narrow])
def test_a_speculative_round_has_the_targets_law_exactly(q: Laws, gamma: int) -> None:
    assert total_variation(q, gamma) < 1e-12


def test_the_enumeration_notices_a_wrong_target() -> None:
    assert total_variation(good, 1, told=wrong_residual) > 0.1


def test_a_drafter_equal_to_the_target_is_wholly_accepted() -> None:
    for uniforms in product(GRID, repeat=5):
        assert len(speculative_round(target, target, (0,), 2, iter(uniforms).__next__)) == 3


def test_the_last_possible_token_is_drawn_where_rounding_leaves_mass_over() -> None:
    assert speculative_round(lambda _: (0.1, 0.2, 0.0), good, (0,), 0, lambda: 1.0) == [1]
