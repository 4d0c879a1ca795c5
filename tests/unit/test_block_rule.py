"""Block verification on laws small enough to work out by hand: the decision, the evidence and the drafter's side of it.

Over 300 lines: every case is worked out in the open, and the three sides share their laws.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from scipy import stats

from specdec_core.drafters.base import DraftContext
from specdec_core.drafters.lm import LmDrafter
from specdec_core.errors import ProtocolError
from specdec_core.params import SamplingParams
from specdec_core.philox import Stream, round_key, uniform
from specdec_core.sampling.evidence import VerifyRequest, evidence
from specdec_core.types import (
    AcceptanceRule,
    BlockTest,
    Coupled,
    DraftBlock,
    Evidence,
    NoiseKey,
    OneHot,
    Proposal,
    Sparse,
    TargetDraws,
    TokenKind,
    Verdict,
)
from specdec_core.verification.decide import decide
from tests.support.table_model import TableModel

BLOCK, RATIO, COUPLED = AcceptanceRule.BLOCK, AcceptanceRule.RATIO, AcceptanceRule.COUPLED
BASE = 10
NOISE = NoiseKey(7, 2)


def draft(*tokens: int, proposal: Proposal | None = None, base_len: int = BASE) -> DraftBlock:
    return DraftBlock(base_len, 1, tokens, proposal or OneHot())


def verdict(probs: tuple[float, ...], tokens: tuple[int, ...], noise: NoiseKey = NOISE) -> Verdict:
    block = draft(*range(len(probs)))
    return decide(block, Evidence(BASE, 1, BlockTest(probs, tokens)), noise)


def asked(block: DraftBlock, rule: AcceptanceRule = BLOCK, seed: int = 1) -> VerifyRequest:
    return VerifyRequest(block, rule, NoiseKey(seed))


def outcome(block: DraftBlock, *rows: list[float]) -> BlockTest:
    """The target's answer where these are its laws."""
    found = evidence(torch.tensor(rows, dtype=torch.float64).log(), [asked(block)])[0].outcome
    assert isinstance(found, BlockTest)
    return found


def assert_follows(drawn: list[int], probs: list[float]) -> None:
    """Chi-square with a false-alarm rate of 1e-4; what has no probability must not occur."""
    observed = [drawn.count(token) for token in range(len(probs))]
    possible = [token for token, prob in enumerate(probs) if prob > 0]
    assert sum(observed[token] for token in possible) == len(drawn)
    expected = [len(drawn) * probs[token] for token in possible]
    assert stats.chisquare([observed[token] for token in possible], expected).pvalue > 1e-4


@pytest.mark.parametrize(
    ("probs", "expected"),
    [
        ((0.0, 0.0, 0.0), Verdict(0, 30, TokenKind.RECOVERED)),
        ((1.0, 0.0, 0.0), Verdict(1, 31, TokenKind.RECOVERED)),
        ((0.0, 1.0, 0.0), Verdict(2, 32, TokenKind.RECOVERED)),
        ((1.0, 1.0, 0.0), Verdict(2, 32, TokenKind.RECOVERED)),
        ((0.0, 0.0, 1.0), Verdict(3, 33, TokenKind.BONUS)),
    ],
)
def test_the_longest_accepted_prefix_counts_even_if_a_shorter_one_was_not(
    probs: tuple[float, ...], expected: Verdict
) -> None:
    for seed in range(50):
        assert verdict(probs, (30, 31, 32, 33), NoiseKey(seed)) == expected


def test_a_block_round_without_a_draft_is_plain() -> None:
    assert verdict((), (8,)) == Verdict(0, 8, TokenKind.PLAIN)


