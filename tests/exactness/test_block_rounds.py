"""Why a round of block verification has noise of its own: what a round leaves unaccepted must not be seen again by the next.

Two rounds are enumerated in float64 as one is in test_rule_enumeration.py. If the second flips the coins, or draws the draft tokens,
of the same absolute positions again, the law is off: the first round has looked at all of them. ``ratio`` stops looking at the first
rejection and may reuse both. A seeded run of the real drafting and deciding functions shows the same by chi-square.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from functools import partial
from typing import TYPE_CHECKING

import pytest
import torch
from scipy import stats

from specdec_core.philox import Stream, round_key
from specdec_core.sampling.draw import draw_sparse
from specdec_core.sampling.evidence import VerifyRequest, evidence
from specdec_core.types import AcceptanceRule, DraftBlock, NoiseKey, Sparse
from specdec_core.verification.decide import decide
from tests.support.block_enumeration import (
    block_test,
    chances,
    drafts,
    emission_laws,
    target_rows,
)
from tests.support.enumeration import (
    dense,
    distance_from_target,
    random_law,
    target_law,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.block_enumeration import Ending
    from tests.support.enumeration import Law, Prefix, SequenceLaw

    Floors = tuple[float, ...]
    Leftover = tuple[
        Floors, Prefix
    ]  # of the next round: what its coins lie above, and its first draft tokens
    Carry = Callable[
        [int, list[Law], DraftBlock], Leftover
    ]  # from the number accepted, the target's laws and the draft
    Rule = Callable[[list[Law], DraftBlock, Floors], list[Ending]]


def position_law(vocab: int, seed: int, prefix: Prefix) -> Law:
    """A drafter's law that depends on the position alone, so that shared noise draws the same token there again."""
    return random_law(vocab, f"drafter {seed} {len(prefix)}")


def fresh(accepted: int, rows: list[Law], draft: DraftBlock) -> Leftover:
    del accepted, rows, draft
    return (), ()


def same_coins(accepted: int, rows: list[Law], draft: DraftBlock) -> Leftover:
    """The coins behind the emitted token are known to have rejected."""
    return block_test(rows, draft).accept_probs[accepted + 1 :], ()


def same_draft_noise(accepted: int, rows: list[Law], draft: DraftBlock) -> Leftover:
    del rows
    return (), draft.tokens[accepted + 1 :]


def by_block(rows: list[Law], draft: DraftBlock, floors: Floors) -> list[Ending]:
    chance = chances(block_test(rows, draft), floors)
    return list(zip(chance, emission_laws(rows, draft), strict=True))


def by_ratio(rows: list[Law], draft: DraftBlock, floors: Floors) -> list[Ending]:
    """Leviathan et al., arXiv:2211.17192, Algorithm 1, written out: there is no coin behind the first rejection."""
    del floors
    assert isinstance(draft.proposal, Sparse)
    endings: list[Ending] = []
    alive = 1.0
    for p, q, token in zip(rows, draft.proposal.probs, draft.tokens, strict=False):
        acceptance = min(1.0, p[token] / q[token])
        left = [max(0.0, mine - other) for mine, other in zip(p, q, strict=True)]
        endings.append((alive * (1.0 - acceptance), [mass / sum(left) for mass in left]))
        alive *= acceptance
    return [*endings, (alive, rows[-1])]


def error_of_two_rounds(rule: Rule, carry: Carry, *, vocab: int, size: int, seed: int = 0) -> float:
    """Total variation of the first ``size + 2`` tokens."""
    target, drafter = partial(target_law, vocab, seed), partial(position_law, vocab, seed)
    now: dict[tuple[Prefix, Leftover], float] = {((), ((), ())): 1.0}
    for _ in range(2):
        after: dict[tuple[Prefix, Leftover], float] = defaultdict(float)
        for (prefix, (floors, known)), reached in now.items():
            for weight, draft in drafts(dense, drafter, prefix, size, known):
                rows = target_rows(target, prefix, draft.tokens)
                for accepted, (chance, law) in enumerate(rule(rows, draft, floors)):
                    left = carry(accepted, rows, draft)
                    for token, prob in enumerate(law):
                        end = (*prefix, *draft.tokens[:accepted], token)
                        if chance * prob > 0.0:
                            after[end, left] += reached * weight * chance * prob
        now = after
    emitted: SequenceLaw = defaultdict(float)
    for (prefix, _), weight in now.items():
        emitted[prefix] += weight
    return distance_from_target(emitted, vocab=vocab, seed=seed, length=size + 2)


