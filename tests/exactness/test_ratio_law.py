"""The ratio rule emits exactly the target's law: every draft and coin enumerated in float64.

The laws come from the code under test: log p and log q from ``evidence``, the residual from ``residual_law``. The enumeration
follows Leviathan et al., arXiv:2211.17192, Algorithm 1, and extends every outcome with the target to one length, so that laws of
whole sequences are compared.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import torch
from scipy import stats

from specdec_core import philox
from specdec_core.philox import Stream
from specdec_core.sampling.draw import draw_sparse
from specdec_core.sampling.evidence import VerifyRequest, evidence
from specdec_core.sampling.ratio import draft_law, residual_law
from specdec_core.types import (
    AcceptanceRule,
    DraftBlock,
    NoiseKey,
    Proposal,
    RatioTest,
    Sparse,
)
from tests.support.enumeration import (
    dense,
    deterministic,
    disjoint_from_what_is_sent,
    distance_from_target,
    drafter_law,
    target_law,
    top_two,
    top_two_only_when_drawing,
    top_two_only_when_sending,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.enumeration import Drafting, Law, SequenceLaw

    Judge = Callable[[Law, int, Proposal], tuple[float, Law]]  # p(accept), law on rejection

SIZES = [(3, 1), (3, 2), (3, 3), (4, 2)]  # vocabulary, draft length


def exact(p: Law, token: int, sent: Proposal) -> tuple[float, Law]:
    """The code under test."""
    draft = DraftBlock(base_len=1, epoch=1, tokens=(token,), proposal=sent)
    target = torch.tensor([p, p], dtype=torch.float64).log()
    request = VerifyRequest(draft, AcceptanceRule.RATIO, NoiseKey(0))
    outcome = evidence(target, [request])[0].outcome
    assert isinstance(outcome, RatioTest)
    acceptance = min(1.0, math.exp(outcome.target_logprobs[0] - outcome.draft_logprobs[0]))
    judged_by = draft_law(draft, 0)
    residual = residual_law(
        target[:1],
        torch.zeros(len(judged_by.support), dtype=torch.int64),
        torch.tensor(judged_by.support),
        torch.tensor(judged_by.logprobs, dtype=torch.float64),
    )
    return acceptance, residual.softmax(dim=-1)[0].tolist()


def without_residual(p: Law, token: int, sent: Proposal) -> tuple[float, Law]:
    """Wrong: what a system that keeps no q resamples from."""
    return exact(p, token, sent)[0], p


def rejecting_unsent_tokens(p: Law, token: int, sent: Proposal) -> tuple[float, Law]:
    """Wrong: takes a token outside the sent law for one of probability 0, and keeps that law's residual."""
    assert isinstance(sent, Sparse)
    acceptance, _ = exact(p, token, sent)
    _, residual = exact(p, sent.support[0][0], sent)
    return acceptance * (token in sent.support[0]), residual


def error_of_a_round(
    drafting: Drafting, judge: Judge, *, vocab: int, num_draft_tokens: int, seed: int
) -> float:
    """Total variation between what a round emits and the target's law, both ``num_draft_tokens + 1`` tokens long."""
    emitted: SequenceLaw = {}
    alive: SequenceLaw = {(): 1.0}
    for _ in range(num_draft_tokens):
        accepted: SequenceLaw = {}
        for prefix, weight in alive.items():
            p = target_law(vocab, seed, prefix)
            drawn_from, sent = drafting(drafter_law(vocab, seed, prefix))
            for token, chance in enumerate(drawn_from):
                acceptance, on_rejection = judge(p, token, sent)
                accepted[(*prefix, token)] = weight * chance * acceptance
                for other, prob in enumerate(on_rejection):
                    rejected = weight * chance * (1.0 - acceptance) * prob
                    end = (*prefix, other)
                    emitted[end] = emitted.get(end, 0.0) + rejected
        alive = accepted
    for prefix, weight in alive.items():
        emitted[prefix] = emitted.get(prefix, 0.0) + weight
    return distance_from_target(emitted, vocab=vocab, seed=seed, length=num_draft_tokens + 1)


@pytest.mark.parametrize(
    "drafting",
    [dense, top_two, deterministic, disjoint_from_what_is_sent, top_two_only_when_sending],
)
@pytest.mark.parametrize(("vocab", "num_draft_tokens"), SIZES)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_round_emits_exactly_the_targets_law(
    vocab: int, num_draft_tokens: int, seed: int, drafting: Drafting
) -> None:
    error = error_of_a_round(
        drafting, exact, vocab=vocab, num_draft_tokens=num_draft_tokens, seed=seed
    )

    assert error < 1e-12


@pytest.mark.parametrize(
    ("drafting", "judge"),
    [
        (dense, without_residual),
        (top_two, without_residual),
        (top_two_only_when_sending, rejecting_unsent_tokens),
        (top_two_only_when_drawing, exact),
    ],
)
@pytest.mark.parametrize(("vocab", "num_draft_tokens"), SIZES)
def test_a_wrong_rule_is_caught(
    vocab: int, num_draft_tokens: int, drafting: Drafting, judge: Judge
) -> None:
    error = error_of_a_round(
        drafting, judge, vocab=vocab, num_draft_tokens=num_draft_tokens, seed=0
    )

    assert error > 0.01


P_FIRST = [0.1, 0.2, 0.3, 0.4]
Q_FIRST = [0.4, 0.3, 0.2, 0.1]
COUNT = 20_000


def emitted_first_tokens(draft_stream: Stream) -> list[int]:
    """The first token of ``COUNT`` seeded rounds of one draft token, all random choices from the noise."""
    keys = [NoiseKey(seed) for seed in range(COUNT)]
    ids = torch.arange(4).expand(COUNT, -1)
    probs = torch.tensor([Q_FIRST]).expand(COUNT, -1)
    drafted = draw_sparse(ids, probs, keys, [7] * COUNT, draft_stream)
    sent = Sparse(((0, 1, 2, 3),), (tuple(probs[0].tolist()),))
    requests = [
        VerifyRequest(DraftBlock(7, 1, (token,), sent), AcceptanceRule.RATIO, key)
        for token, key in zip(drafted, keys, strict=True)
    ]
    law = torch.tensor([P_FIRST]).log().expand(2 * COUNT, -1)
    emitted = []
    for token, key, answer in zip(drafted, keys, evidence(law, requests), strict=True):
        assert isinstance(answer.outcome, RatioTest)
        log_ratio = answer.outcome.target_logprobs[0] - answer.outcome.draft_logprobs[0]
        accepted = math.log(philox.uniform(key, 7, Stream.ACCEPT)) < log_ratio
        emitted.append(token if accepted else answer.outcome.residual_tokens[0])
    return emitted


def chi_square_pvalue(drawn: list[int]) -> float:
    observed = [drawn.count(token) for token in range(4)]
    pvalue: float = stats.chisquare(observed, [COUNT * prob for prob in P_FIRST]).pvalue
    return pvalue


def test_seeded_rounds_follow_the_target_by_chi_square() -> None:
    assert chi_square_pvalue(emitted_first_tokens(Stream.DRAFT)) > 1e-4  # the false-alarm rate


def test_drafting_with_the_noise_of_the_residual_is_caught() -> None:
    assert chi_square_pvalue(emitted_first_tokens(Stream.RESIDUAL)) < 1e-4