@pytest.mark.parametrize("seed", range(20))
def test_each_coin_is_the_rounds_own_at_the_absolute_position_of_its_token(seed: int) -> None:
    noise = NoiseKey(seed, 3)
    key = round_key(noise, BASE)
    for index, position in enumerate((10, 11, 12)):
        coin = uniform(key, position, Stream.ACCEPT)
        probs = [0.0, 0.0, 0.0]
        probs[index] = coin
        assert verdict(tuple(probs), (30, 31, 32, 33), noise).num_accepted == index + 1
        probs[index] = coin - 1e-9
        assert verdict(tuple(probs), (30, 31, 32, 33), noise).num_accepted == 0


def test_every_round_flips_its_own_coins_at_one_position() -> None:
    coins = {uniform(round_key(NOISE, base_len), 40, Stream.ACCEPT) for base_len in range(33, 41)}
    assert len(coins) == 8
    assert uniform(NOISE, 40, Stream.ACCEPT) not in coins


def test_the_key_of_a_round_depends_on_seed_sample_and_base_length() -> None:
    keys = [round_key(NoiseKey(seed, n), 5) for seed in (0, 1, 2**64 - 1) for n in (0, 1)]
    keys += [round_key(NoiseKey(0), base_len) for base_len in (0, 4, 6)]

    assert len({key.seed for key in keys}) == len(keys)
    assert [key.sample_index for key in keys[:2]] == [0, 1]
    assert all(0 <= key.seed < 2**64 for key in keys)
    assert round_key(NoiseKey(0), 5) == keys[0]


@pytest.mark.parametrize(
    "given",
    [
        Evidence(BASE, 1, BlockTest((), (1,))),
        Evidence(BASE, 1, BlockTest((0.5,), (1, 2))),
        Evidence(BASE, 1, BlockTest((0.5, 0.5), (1, 2))),
        Evidence(BASE, 1, BlockTest((0.5, 0.5), (1, 2, 3, 4))),
        Evidence(BASE, 1, BlockTest((0.5, 0.5, 0.5), (1, 2, 3))),
        Evidence(BASE + 1, 1, BlockTest((0.5, 0.5), (1, 2, 3))),
    ],
)
def test_evidence_that_does_not_fit_its_draft_is_refused(given: Evidence) -> None:
    with pytest.raises(ProtocolError, match="does not fit a draft of 2"):
        decide(draft(5, 6), given, NOISE)


def test_a_lost_survival_is_carried_on_and_weighs_the_residual() -> None:
    """P_1 = 1/4; S_1 = 1/8 - 1/10, h_1 = S_1 / (S_1 + 3/4) = 1/31; h_2 = P_2 = 1/4 * (1/2) / (9/10) = 5/36."""
    sent = Sparse(((0, 1), (0, 1)), ((0.8, 0.2), (0.1, 0.9)))

    found = outcome(draft(0, 1, proposal=sent), [0.2, 0.8], [0.5, 0.5], [0.0, 1.0])

    assert found.accept_probs == pytest.approx((1 / 31, 5 / 36))
    assert found.tokens == (1, 0, 1)  # the residuals leave one token each


def test_a_surplus_is_not_carried_on() -> None:
    sent = Sparse(((0, 1), (0, 1)), ((0.2, 0.8), (0.1, 0.9)))

    found = outcome(draft(0, 1, proposal=sent), [0.8, 0.2], [0.5, 0.5], [0.0, 1.0])

    assert found.accept_probs == pytest.approx((1.0, 5 / 9))
    assert found.tokens == (0, 0, 1)


def test_target_mass_outside_the_sent_law_stays_in_the_residual() -> None:
    """P_1 = 1/2; S_1 = P_1 * 0.4 + (0.3 - 0.25) = 0.25, so h_1 = 0.25 / 0.75."""
    sent = Sparse(((0,), (2, 3)), ((1.0,), (0.25, 0.75)))
    rows = [[0.5, 0.5, 0.0, 0.0], [0.15, 0.25, 0.6, 0.0], [0.0, 0.0, 0.0, 1.0]]

    found = outcome(draft(0, 3, proposal=sent), *rows)

    assert found.accept_probs == pytest.approx((1 / 3, 0.0))