@pytest.mark.parametrize(("vocab", "size"), [(3, 2), (2, 3)])
def test_two_block_rounds_with_noise_of_their_own_emit_the_targets_law(
    vocab: int, size: int
) -> None:
    assert error_of_two_rounds(by_block, fresh, vocab=vocab, size=size) < 1e-12


@pytest.mark.parametrize(("carry", "seed"), [(same_coins, 8), (same_draft_noise, 0)])
def test_block_noise_of_a_position_alone_is_caught(carry: Carry, seed: int) -> None:
    assert error_of_two_rounds(by_block, carry, vocab=3, size=2, seed=seed) > 0.01


@pytest.mark.parametrize("carry", [fresh, same_draft_noise])
@pytest.mark.parametrize(("vocab", "size"), [(3, 2), (3, 3)])
def test_ratio_may_reuse_the_noise_of_a_position(vocab: int, size: int, carry: Carry) -> None:
    assert error_of_two_rounds(by_ratio, carry, vocab=vocab, size=size) < 1e-12


COUNT = 8000
P, Q = (0.6, 0.4), (0.3, 0.7)


def of_the_position(noise: NoiseKey, base_len: int) -> NoiseKey:
    del base_len
    return noise


def after_a_round(
    emitted: list[Prefix], draft_key: Callable[[NoiseKey, int], NoiseKey]
) -> list[Prefix]:
    """What ``COUNT`` seeded sessions have emitted after one more round of two draft tokens."""
    base_lens = [7 + len(each) for each in emitted]
    noises = [NoiseKey(seed) for seed in range(COUNT)]
    keys = [draft_key(noise, base) for noise, base in zip(noises, base_lens, strict=True)]
    ids, probs = torch.tensor([[0, 1]]), torch.tensor([Q])
    columns = [
        draw_sparse(
            ids.expand(COUNT, -1),
            probs.expand(COUNT, -1),
            keys,
            [base + index for base in base_lens],
            Stream.DRAFT,
        )
        for index in range(2)
    ]
    sent = Sparse(((0, 1),) * 2, (tuple(probs[0].tolist()),) * 2)
    blocks = [
        DraftBlock(base, 1, tokens, sent)
        for base, tokens in zip(base_lens, zip(*columns, strict=True), strict=True)
    ]
    requests = list(map(VerifyRequest, blocks, itertools.repeat(AcceptanceRule.BLOCK), noises))
    answers = evidence(torch.tensor([P]).log().expand(3 * COUNT, -1), requests)
    verdicts = map(decide, blocks, answers, noises)
    return [
        (*head, *block.tokens[: verdict.num_accepted], verdict.next_token)
        for head, block, verdict in zip(emitted, blocks, verdicts, strict=True)
    ]


def pvalue_of_the_first_three(draft_key: Callable[[NoiseKey, int], NoiseKey]) -> float:
    """Chi-square of the joint law of three tokens after three rounds, which emit at least three."""
    emitted: list[Prefix] = [()] * COUNT
    for _ in range(3):
        emitted = after_a_round(emitted, draft_key)
    seen = Counter(each[:3] for each in emitted)
    sequences = list(itertools.product((0, 1), repeat=3))
    expected = [COUNT * P[x] * P[y] * P[z] for x, y, z in sequences]
    pvalue: float = stats.chisquare([seen[each] for each in sequences], expected).pvalue
    return pvalue


def test_seeded_block_rounds_follow_the_target_by_chi_square() -> None:
    assert pvalue_of_the_first_three(round_key) > 1e-4  # the false-alarm rate


def test_seeded_drafts_with_the_noise_of_a_position_are_caught() -> None:
    assert pvalue_of_the_first_three(of_the_position) < 1e-4
