"""Block verification with its randomness enumerated: every draft, every outcome of the coins, the law of every token emitted.

All of it comes from the code under test: h from ``evidence``, the laws of the emitted token from ``residual_law``, the number of
accepted tokens from ``count_accepted``.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import torch

from specdec_core.sampling.block import survive
from specdec_core.sampling.evidence import VerifyRequest, evidence
from specdec_core.sampling.ratio import compare, draft_law, residual_law
from specdec_core.types import AcceptanceRule, BlockTest, DraftBlock, NoiseKey, OneHot, Sparse
from specdec_core.verification import block

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from specdec_core.types import Proposal
    from tests.support.enumeration import Drafting, Law, Prefix

    LawOf = Callable[[Prefix], Law]
    Ending = tuple[
        float, Law
    ]  # the chance of a number of accepted tokens and the law of the token behind them


def block_test(rows: list[Law], draft: DraftBlock) -> BlockTest:
    law = torch.tensor(rows, dtype=torch.float64).log()
    outcome = evidence(law, [VerifyRequest(draft, AcceptanceRule.BLOCK, NoiseKey(0))])[0].outcome
    assert isinstance(outcome, BlockTest)
    return outcome


def chances(test: BlockTest, floors: tuple[float, ...] = ()) -> list[float]:
    """The chance of each number of accepted tokens, over every outcome of the coins.

    ``floors`` are what the first coins are known to lie above; independent coins lie above 0.
    """
    size = len(test.accept_probs)
    chance = [0.0] * (size + 1)
    above = (*floors, *(0.0,) * size)[:size]
    accepting = [
        max(0.0, prob - floor) / (1.0 - floor)
        for prob, floor in zip(test.accept_probs, above, strict=True)
    ]
    for pattern in itertools.product((False, True), repeat=size):
        coins = [
            prob / 2 if accepts else (1.0 + prob) / 2
            for accepts, prob in zip(pattern, test.accept_probs, strict=True)
        ]
        weight = math.prod(
            prob if accepts else 1.0 - prob
            for accepts, prob in zip(pattern, accepting, strict=True)
        )
        if weight > 0.0:
            chance[block.count_accepted(test, coins.__getitem__)] += weight
    return chance


def emission_laws(rows: list[Law], draft: DraftBlock) -> list[Law]:
    """(P_i p - q)+ normalised behind i < gamma tokens, p behind all."""
    target = torch.tensor(rows[:-1], dtype=torch.float64).log()
    both = compare(target, [draft_law(draft, index) for index in range(draft.num_draft_tokens)])
    log_survival = [0.0]
    for log_ratio in both.log_ratios[:-1]:
        log_survival.append(survive(log_survival[-1], log_ratio))
    scaled = both.logprobs - torch.tensor(log_survival, dtype=torch.float64)[both.rows]
    residual = residual_law(both.target, both.rows, both.tokens, scaled)
    return [*residual.softmax(dim=-1).tolist(), rows[-1]]


def exact(rows: list[Law], draft: DraftBlock) -> list[Ending]:
    """The code under test."""
    return list(zip(chances(block_test(rows, draft)), emission_laws(rows, draft), strict=True))


def drafts(
    drafting: Drafting, drafter: LawOf, prefix: Prefix, size: int, known: Prefix = ()
) -> Iterator[tuple[float, DraftBlock]]:
    """Every draft of ``size`` tokens behind a prefix with its probability; those that begin with ``known`` if that is certain."""
    for rest in itertools.product(*[range(len(drafter(prefix)))] * (size - len(known))):
        tokens = (*known, *rest)
        weight = 1.0
        sent: list[Proposal] = []
        for index, token in enumerate(tokens):
            drawn_from, proposal = drafting(drafter((*prefix, *tokens[:index])))
            weight *= 1.0 if index < len(known) else drawn_from[token]
            sent.append(proposal)
        if weight > 0.0:
            yield weight, DraftBlock(len(prefix) + 1, 1, tokens, _joined(sent))


def _joined(sent: list[Proposal]) -> Proposal:
    rows = [each for each in sent if isinstance(each, Sparse)]
    if not rows:
        return OneHot()
    return Sparse(tuple(row.support[0] for row in rows), tuple(row.probs[0] for row in rows))


def target_rows(target: LawOf, prefix: Prefix, tokens: Prefix) -> list[Law]:
    """The target's law behind each prefix of a draft."""
    return [target((*prefix, *tokens[:index])) for index in range(len(tokens) + 1)]