def test_the_residual_draw_follows_the_weighted_difference() -> None:
    """Behind x_1 = 0, P_1 = 1/2: (P p - q)+ is (0.075, 0.125, 0.05, 0)."""
    sent = Sparse(((0,), (2, 3)), ((1.0,), (0.25, 0.75)))
    rows = [[0.5, 0.5, 0.0, 0.0], [0.15, 0.25, 0.6, 0.0], [0.0, 0.0, 0.0, 1.0]]
    law = torch.tensor(rows).log().repeat(4000, 1)

    answers = evidence(law, [asked(draft(0, 3, proposal=sent), seed=seed) for seed in range(4000)])

    drawn = [each.outcome.tokens for each in answers if isinstance(each.outcome, BlockTest)]
    assert {tokens[0] for tokens in drawn} == {1}
    assert_follows([tokens[1] for tokens in drawn], [0.3, 0.5, 0.2, 0.0])


NO_MASS = Sparse(((1, 2), (1, 0), (0, 2)), ((0.5, 0.5), (1.0, 0.0), (0.25, 0.75)))


@pytest.mark.parametrize("proposal", [OneHot(), Coupled(), NO_MASS])
def test_a_draft_that_counts_as_one_hot_has_the_closed_form(proposal: Proposal) -> None:
    """S_i = P_i (1 - p(x_{i+1})); so it is for tokens that the law they came with gives no mass."""
    rows = [[0.5, 0.3, 0.2], [0.6, 0.3, 0.1], [0.1, 0.8, 0.1], [0.0, 0.0, 1.0]]

    found = outcome(draft(0, 0, 1, proposal=proposal), *rows)

    assert found.accept_probs == pytest.approx((0.5 * 0.4 / 0.7, 0.3 * 0.2 / 0.76, 0.24))
    assert 0 not in found.tokens[:2]
    assert found.tokens[2] != 1


def test_behind_a_token_the_target_excludes_nothing_is_accepted() -> None:
    uniform_law = Sparse(((0, 1),) * 3, ((0.5, 0.5),) * 3)

    found = outcome(
        draft(0, 1, 1, proposal=uniform_law), [0.5, 0.5], [1.0, 0.0], [0.5, 0.5], [0.5, 0.5]
    )

    assert found.accept_probs == (1.0, 0.0, 0.0)
    assert found.tokens[1] == 0


@pytest.mark.parametrize("proposal", [OneHot(), Sparse(((0,), (1,), (0,)), ((1.0,),) * 3)])
def test_greedy_accepts_exactly_what_agrees(proposal: Proposal) -> None:
    zero, one = [1.0, 0.0], [0.0, 1.0]

    assert outcome(draft(0, 1, 0, proposal=proposal), zero, one, zero, one) == BlockTest(
        (1.0, 1.0, 1.0), (0, 1, 0, 1)
    )
    assert outcome(draft(0, 1, 0, proposal=proposal), zero, one, one, one) == BlockTest(
        (1.0, 1.0, 0.0), (0, 1, 1, 1)
    )
    assert outcome(draft(0, 1, 0, proposal=proposal), zero, zero, zero, one) == BlockTest(
        (1.0, 0.0, 0.0), (0, 0, 0, 1)
    )


def test_equal_laws_accept_everything() -> None:
    row = [0.5, 0.25, 0.25]
    sent = Sparse(((0, 1, 2),) * 3, (tuple(row),) * 3)

    assert outcome(draft(0, 1, 2, proposal=sent), row, row, row, row).accept_probs == (1.0,) * 3


def test_draft_mass_beyond_the_targets_vocabulary_counts_but_is_never_drawn() -> None:
    """P_1 = 1; P_2 = 1, as 1/2 > 1/4. Where x_1 has p/q = 1/2, S_1 = 1/4 - 1/5 + 1/4 and 1 - P_1 = 1/2."""
    sent = Sparse(((0, 900), (0, 900)), ((0.25, 0.75), (0.2, 0.8)))
    certain = replace(sent, support=((0,), (0, 900)), probs=((1.0,), (0.2, 0.8)))
    half = [0.5, 0.5]

    assert outcome(draft(0, 0, proposal=sent), half, half, half).accept_probs == (1.0, 1.0)
    found = outcome(draft(0, 0, proposal=certain), half, half, half)
    assert found.accept_probs == pytest.approx((0.3 / 0.8, 1.0))
    assert set(found.tokens) <= {0, 1}


