"""Block verification emits exactly the target's law: every draft and coin of a round enumerated in float64.

Emissions are continued by the target to one length and compared as whole sequences. Each wrong variant is a bug someone could write;
the same comparison must notice it.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING

import pytest

from specdec_core.types import BlockTest, DraftBlock, Sparse
from tests.support.block_enumeration import (
    block_test,
    chances,
    drafts,
    emission_laws,
    exact,
    target_rows,
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

    from tests.support.block_enumeration import Ending
    from tests.support.enumeration import Drafting, Law, SequenceLaw

    # The target's laws [gamma + 1] and a draft to what follows for each number accepted.
    Judge = Callable[[list[Law], DraftBlock], list[Ending]]

SIZES = [(3, 1), (3, 2), (3, 3), (4, 2), (4, 3)]  # vocabulary, draft length
DRAFTERS = [dense, top_two, deterministic, disjoint_from_what_is_sent, top_two_only_when_sending]


def drawing_from_all_of_p(rows: list[Law], draft: DraftBlock) -> list[Ending]:
    return list(zip(chances(block_test(rows, draft)), rows, strict=True))


def dropping_the_survival_from_the_residual(rows: list[Law], draft: DraftBlock) -> list[Ending]:
    alone = [
        emission_laws(rows[index : index + 2], _part(draft, index, 1))[0]
        for index in range(draft.num_draft_tokens)
    ]
    return list(zip(chances(block_test(rows, draft)), [*alone, rows[-1]], strict=True))


def accepting_by_the_survival_alone(rows: list[Law], draft: DraftBlock) -> list[Ending]:
    """P_i in the place of h_i, which is right at the last position only."""
    survivals = [
        block_test([*rows[: index + 1], rows[-1]], _part(draft, 0, index + 1)).accept_probs[-1]
        for index in range(draft.num_draft_tokens)
    ]
    wrong = BlockTest(tuple(survivals), (0,) * len(rows))
    return list(zip(chances(wrong), emission_laws(rows, draft), strict=True))


def sharing_one_coin(rows: list[Law], draft: DraftBlock) -> list[Ending]:
    """N >= i as soon as the one coin is below the largest h from i on."""
    probs = block_test(rows, draft).accept_probs
    reach = [1.0, *(max(probs[index:]) for index in range(len(probs))), 0.0]
    chance = [longer - longest for longer, longest in itertools.pairwise(reach)]
    return list(zip(chance, emission_laws(rows, draft), strict=True))


def drawing_the_residual_with_the_coin(rows: list[Law], draft: DraftBlock) -> list[Ending]:
    """The coin that rejected x_{N+1} also picks the residual token: by inversion, from what lies above h."""
    endings = exact(rows, draft)
    probs = (*block_test(rows, draft).accept_probs, 0.0)
    return [
        (chance, _picked_from_above(law, floor))
        for (chance, law), floor in zip(endings, probs, strict=True)
    ]


def _picked_from_above(law: Law, floor: float) -> Law:
    edges = [max(floor, edge) for edge in itertools.accumulate(law, initial=0.0)]
    masses = [high - low for low, high in itertools.pairwise(edges)]
    total = math.fsum(masses)
    return [mass / total for mass in masses] if total > 0.0 else law


def rejecting_unsent_tokens(rows: list[Law], draft: DraftBlock) -> list[Ending]:
    """Takes a token outside the sent law for one that survives with probability 0, and keeps that law's residual."""
    sent = draft.proposal
    assert isinstance(sent, Sparse)
    for index, token in enumerate(draft.tokens):
        if token not in sent.support[index]:
            known = (*draft.tokens[:index], sent.support[index][0], *draft.tokens[index + 1 :])
            honest = DraftBlock(draft.base_len, draft.epoch, known, sent)
            cut = block_test(rows, honest).accept_probs[:index]
            none = BlockTest((*cut, *(0.0,) * (len(known) - index)), (0,) * len(rows))
            return list(zip(chances(none), emission_laws(rows, honest), strict=True))
    return exact(rows, draft)


