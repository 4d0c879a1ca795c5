"""``typical_p`` in ``process``: against transformers, and what it keeps."""

from __future__ import annotations

import math

import pytest
import torch
from transformers.generation.logits_process import TopPLogitsWarper, TypicalLogitsWarper

from specdec_core.params import SamplingParams
from specdec_core.sampling.process import Row, process


def random_logits(rows: int, vocab: int, seed: int) -> torch.Tensor:
    return 3 * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))


def law_of(logits: list[float], params: SamplingParams) -> list[float]:
    law: list[float] = process(torch.tensor([logits]), [Row((0,), 1, params)])[0].exp().tolist()
    return law


def test_typical_p_keeps_the_tokens_nearest_the_entropy_and_may_drop_the_likeliest() -> None:
    logits = [math.log(prob) for prob in (0.6, 0.1, 0.1, 0.1, 0.1)]

    law = law_of(logits, SamplingParams(typical_p=0.5))  # surprises 0.51, 2.30; entropy 1.23

    assert law == pytest.approx([1.0, 0.0, 0.0, 0.0, 0.0])
    logits = [math.log(prob) for prob in (0.45, 0.11, 0.11, 0.11, 0.11, 0.11)]  # 0.80, 2.21; 1.57
    assert law_of(logits, SamplingParams(typical_p=0.3)) == pytest.approx(
        [0, 1 / 3, 1 / 3, 1 / 3, 0, 0]
    )


def test_typical_p_counts_the_law_left_by_top_p_as_transformers_does() -> None:
    logits = random_logits(rows=6, vocab=50, seed=12)
    ids = torch.zeros(6, 1, dtype=torch.int64)
    expected = TypicalLogitsWarper(0.5)(ids, TopPLogitsWarper(0.8)(ids, logits.clone()))

    law = process(logits, [Row([0], 1, SamplingParams(top_p=0.8, typical_p=0.5))] * 6)

    torch.testing.assert_close(law, expected.log_softmax(dim=-1), atol=2e-5, rtol=1e-5)
