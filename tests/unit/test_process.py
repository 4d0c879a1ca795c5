"""``process``: every option against an oracle, in batches, and at its edges."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from specdec_core.errors import InvalidArgumentError, InvariantError
from specdec_core.params import SamplingParams
from specdec_core.sampling.process import Row, process
from tests.support.slow_sampler import slow_law

if TYPE_CHECKING:
    from collections.abc import Sequence

VOCAB = 8


def law_of(
    logits: Sequence[float],
    params: SamplingParams,
    prefix: Sequence[int] = (0,),
    prompt_len: int = 1,
) -> list[float]:
    """Probabilities of one row."""
    law: list[float] = (
        process(torch.tensor([logits]), [Row(prefix, prompt_len, params)])[0].exp().tolist()
    )
    return law


def random_logits(rows: int, vocab: int, seed: int) -> torch.Tensor:
    source = random.Random(seed)
    return torch.tensor([[source.gauss(0.0, 3.0) for _ in range(vocab)] for _ in range(rows)])


tokens = st.integers(0, VOCAB - 1)
quarters = st.integers(-32, 32).map(lambda number: number / 4)
# Values that keep float32 scores exact up to the temperature, so that ties are ties for the oracle too.
some_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.5, 0.7, 1.0, 2.0]),
    top_k=st.sampled_from([0, 0, 1, 2, 3, 8, 100]),
    top_p=st.sampled_from([1.0, 1.0, 1e-6, 0.25, 0.5, 0.75, 0.95]),
    min_p=st.sampled_from([0.0, 0.0, 0.02, 0.3, 1.0]),
    typical_p=st.sampled_from([1.0, 1.0, 0.25, 0.5, 0.95]),
    repetition_penalty=st.sampled_from([0.5, 1.0, 2.0, 4.0]),
    presence_penalty=st.sampled_from([-1.0, 0.0, 0.5, 2.0]),
    frequency_penalty=st.sampled_from([-0.5, 0.0, 0.25, 2.0]),
    logit_bias=st.lists(
        st.tuples(tokens, st.sampled_from([-20.0, -1.5, 0.5, 4.0])), max_size=3
    ).map(tuple),
    bad_words=st.lists(st.lists(tokens, min_size=1, max_size=3).map(tuple), max_size=3).map(tuple),
    allowed_token_ids=st.lists(tokens, max_size=6, unique=True).map(tuple),
    min_tokens=st.integers(0, 4),
    stop_token_ids=st.lists(tokens, max_size=2, unique=True).map(tuple),
)


@st.composite
def some_row(draw: st.DrawFn) -> tuple[list[float], Row]:
    logits = draw(st.lists(quarters, min_size=VOCAB, max_size=VOCAB))
    prompt = draw(st.lists(tokens, min_size=1, max_size=4))
    output = draw(st.lists(tokens, max_size=5))
    return logits, Row((*prompt, *output), len(prompt), draw(some_params))


@settings(max_examples=150, deadline=None)
@given(st.lists(some_row(), min_size=1, max_size=4))
def test_any_options_in_any_batch_give_the_law_of_the_slow_sampler(
    batch: list[tuple[list[float], Row]],
) -> None:
    expected = [slow_law(each, row.prefix, row.prompt_len, row.params) for each, row in batch]
    logits = torch.tensor([each for each, _ in batch])
    rows = [row for _, row in batch]

    if all(map(any, expected)):
        law = process(logits, rows)
        assert law.dtype is torch.float32
        torch.testing.assert_close(law.exp(), torch.tensor(expected), atol=2e-5, rtol=0.0)
        kept = [[prob > 0.0 for prob in each] for each in expected]
        assert (law > -math.inf).tolist() == kept
    else:
        with pytest.raises(InvalidArgumentError, match="leaves no token"):
            process(logits, rows)


@pytest.mark.parametrize(
    ("params", "reference"),
    [
        (SamplingParams(temperature=0.7), TemperatureLogitsWarper(0.7)),
        (SamplingParams(top_k=5), TopKLogitsWarper(5)),
        (SamplingParams(top_p=0.8), TopPLogitsWarper(0.8)),
        (SamplingParams(top_p=0.999), TopPLogitsWarper(0.999)),
        (SamplingParams(min_p=0.05), MinPLogitsWarper(0.05)),
        (SamplingParams(typical_p=0.3), TypicalLogitsWarper(0.3)),
        (SamplingParams(typical_p=0.95), TypicalLogitsWarper(0.95)),
        (SamplingParams(repetition_penalty=1.3), RepetitionPenaltyLogitsProcessor(1.3)),
        (SamplingParams(repetition_penalty=0.8), RepetitionPenaltyLogitsProcessor(0.8)),
        (
            SamplingParams(bad_words=((7,), (4, 9), (5, 9), (3, 4, 30))),
            NoBadWordsLogitsProcessor([[7], [4, 9], [5, 9], [3, 4, 30]], eos_token_id=49),
        ),
    ],
    ids=lambda value: type(value).__name__ if callable(value) else "",
)
def test_one_option_alone_agrees_with_transformers(params: SamplingParams, reference: Any) -> None:
    logits = random_logits(rows=6, vocab=50, seed=11)
    prefix = [1, 2, 2, 3, 4]
    input_ids = torch.tensor([prefix] * 6)
    expected = reference(input_ids, logits.clone()).log_softmax(dim=-1)

    law = process(logits, [Row(prefix, 2, params)] * 6)

    torch.testing.assert_close(law, expected, atol=2e-5, rtol=1e-5)


MIXED = [
    SamplingParams(),
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.7, top_p=0.95),
    SamplingParams(temperature=5.0, top_p=0.9),  # a nucleus wider than the narrow heads
    SamplingParams(top_k=50),
    SamplingParams(top_k=3, top_p=0.5, min_p=0.01),
    SamplingParams(temperature=0.7, top_p=0.98, typical_p=0.4),
    SamplingParams(temperature=5.0, typical_p=0.9),
    SamplingParams(repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.1),
    SamplingParams(logit_bias=((17, 5.0), (4999, -3.0)), bad_words=((8,), (1, 12))),
    SamplingParams(allowed_token_ids=(3, 700, 4000), min_tokens=9, stop_token_ids=(700,)),
]


def test_rows_of_different_params_equal_each_row_alone_bit_for_bit() -> None:
    logits = random_logits(rows=len(MIXED), vocab=5000, seed=3)
    rows = [Row([1, 5, 5, 1], 1 + index % 3, params) for index, params in enumerate(MIXED)]

    law = process(logits, rows)

    alone = [process(logits[i : i + 1], rows[i : i + 1]) for i in range(len(rows))]
    assert torch.equal(law, torch.cat(alone))


@pytest.mark.parametrize("top_p", [0.2, 0.9, 0.9999])
def test_a_nucleus_of_any_width_equals_that_of_a_full_sort(top_p: float) -> None:
    logits = random_logits(rows=3, vocab=9000, seed=5) * torch.tensor([[0.01], [0.5], [2.0]])
    expected = [slow_law(row, [0], 1, SamplingParams(top_p=top_p)) for row in logits.tolist()]

    law = process(logits, [Row([0], 1, SamplingParams(top_p=top_p))] * 3)

    kept = (law > -math.inf).sum(dim=-1).tolist()
    assert kept == [sum(prob > 0 for prob in row) for row in expected]
    torch.testing.assert_close(law.exp(), torch.tensor(expected), atol=1e-6, rtol=1e-3)


def test_a_greedy_row_is_one_hot_at_the_lowest_best_id() -> None:
    assert law_of([1.0, 4.0, 4.0, 0.0], SamplingParams(temperature=0.0)) == [0.0, 1.0, 0.0, 0.0]


def test_top_k_keeps_exactly_k_and_the_lower_ids_of_a_tie() -> None:
    law = law_of([1.0, 2.0, 1.0, 1.0], SamplingParams(top_k=3))

    assert [prob > 0 for prob in law] == [True, True, True, False]


def test_top_p_keeps_the_token_that_crosses_the_threshold() -> None:
    law = law_of([math.log(prob) for prob in (0.2, 0.5, 0.3)], SamplingParams(top_p=0.6))

    assert law == pytest.approx([0.0, 0.625, 0.375])


def test_top_p_stops_when_the_threshold_is_met_and_prefers_lower_ids() -> None:
    assert law_of([2.0, 2.0, 2.0, 2.0], SamplingParams(top_p=0.5)) == [0.5, 0.5, 0.0, 0.0]


def test_top_p_counts_the_mass_left_by_top_k() -> None:
    logits = [math.log(prob) for prob in (0.4, 0.3, 0.2, 0.1)]

    law = law_of(logits, SamplingParams(top_k=2, top_p=0.55))

    assert law == [1.0, 0.0, 0.0, 0.0]  # 0.4 / 0.7 already passes 0.55; 0.4 alone would not


def test_top_p_counts_the_mass_left_by_min_p() -> None:
    logits = [math.log(prob) for prob in (0.4, 0.3, 0.2, 0.1)]

    law = law_of(logits, SamplingParams(min_p=0.6, top_p=0.55))

    assert law == [1.0, 0.0, 0.0, 0.0]


def test_logit_bias_comes_before_the_repetition_penalty() -> None:
    params = SamplingParams(temperature=0.0, logit_bias=((0, 2.0),), repetition_penalty=4.0)

    law = law_of([-1.0, 0.2], params)

    assert law == [1.0, 0.0]  # (-1 + 2) / 4 = 0.25; penalised first it would be -1 * 4 + 2 = -2


def test_penalties_count_the_draft_tokens_before_the_row() -> None:
    params = SamplingParams(temperature=0.0, frequency_penalty=1.0)
    logits = torch.tensor([[2.5, 1.0]] * 3)
    committed = [1]

    law = process(logits, [Row([*committed, *[0] * drafted], 1, params) for drafted in range(3)])

    assert law.argmax(dim=-1).tolist() == [0, 0, 1]


def test_presence_and_frequency_leave_prompt_tokens_alone() -> None:
    params = SamplingParams(presence_penalty=2.0, frequency_penalty=2.0)

    assert law_of([1.0, 1.0], params, prefix=[0, 0], prompt_len=2) == pytest.approx([0.5, 0.5])
    assert law_of([1.0, 1.0], params, prefix=[0, 0], prompt_len=1) != pytest.approx([0.5, 0.5])


def test_a_bad_word_is_masked_only_behind_its_head() -> None:
    params = SamplingParams(temperature=0.0, bad_words=((3, 1, 2),))
    logits = [0.0, 0.0, 9.0, 1.0]

    assert law_of(logits, params, prefix=[3, 1]) == [0.0, 0.0, 0.0, 1.0]
    assert law_of(logits, params, prefix=[1, 3]) == [0.0, 0.0, 1.0, 0.0]
    assert law_of(logits, params, prefix=[1]) == [0.0, 0.0, 1.0, 0.0]


def test_stop_tokens_are_masked_until_min_tokens_have_been_output() -> None:
    params = SamplingParams(temperature=0.0, min_tokens=2, stop_token_ids=(1,))

    assert law_of([0.0, 5.0], params, prefix=[0, 0], prompt_len=1) == [1.0, 0.0]
    assert law_of([0.0, 5.0], params, prefix=[0, 0, 0], prompt_len=1) == [0.0, 1.0]


@pytest.mark.parametrize(
    ("params", "field"),
    [
        (SamplingParams(allowed_token_ids=(1,), bad_words=((1,),)), "allowed_token_ids"),
        (SamplingParams(bad_words=((0,), (1,))), "bad_words"),
        (SamplingParams(min_tokens=1, stop_token_ids=(0, 1)), "min_tokens"),
    ],
)
def test_masks_that_leave_no_token_are_refused_by_name(params: SamplingParams, field: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        law_of([1.0, 2.0], params)

    assert caught.value.field == field


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_logits_without_a_largest_value_raise_instead_of_spreading(broken: float) -> None:
    with pytest.raises(InvariantError, match="row 0"):
        law_of([1.0, broken], SamplingParams())


def test_wholly_excluded_logits_of_an_unmasked_row_are_a_bug_not_a_bad_request() -> None:
    with pytest.raises(InvariantError):
        law_of([-math.inf, -math.inf], SamplingParams())


def test_a_wrong_number_of_rows_raises() -> None:
    with pytest.raises(InvariantError, match="2 rows of logits for 1"):
        process(torch.zeros(2, 4), [Row([0], 1, SamplingParams())])


def test_no_rows_give_an_empty_law() -> None:
    assert process(torch.zeros(0, 4), []).shape == (0, 4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_logits_of_any_dtype_are_read_and_not_changed(dtype: torch.dtype) -> None:
    logits = random_logits(rows=len(MIXED), vocab=5000, seed=8).to(dtype)
    before = logits.clone()

    law = process(logits, [Row([1], 1, params) for params in MIXED])

    assert law.dtype is torch.float32
    assert torch.equal(logits, before)


def test_logits_already_excluded_by_the_model_stay_excluded() -> None:
    params = SamplingParams(repetition_penalty=2.0, logit_bias=((0, 5.0),), top_p=0.9)

    assert law_of([-math.inf, 1.0, 1.0], params) == pytest.approx([0.0, 0.5, 0.5])
