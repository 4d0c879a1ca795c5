"""``evidence``: what is said of a draft, on laws small enough to know the answer."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from specdec_core.errors import InvariantError
from specdec_core.philox import Stream
from specdec_core.sampling.draw import draw
from specdec_core.sampling.evidence import VerifyRequest, evidence
from specdec_core.types import (
    AcceptanceRule,
    Coupled,
    DraftBlock,
    Evidence,
    NoiseKey,
    OneHot,
    Proposal,
    RatioTest,
    Sparse,
    TargetDraws,
)

FALSE_ALARM = 1e-4  # of each chi-square test, for keys drawn at random; the keys are fixed
COUNT = 4000
RATIO, COUPLED = AcceptanceRule.RATIO, AcceptanceRule.COUPLED


def log_law(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows).log()


def request(
    tokens: tuple[int, ...],
    rule: AcceptanceRule,
    proposal: Proposal | None = None,
    *,
    seed: int = 1,
    base_len: int = 10,
) -> VerifyRequest:
    draft = DraftBlock(base_len, 3, tokens, proposal or OneHot())
    return VerifyRequest(draft, rule, NoiseKey(seed))


def ratio_outcome(law: torch.Tensor, asked: VerifyRequest) -> RatioTest:
    outcome = evidence(law, [asked])[0].outcome
    assert isinstance(outcome, RatioTest)
    return outcome


def residual_tokens(p: list[float], token: int, proposal: Proposal) -> list[int]:
    """The residual draw of one draft token under ``COUNT`` seeds."""
    law = log_law(p, p).repeat(COUNT, 1)
    requests = [request((token,), RATIO, proposal, seed=seed) for seed in range(COUNT)]
    drawn: list[int] = []
    for each in evidence(law, requests):
        assert isinstance(each.outcome, RatioTest)
        drawn.extend(each.outcome.residual_tokens)
    return drawn


def assert_follows(drawn: list[int], probs: list[float]) -> None:
    observed = [drawn.count(token) for token in range(len(probs))]
    possible = [token for token, prob in enumerate(probs) if prob > 0]
    assert sum(observed[token] for token in possible) == len(drawn)
    expected = [len(drawn) * probs[token] for token in possible]
    assert stats.chisquare([observed[token] for token in possible], expected).pvalue > FALSE_ALARM


def test_coupled_evidence_is_the_targets_draw_at_each_absolute_position() -> None:
    law = torch.randn(5, 100, generator=torch.Generator().manual_seed(4)).log_softmax(dim=-1)
    asked = [request((7, 8), COUPLED, seed=5, base_len=40), request((9,), COUPLED, seed=6)]

    answers = evidence(law, asked)

    keys = [NoiseKey(5)] * 3 + [NoiseKey(6)] * 2
    drawn = draw(law, keys, [40, 41, 42, 10, 11], Stream.TOKEN)
    assert answers == [
        Evidence(40, 3, TargetDraws(tuple(drawn[:3]))),
        Evidence(10, 3, TargetDraws(tuple(drawn[3:]))),
    ]


@pytest.mark.parametrize("proposal", [OneHot(), Coupled(), Sparse(((1,),), ((1.0,),))])
def test_coupled_evidence_ignores_how_the_draft_was_made(proposal: Proposal) -> None:
    law = log_law([0.2, 0.8], [0.6, 0.4])

    assert evidence(law, [request((1,), COUPLED, proposal)]) == evidence(
        law, [request((0,), COUPLED)]
    )


def test_an_empty_coupled_draft_gives_one_draw() -> None:
    answer = evidence(log_law([0.0, 0.0, 1.0]), [request((), COUPLED)])

    assert answer == [Evidence(10, 3, TargetDraws((2,)))]


def test_an_empty_ratio_draft_gives_only_the_bonus_that_coupled_would_draw() -> None:
    law = log_law([0.25, 0.25, 0.25, 0.25])
    plain = evidence(law, [request((), COUPLED)])[0].outcome

    outcome = ratio_outcome(law, request((), RATIO))

    assert isinstance(plain, TargetDraws)
    assert outcome == RatioTest((), (), (), plain.tokens[0])


def test_ratio_evidence_tells_both_log_probabilities() -> None:
    law = log_law([0.5, 0.3, 0.2], [0.1, 0.1, 0.8], [0.0, 1.0, 0.0])
    proposal = Sparse(support=((1, 0), (2, 1)), probs=((0.75, 0.25), (0.5, 0.5)))

    outcome = ratio_outcome(law, request((1, 2), RATIO, proposal))

    assert outcome.target_logprobs == pytest.approx((math.log(0.3), math.log(0.8)))
    assert outcome.draft_logprobs == pytest.approx((math.log(0.75), math.log(0.5)))
    assert outcome.bonus_token == 1


def test_a_token_the_target_excludes_has_log_probability_minus_infinity() -> None:
    outcome = ratio_outcome(log_law([0.0, 1.0], [1.0, 0.0]), request((0,), RATIO))

    assert outcome == RatioTest((-math.inf,), (0.0,), (1,), 0)


@pytest.mark.parametrize("proposal", [OneHot(), Coupled()])
def test_a_deterministic_draft_counts_as_certain_and_its_residual_leaves_it_out(
    proposal: Proposal,
) -> None:
    p = [0.5, 0.3, 0.2]

    assert ratio_outcome(log_law(p, p), request((0,), RATIO, proposal)).draft_logprobs == (0.0,)
    assert_follows(residual_tokens(p, 0, proposal), [0.0, 0.6, 0.4])


def test_the_residual_of_a_sparse_law_is_what_the_draft_left_out() -> None:
    proposal = Sparse(support=((1, 0),), probs=((0.75, 0.25),))

    drawn = residual_tokens([0.5, 0.3, 0.2], 1, proposal)

    assert_follows(drawn, [0.25 / 0.45, 0.0, 0.2 / 0.45])


@pytest.mark.parametrize(
    "proposal",
    [Sparse(((1, 2),), ((0.5, 0.5),)), Sparse(((0, 1),), ((0.0, 1.0),))],
    ids=["outside the support", "probability zero"],
)
def test_a_token_without_mass_in_its_own_law_is_judged_as_one_hot(proposal: Sparse) -> None:
    p = [0.5, 0.3, 0.2]

    assert ratio_outcome(log_law(p, p), request((0,), RATIO, proposal)).draft_logprobs == (0.0,)
    assert_follows(residual_tokens(p, 0, proposal), [0.0, 0.6, 0.4])


def test_equal_laws_leave_no_residual_and_fall_back_to_the_target() -> None:
    proposal = Sparse(support=((0, 1, 2),), probs=((0.5, 0.25, 0.25),))

    assert_follows(residual_tokens([0.5, 0.25, 0.25], 0, proposal), [0.5, 0.25, 0.25])


def test_a_one_hot_target_at_a_one_hot_draft_falls_back_to_the_target() -> None:
    outcome = ratio_outcome(log_law([0.0, 1.0], [1.0, 0.0]), request((1,), RATIO))

    assert outcome == RatioTest((0.0,), (0.0,), (1,), 0)


def test_a_sent_law_is_normalised_since_only_its_ratios_were_drawn_from() -> None:
    law = log_law([0.5, 0.3, 0.2], [1.0, 0.0, 0.0])
    halved = Sparse(support=((1, 0),), probs=((0.375, 0.125),))

    outcome = ratio_outcome(law, request((1,), RATIO, halved))

    assert outcome.draft_logprobs == pytest.approx((math.log(0.75),))


def test_draft_mass_beyond_the_targets_vocabulary_counts_but_is_never_drawn() -> None:
    proposal = Sparse(support=((0, 900),), probs=((0.25, 0.75),))
    p = [0.5, 0.5]

    outcome = ratio_outcome(log_law(p, p), request((0,), RATIO, proposal))

    assert outcome.draft_logprobs == pytest.approx((math.log(0.25),))
    assert_follows(residual_tokens(p, 0, proposal), [1 / 3, 2 / 3])


def test_tiny_draft_probabilities_neither_overflow_nor_empty_the_residual() -> None:
    proposal = Sparse(support=((0, 1),), probs=((1e-42, 1.0),))

    outcome = ratio_outcome(log_law([1.0, 0.0], [1.0, 0.0]), request((0,), RATIO, proposal))

    assert outcome.draft_logprobs == pytest.approx((math.log(1e-42),))
    assert outcome.residual_tokens == (0,)


def test_residual_draws_do_not_reuse_the_noise_of_the_token_draws() -> None:
    vocab, count = 500, 40
    law = torch.full((2 * count, vocab), 1 / vocab).log()
    tested = evidence(law, [request((0,), RATIO, seed=seed) for seed in range(count)])
    drawn = evidence(law, [request((0,), COUPLED, seed=seed) for seed in range(count)])

    same = 0
    for ratio, coupled in zip(tested, drawn, strict=True):
        assert isinstance(ratio.outcome, RatioTest)
        assert isinstance(coupled.outcome, TargetDraws)
        same += ratio.outcome.residual_tokens[0] == coupled.outcome.tokens[0]
        assert ratio.outcome.bonus_token == coupled.outcome.tokens[1]

    assert same <= 2  # shared noise would agree in all but the draws of token 0


def test_requests_of_any_mix_are_answered_as_each_alone() -> None:
    law = torch.randn(9, 50, generator=torch.Generator().manual_seed(9)).log_softmax(dim=-1)
    sparse = Sparse(support=((3, 4), (6, 5)), probs=((0.5, 0.5), (0.9, 0.1)))
    asked = [
        request((1,), COUPLED, seed=1),
        request((3, 6), RATIO, sparse, seed=2),
        request((), RATIO, seed=3),
        request((), COUPLED, seed=4),
        request((8,), RATIO, seed=5, base_len=99),
    ]

    together = evidence(law, asked)

    alone = [
        evidence(law[start:end], [each])[0]
        for each, start, end in zip(asked, (0, 2, 5, 6, 7), (2, 5, 6, 7, 9), strict=True)
    ]
    assert together == alone


def test_evidence_is_plain_numbers() -> None:
    law = log_law([0.5, 0.5], [0.5, 0.5], [0.5, 0.5])

    tested, drawn = evidence(law, [request((1,), RATIO), request((), COUPLED)])

    assert isinstance(tested.outcome, RatioTest)
    assert isinstance(drawn.outcome, TargetDraws)
    assert type(tested.outcome.target_logprobs[0]) is float
    assert type(tested.outcome.residual_tokens[0]) is int
    assert type(drawn.outcome.tokens[0]) is int


def test_a_law_of_another_number_of_rows_raises() -> None:
    with pytest.raises(InvariantError, match="1 rows of law for drafts that need 2"):
        evidence(log_law([0.5, 0.5]), [request((0,), COUPLED)])


def test_no_requests_give_no_evidence() -> None:
    assert evidence(torch.zeros(0, 4), []) == []
