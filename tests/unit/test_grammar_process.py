"""The mask of structured output in the one sampler."""

from __future__ import annotations

import math

import pytest
import torch

from specdec_core.errors import InvalidArgumentError
from specdec_core.params import SamplingParams
from specdec_core.sampling.process import Row, process

VOCAB_SIZE = 21  # no multiple of eight
LOGITS = torch.randn(3, VOCAB_SIZE, generator=torch.Generator().manual_seed(1))
MASK = bytes((0b0000_0101, 0b1000_0000, 0b0001_0000))  # tokens 0, 2, 15, 20
TOKENS = (0, 2, 15, 20)


def law(params: SamplingParams, mask: bytes | None) -> torch.Tensor:
    return process(LOGITS[:1], [Row((3, 4), 1, params, mask)])


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_mask_does_what_the_same_allowed_tokens_do(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, top_k=3, repetition_penalty=1.3)
    allowed = SamplingParams(
        temperature=temperature, top_k=3, repetition_penalty=1.3, allowed_token_ids=TOKENS
    )
    assert torch.equal(law(params, MASK), law(allowed, None))


def test_rows_are_masked_each_by_its_own() -> None:
    params = SamplingParams()
    masks = (None, MASK, bytes((0b10, 0, 0)))
    laws = process(LOGITS, [Row((3, 4), 1, params, mask) for mask in masks])
    possible = [tuple((row > -math.inf).nonzero().flatten().tolist()) for row in laws]
    assert possible == [tuple(range(VOCAB_SIZE)), TOKENS, (1,)]


def test_ids_past_the_end_of_a_mask_are_excluded_and_bits_past_the_vocabulary_ignored() -> None:
    params = SamplingParams()
    for mask in (MASK[:1], bytes((0b101, 0, 0b1110_0000, 255))):
        possible = (law(params, mask)[0] > -math.inf).nonzero().flatten().tolist()
        assert possible == [0, 2]


def test_other_options_apply_on_top_of_the_mask() -> None:
    params = SamplingParams(
        allowed_token_ids=(2, 3, 15), bad_words=((15,),), logit_bias=((3, 100.0),)
    )
    possible = (law(params, MASK)[0] > -math.inf).nonzero().flatten().tolist()
    assert possible == [2]


def test_a_mask_that_leaves_nothing_is_named() -> None:
    params = SamplingParams(allowed_token_ids=(1,))
    with pytest.raises(InvalidArgumentError, match="structured: leaves no token that may follow"):
        law(params, MASK)
