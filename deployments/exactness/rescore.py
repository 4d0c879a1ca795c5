"""Re-scoring a finished generation: the target reads the delivered tokens and says at each position what it would have drawn.

The messages are those of a session whose drafter proposes exactly what was delivered. Under ``coupled`` and greedy the evidence
holds the target's draw behind every prefix, which must be the token delivered. Under the other rules the draws depend on the
drafter, so all that can be said is that no token may have had probability 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from specdec_core.errors import ProtocolError
from specdec_core.messages import Extend, Open
from specdec_core.params import MAX_DRAFT_TOKENS
from specdec_core.philox import Stream
from specdec_core.sampling.noise import gumbel_at
from specdec_core.types import AcceptanceRule, DraftBlock, OneHot, RatioTest, TargetDraws

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdec_core.session.state import SessionSpec
    from specdec_core.types import Evidence

RESCORE_EPOCH = 1
MARGIN_EPOCH = 2


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first delivered token that the target does not stand by."""

    position: int  # in the output
    delivered: int
    drawn: (
        int | None
    )  # by the target; None where it only says that the delivered one has probability 0


@dataclass(frozen=True, slots=True)
class Rescore:
    """One generation and the fresh session it is re-scored in."""

    session_id: str
    spec: SessionSpec  # of the generation
    output: tuple[int, ...]  # delivered, not empty

    @property
    def opening(self) -> Open:
        spec = self.spec
        is_drawn = spec.params.is_greedy or spec.rule is AcceptanceRule.COUPLED
        rule = AcceptanceRule.COUPLED if is_drawn else AcceptanceRule.RATIO
        params = replace(spec.params, logprobs=None, prompt_logprobs=None)
        return Open(self.session_id, RESCORE_EPOCH, len(spec.prompt), params, rule, spec.noise)

    @property
    def extensions(self) -> tuple[Extend, ...]:
        """The output in drafts as long as may be, each answered with evidence."""
        starts = range(0, len(self.output), MAX_DRAFT_TOKENS)
        return tuple(
            self._extend(RESCORE_EPOCH, start, self.output[start : start + MAX_DRAFT_TOKENS])
            for start in starts
        )

    def first_mismatch(self, evidence: Evidence) -> Mismatch | None:
        """The first token of one of ``extensions`` that its evidence contradicts.

        Raises:
            ProtocolError: if the evidence is not of the kind or the length asked for.
        """
        start = evidence.base_len - len(self.spec.prompt)
        delivered = self.output[start : start + MAX_DRAFT_TOKENS]
        match evidence.outcome:
            case TargetDraws(tokens=tokens) if len(tokens) == len(delivered) + 1:
                pairs = zip(delivered, tokens, strict=False)
                wrong = [index for index, (token, drawn) in enumerate(pairs) if token != drawn]
                drawn: tuple[int | None, ...] = tokens
            case RatioTest(target_logprobs=logprobs) if len(logprobs) == len(delivered):
                wrong = [index for index, each in enumerate(logprobs) if each == -math.inf]
                drawn = (None,) * len(logprobs)
            case _:
                raise ProtocolError(f"no evidence on {len(delivered)} re-scored tokens")
        if not wrong:
            return None
        return Mismatch(start + wrong[0], delivered[wrong[0]], drawn[wrong[0]])

    @property
    def margin_opening(self) -> Open:
        """Begin again with the law before truncation, and with its probabilities as the evidence."""
        params = self.opening.params
        whole = replace(
            params,
            temperature=1.0 if params.is_greedy else params.temperature,
            top_k=0,
            top_p=1.0,
            min_p=0.0,
            typical_p=1.0,
        )
        return replace(self.opening, epoch=MARGIN_EPOCH, params=whole, rule=AcceptanceRule.RATIO)

    def margin_extensions(self, position: int, tokens: Sequence[int]) -> tuple[Extend, ...]:
        """Ask how likely each of ``tokens`` is at a position of the output; a ``RatioTest`` answers each."""
        prefix = (*self.spec.prompt, *self.output[:position])
        first, *others = (self._extend(MARGIN_EPOCH, position, (token,)) for token in tokens)
        return replace(first, base_len=0, tokens=prefix), *others

    def margin(self, mismatch: Mismatch, drawn: int, logprobs: Sequence[float]) -> float:
        """By how much the drawn token won over the delivered one: in logits if greedy, else in log-probability and noise.

        Args:
            mismatch: Where.
            drawn: The token that won.
            logprobs: Of the delivered token and of the drawn one, as ``margin_extensions`` asked for them.
        """
        scores = torch.tensor([logprobs])
        if not self.spec.params.is_greedy:
            position = len(self.spec.prompt) + mismatch.position
            ids = torch.tensor([[mismatch.delivered, drawn]])
            scores += gumbel_at([self.spec.noise], [position], Stream.TOKEN, ids)
        return float(scores[0, 1] - scores[0, 0])

    def _extend(self, epoch: int, start: int, draft: Sequence[int]) -> Extend:
        """``draft`` behind the first ``start`` output tokens; the first message brings the prompt, others repeat a token."""
        tokens = (*self.spec.prompt, *self.output)
        end = len(self.spec.prompt) + start
        base = end - 1 if start else 0
        block = DraftBlock(end, epoch, tuple(draft), OneHot())
        return Extend(self.session_id, epoch, base, tokens[base:end], block)