def _part(draft: DraftBlock, start: int, size: int) -> DraftBlock:
    part = slice(start, start + size)
    proposal = draft.proposal
    if isinstance(proposal, Sparse):
        proposal = Sparse(proposal.support[part], proposal.probs[part])
    return DraftBlock(draft.base_len + start, draft.epoch, draft.tokens[part], proposal)


def error_of_a_round(
    drafting: Drafting, judge: Judge, *, vocab: int, size: int, seed: int
) -> float:
    """Total variation between what a round emits and the target's law, both ``size + 1`` tokens long."""
    target, drafter = partial(target_law, vocab, seed), partial(drafter_law, vocab, seed)
    emitted: SequenceLaw = defaultdict(float)
    for weight, draft in drafts(drafting, drafter, (), size):
        for accepted, (chance, law) in enumerate(
            judge(target_rows(target, (), draft.tokens), draft)
        ):
            for token, prob in enumerate(law):
                emitted[(*draft.tokens[:accepted], token)] += weight * chance * prob
    return distance_from_target(emitted, vocab=vocab, seed=seed, length=size + 1)


@pytest.mark.parametrize("drafting", DRAFTERS)
@pytest.mark.parametrize(("vocab", "size"), SIZES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_block_round_emits_exactly_the_targets_law(
    vocab: int, size: int, seed: int, drafting: Drafting
) -> None:
    """An odd seed truncates the target and not the drafter, as top-p on that side alone would: exact all the same."""
    assert error_of_a_round(drafting, exact, vocab=vocab, size=size, seed=seed) < 1e-12


@pytest.mark.parametrize(
    ("drafting", "judge", "seed"),
    [
        (dense, drawing_from_all_of_p, 0),
        (dense, dropping_the_survival_from_the_residual, 2),
        (dense, accepting_by_the_survival_alone, 2),
        (dense, sharing_one_coin, 0),
        (dense, drawing_the_residual_with_the_coin, 0),
        (top_two_only_when_sending, rejecting_unsent_tokens, 0),
        (top_two_only_when_drawing, exact, 0),
    ],
)
@pytest.mark.parametrize(("vocab", "size"), [(3, 2), (3, 3), (4, 3)])
def test_a_wrong_block_rule_is_caught(
    vocab: int, size: int, drafting: Drafting, judge: Judge, seed: int
) -> None:
    assert error_of_a_round(drafting, judge, vocab=vocab, size=size, seed=seed) > 0.01


def accepted_on_average(
    drafting: Drafting, *, vocab: int, size: int, seed: int
) -> tuple[float, float]:
    """Expected number of accepted tokens under ``block`` and under ``ratio``."""
    target, drafter = partial(target_law, vocab, seed), partial(drafter_law, vocab, seed)
    by_block = by_ratio = 0.0
    for weight, draft in drafts(drafting, drafter, (), size):
        rows = target_rows(target, (), draft.tokens)
        chance = chances(block_test(rows, draft))
        by_block += weight * math.fsum(count * prob for count, prob in enumerate(chance))
        alive = weight
        for index in range(size):
            alive *= block_test(rows[index : index + 2], _part(draft, index, 1)).accept_probs[0]
            by_ratio += alive
    return by_block, by_ratio


@pytest.mark.parametrize("drafting", [dense, top_two])
@pytest.mark.parametrize(("vocab", "size"), [(3, 2), (3, 3), (4, 3)])
def test_block_accepts_more_than_ratio_on_average(
    vocab: int, size: int, drafting: Drafting
) -> None:
    gains = []
    for seed in range(10):
        by_block, by_ratio = accepted_on_average(drafting, vocab=vocab, size=size, seed=seed)
        gains.append(by_block - by_ratio)

    assert min(gains) > -1e-12
    assert max(gains) > 0.01


@pytest.mark.parametrize(("drafting", "size"), [(dense, 1), (deterministic, 3)])
def test_block_accepts_as_ratio_does_for_one_token_and_for_one_hot_drafts(
    drafting: Drafting, size: int
) -> None:
    for seed in range(10):
        by_block, by_ratio = accepted_on_average(drafting, vocab=4, size=size, seed=seed)
        assert by_block == pytest.approx(by_ratio, abs=1e-12)