def test_extreme_probabilities_neither_overflow_nor_divide_by_zero() -> None:
    """P_1 = 1e-42 leaves nothing to stop with, h_1 = 0; the second ratio, 1e42, makes up for it."""
    first, second = [1e-42, 1.0], [1.0, 1e-300]
    sent = Sparse(((0, 1), (0, 1)), ((1.0, 1e-42), (1e-42, 1.0)))

    found = outcome(draft(0, 0, proposal=sent), first, second, second)

    assert found.accept_probs == pytest.approx((0.0, 1.0))
    assert all(math.isfinite(prob) for prob in found.accept_probs)


def test_an_empty_block_draft_gives_only_the_draw_that_coupled_would_make() -> None:
    law = torch.full((1, 50), 1 / 50).log()
    plain = evidence(law, [asked(draft(), COUPLED)])[0].outcome

    assert isinstance(plain, TargetDraws)
    assert evidence(law, [asked(draft())])[0].outcome == BlockTest((), plain.tokens)


def test_requests_of_any_mix_are_answered_as_each_alone() -> None:
    law = torch.randn(12, 50, generator=torch.Generator().manual_seed(9)).log_softmax(dim=-1)
    sparse = Sparse(((3, 4), (6, 5)), ((0.5, 0.5), (0.9, 0.1)))
    mix = [
        asked(draft(3, 6, proposal=sparse), BLOCK, 1),
        asked(draft(3, 6, proposal=sparse), RATIO, 2),
        asked(draft(8), BLOCK, 3),
        asked(draft(8), COUPLED, 4),
        asked(draft(), BLOCK, 5),
        asked(draft(), RATIO, 6),
    ]

    together = evidence(law, mix)

    starts, ends = (0, 3, 6, 8, 10, 11), (3, 6, 8, 10, 11, 12)
    assert together == [
        evidence(law[start:end], [each])[0]
        for each, start, end in zip(mix, starts, ends, strict=True)
    ]


def test_block_evidence_is_plain_numbers() -> None:
    found = outcome(draft(0, 1), [0.5, 0.5], [0.5, 0.5], [0.5, 0.5])

    assert {type(prob) for prob in found.accept_probs} == {float}
    assert {type(token) for token in found.tokens} == {int}


PROMPT = (3, 1, 4, 1, 5)


def wish(tokens: tuple[int, ...], rule: AcceptanceRule, count: int) -> DraftContext:
    return DraftContext("s", tokens, len(PROMPT), count, SamplingParams(), rule, NOISE)


def test_the_model_drafter_sends_its_law_to_every_rule_that_tests_it() -> None:
    model = TableModel(1, scale=0.3)
    drafts = {
        rule: LmDrafter(model, vocab_size=12).propose([wish(PROMPT, rule, 4)])[0]
        for rule in AcceptanceRule
    }

    assert drafts[BLOCK] == drafts[RATIO]
    assert isinstance(drafts[BLOCK].proposal, Sparse)
    assert isinstance(drafts[COUPLED].proposal, Coupled)


def test_the_model_drafter_draws_anew_at_a_position_it_drew_before() -> None:
    """Nearly uniform laws over 12 tokens: shared noise would agree at all 29 positions, fresh noise at about 2."""
    drafter = LmDrafter(TableModel(1, scale=0.001), vocab_size=12)

    (first,) = drafter.propose([wish(PROMPT, BLOCK, 30)])
    (second,) = drafter.propose([wish((*PROMPT, 0), BLOCK, 29)])

    same = sum(x == y for x, y in zip(first.tokens[1:], second.tokens, strict=True))
    assert same < 10
