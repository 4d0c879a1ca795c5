"""What the target says of a draft, in tens of bytes: its own draws, or the scalars of a test and draws for each way it may end.

``coupled`` (Daliri et al., arXiv:2408.07978): the target's draw at each position, with the noise the drafter used.
``ratio`` (Leviathan et al., arXiv:2211.17192; Chen et al., arXiv:2302.01318): log p(x), log q(x) and, drawn ahead of the verdict
because the law stays here, a token of the residual (p - q)+ for each position.
``block`` (Sun et al., arXiv:2403.10444): the chance h to stop at each length and, likewise, a token of (P p - q)+.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, assert_never

import torch

from specdec_core.errors import InvariantError
from specdec_core.philox import Stream
from specdec_core.sampling.block import stop_probs, survive
from specdec_core.sampling.draw import draw
from specdec_core.sampling.ratio import compare, draft_law, residual_law
from specdec_core.types import AcceptanceRule, BlockTest, Evidence, RatioTest, TargetDraws

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdec_core.types import DraftBlock, NoiseKey, Outcome


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """One draft to be judged. Its token ids are below the vocabulary size."""

    draft: DraftBlock  # possibly empty; base_len is the absolute position of the first row's token
    rule: AcceptanceRule
    noise: NoiseKey


@dataclass(frozen=True, slots=True)
class _Slot:
    """One row of the law: what its request proposed there and the noise it draws with."""

    row: int
    request: VerifyRequest
    index: int  # into the draft; num_draft_tokens is the bonus

    @property
    def is_tested(self) -> bool:
        is_draft = self.index < self.request.draft.num_draft_tokens
        return is_draft and self.request.rule.tests_draft_law


@dataclass(frozen=True, slots=True)
class _Test:
    """The test of one draft token."""

    target_logprob: float
    draft_logprob: float
    stop_prob: float  # h of the draft tokens before this one; 1 under ``ratio``
    survival: float  # P of the draft up to this token; min(1, p/q) under ``ratio``
    residual_token: int


@torch.no_grad()
def evidence(law: torch.Tensor, requests: Sequence[VerifyRequest]) -> list[Evidence]:
    """The evidence of each request, in order; draws are batched over all rows.

    Row i of a request draws at absolute position ``base_len + i``: with ``Stream.TOKEN`` from its whole law, or with
    ``Stream.RESIDUAL`` from the residual, so that no noise serves twice.

    Args:
        law: ``[sum(num_draft_tokens + 1), vocab]`` float32 from ``process``: each request's draft rows, then its bonus row.
        requests: One per draft.

    Raises:
        InvariantError: ``law`` has another number of rows.
    """
    spans = _spans(requests)
    slots = [
        _Slot(row, request, index) for request, rows in spans for index, row in enumerate(rows)
    ]
    if len(slots) != law.shape[0]:
        raise InvariantError(f"{law.shape[0]} rows of law for drafts that need {len(slots)}")
    drawn = _draw(law, [slot for slot in slots if not slot.is_tested])
    tests = _run_tests(law, [slot for slot in slots if slot.is_tested])
    return [
        Evidence(
            request.draft.base_len, request.draft.epoch, _outcome(request.rule, rows, drawn, tests)
        )
        for request, rows in spans
    ]


def _spans(requests: Sequence[VerifyRequest]) -> list[tuple[VerifyRequest, range]]:
    """Each request with its rows: one per draft token, and the bonus."""
    ends = list(accumulate(request.draft.num_draft_tokens + 1 for request in requests))
    rows = [range(start, end) for start, end in pairwise([0, *ends])]
    return list(zip(requests, rows, strict=True))


def _outcome(
    rule: AcceptanceRule, rows: range, drawn: dict[int, int], tests: dict[int, _Test]
) -> Outcome:
    match rule:
        case AcceptanceRule.COUPLED:
            return TargetDraws(tuple(drawn[row] for row in rows))
        case AcceptanceRule.RATIO:
            tested = [tests[row] for row in rows[:-1]]
            return RatioTest(
                target_logprobs=tuple(test.target_logprob for test in tested),
                draft_logprobs=tuple(test.draft_logprob for test in tested),
                residual_tokens=tuple(test.residual_token for test in tested),
                bonus_token=drawn[rows[-1]],
            )
        case AcceptanceRule.BLOCK:
            tested = [tests[row] for row in rows[:-1]]
            stops = [test.stop_prob for test in tested[1:]]
            return BlockTest(
                accept_probs=(*stops, *(test.survival for test in tested[-1:])),
                tokens=(*(test.residual_token for test in tested), drawn[rows[-1]]),
            )
        case _:
            assert_never(rule)


def _draw(law: torch.Tensor, slots: list[_Slot]) -> dict[int, int]:
    """The target's own token at each slot, by row."""
    rows = [slot.row for slot in slots]
    return dict(zip(rows, _draw_slots(law[rows], slots, Stream.TOKEN), strict=True))


def _draw_slots(law: torch.Tensor, slots: list[_Slot], stream: Stream) -> list[int]:
    keys = [slot.request.noise for slot in slots]
    positions = [slot.request.draft.base_len + slot.index for slot in slots]
    return draw(law, keys, positions, stream)


def _run_tests(law: torch.Tensor, slots: list[_Slot]) -> dict[int, _Test]:
    """The test of each slot's draft token, by row."""
    if not slots:
        return {}
    rows = [slot.row for slot in slots]
    both = compare(law[rows], [draft_law(slot.request.draft, slot.index) for slot in slots])
    before, after = _log_survivals(slots, both.log_ratios)
    log_survival = torch.tensor(before, dtype=torch.float64, device=law.device)
    scaled = both.logprobs - log_survival[both.rows]  # P p - q has the shape of p - q / P
    residual = residual_law(both.target, both.rows, both.tokens, scaled)
    tests = map(
        _Test,
        both.target_logprobs,
        both.draft_logprobs,
        stop_probs(both, log_survival).tolist(),
        map(math.exp, after),
        _draw_slots(residual, slots, Stream.RESIDUAL),
    )
    return dict(zip(rows, tests, strict=True))


def _log_survivals(slots: list[_Slot], log_ratios: list[float]) -> tuple[list[float], list[float]]:
    """The log P before and behind each slot's token; under ``ratio`` each test starts from P = 1."""
    before, after = [], [0.0]
    for slot, log_ratio in zip(slots, log_ratios, strict=True):
        continues = slot.index > 0 and slot.request.rule is AcceptanceRule.BLOCK
        before.append(after[-1] if continues else 0.0)
        after.append(survive(before[-1], log_ratio))
    return before, after[1:]
