"""The one decision of a round: which draft tokens the evidence supports, and which token follows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from specdec_core.errors import ProtocolError
from specdec_core.philox import Stream, round_key, uniform
from specdec_core.types import BlockTest, RatioTest, TargetDraws, TokenKind, Verdict
from specdec_core.verification import block, coupled, ratio

if TYPE_CHECKING:
    from specdec_core.types import DraftBlock, Evidence, NoiseKey


def decide(draft: DraftBlock, evidence: Evidence, noise: NoiseKey) -> Verdict:
    """Apply the rule that the evidence was made for.

    Args:
        draft: The block that was verified; ``base_len`` is the absolute position of its first token.
        evidence: The target's answer to exactly this draft.
        noise: Key of the request; the coins of ``ratio`` come from its ACCEPT stream, those of ``block`` from the round's own.

    Raises:
        ProtocolError: if the evidence does not fit the draft.
    """
    _check_fit(draft, evidence)
    match evidence.outcome:
        case TargetDraws(tokens=tokens) as draws:
            accepted = coupled.count_accepted(draft.tokens, draws)
            next_token = tokens[accepted]
        case RatioTest() as test:
            accepted = ratio.count_accepted(
                test, lambda index: uniform(noise, draft.base_len + index, Stream.ACCEPT)
            )
            next_token = test.tokens[accepted]
        case BlockTest(tokens=tokens) as test:
            key = round_key(noise, draft.base_len)
            accepted = block.count_accepted(
                test, lambda index: uniform(key, draft.base_len + index, Stream.ACCEPT)
            )
            next_token = tokens[accepted]
        case _ as unreachable:
            assert_never(unreachable)
    return Verdict(accepted, next_token, _kind(draft, accepted))


def _kind(draft: DraftBlock, accepted: int) -> TokenKind:
    if draft.num_draft_tokens == 0:
        return TokenKind.PLAIN
    return TokenKind.BONUS if accepted == draft.num_draft_tokens else TokenKind.RECOVERED


def _check_fit(draft: DraftBlock, evidence: Evidence) -> None:
    match evidence.outcome:
        case TargetDraws(tokens=tokens):
            rows: tuple[int, ...] = (len(tokens) - 1,)
        case RatioTest() as test:
            rows = (len(test.target_logprobs), len(test.draft_logprobs), len(test.residual_tokens))
        case BlockTest(accept_probs=accept_probs, tokens=tokens):
            rows = (len(accept_probs), len(tokens) - 1)
        case _ as unreachable:
            assert_never(unreachable)
    if evidence.logprobs is not None:
        told = evidence.logprobs
        rows = (*rows, len(told.draft), len(told.emitted) - 1, len(told.top) - 1)
    if evidence.base_len != draft.base_len or any(
        count != draft.num_draft_tokens for count in rows
    ):
        raise ProtocolError(
            f"evidence for {rows[0]} draft tokens at {evidence.base_len} does not fit a draft of "
            f"{draft.num_draft_tokens} at {draft.base_len}"
        )
