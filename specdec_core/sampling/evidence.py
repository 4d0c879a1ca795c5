"""What the target says of a draft, in tens of bytes: its own draws, or the scalars of a test and draws for each way it may end.

``coupled`` (Daliri et al., arXiv:2408.07978): the target's draw at each position, with the noise the drafter used.
``ratio`` (Leviathan et al., arXiv:2211.17192; Chen et al., arXiv:2302.01318): log p(x), log q(x) and, drawn ahead of the verdict
because the law stays here, a token of the residual (p - q)+ for each position.
``block`` (Sun et al., arXiv:2403.10444): the chance h to stop at each length and, likewise, a token of (P p - q)+.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, assert_never

import torch

from specdec_core.errors import InvariantError
from specdec_core.philox import Stream
from specdec_core.sampling.block import log_survivals, stop_probs
from specdec_core.sampling.draw import draw
from specdec_core.sampling.ratio import draft_law, residual_law
from specdec_core.types import AcceptanceRule, BlockTest, Evidence, RatioTest, TargetDraws

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdec_core.sampling.ratio import DraftLaw
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
    """How one draft token compares in the two laws."""

    target_logprob: float
    draft_logprob: float
    stop_prob: float  # h of the tokens before this one under ``block``
    residual_token: int

    @property
    def log_ratio(self) -> float:
        return self.target_logprob - self.draft_logprob


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
) -> TargetDraws | RatioTest:
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
    """The ratio test of each slot's draft token, by row."""
    if not slots:
        return {}
    rows = [slot.row for slot in slots]
    proposed = [draft_law(slot.request.draft, slot.index) for slot in slots]
    target_logprobs = law[rows, [each.token for each in proposed]].tolist()
    entries = [
        (number, token, logprob)
        for number, each in enumerate(proposed)
        for token, logprob in zip(each.support, each.logprobs, strict=True)
        if token < law.shape[-1]  # a drafter's vocabulary may be padded further
    ]
    numbers, tokens, logprobs = zip(*entries, strict=True)
    residual = residual_law(
        law[rows],
        torch.tensor(numbers, device=law.device),
        torch.tensor(tokens, device=law.device),
        torch.tensor(logprobs, dtype=torch.float64, device=law.device),
    )
    residual_tokens = _draw_slots(residual, slots, Stream.RESIDUAL)
    draft_logprobs = [each.token_logprob for each in proposed]
    tests = map(_Test, target_logprobs, draft_logprobs, residual_tokens)
    return dict(zip(rows, tests, strict=True))
