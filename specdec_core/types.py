"""Records that cross layers: what a round proposes, what the target answers, what was decided.

Words are DESIGN's: ``base_len`` is a length in tokens of the prefix both sides agree on, ``epoch`` counts the (re)opens of a
session at one peer. Token ids are plain ints below the target's vocabulary size. No record here holds a tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class AcceptanceRule(Enum):
    """How draft tokens are tested; all are lossless."""

    COUPLED = "coupled"
    RATIO = "ratio"
    BLOCK = "block"

    @property
    def tests_draft_law(self) -> bool:
        """Whether the law a draft was drawn from enters the test, so that a drafter does best to send it."""
        return self is not AcceptanceRule.COUPLED


class TokenKind(Enum):
    """How a committed token came to be."""

    ACCEPTED = "accepted"  # the drafter's, confirmed by the target
    RECOVERED = "recovered"  # the target's, in place of a rejected draft token
    BONUS = "bonus"  # the target's, after a wholly accepted draft
    PLAIN = "plain"  # the target's, in a round without a draft


class FinishReason(Enum):
    """Why a generation ended."""

    STOP = "stop"  # end-of-sequence token, stop token or stop string
    LENGTH = "length"  # max_tokens or the end of the context
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class NoiseKey:
    """Names one request's noise: everything random in it is a function of this key and a position."""

    seed: int  # unsigned 64-bit
    sample_index: int = 0  # distinct for each of the n samples of one request, below 2**16


@dataclass(frozen=True, slots=True)
class Coupled:
    """Draft tokens drawn with the target's own noise; the ids say it all."""


@dataclass(frozen=True, slots=True)
class OneHot:
    """Draft tokens of a deterministic drafter: q is 1 at each of them."""


@dataclass(frozen=True, slots=True)
class Sparse:
    """The top-K laws the draft tokens were really sampled from, exactly as sent."""

    support: tuple[tuple[int, ...], ...]  # [num_draft_tokens][K] distinct token ids
    probs: tuple[tuple[float, ...], ...]  # [num_draft_tokens][K] positive, each row sums to 1


Proposal = Coupled | OneHot | Sparse


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """What the target's law, before any option has shaped it, says of one token. Natural logarithms."""

    logprob: float
    top: tuple[tuple[int, float], ...]  # the likeliest tokens and theirs, ties to the lower id


@dataclass(frozen=True, slots=True)
class DraftLogprobs:
    """The log-probabilities of all that a verdict on one draft may commit."""

    draft: tuple[float, ...]  # [num_draft_tokens] of each draft token
    emitted: tuple[float, ...]  # [num_draft_tokens + 1] of the token that follows 0, 1, ... of them
    top: tuple[tuple[tuple[int, float], ...], ...]  # [num_draft_tokens + 1][K] likeliest at each

    def of_draft(self, index: int) -> TokenLogprobs:
        """Of a draft token that was accepted."""
        return TokenLogprobs(self.draft[index], self.top[index])

    def of_emitted(self, num_accepted: int) -> TokenLogprobs:
        """Of the token behind the accepted ones."""
        return TokenLogprobs(self.emitted[num_accepted], self.top[num_accepted])


@dataclass(frozen=True, slots=True)
class DraftBlock:
    """Tokens guessed to follow the first ``base_len`` tokens of a session."""

    base_len: int
    epoch: int
    tokens: tuple[int, ...]
    proposal: Proposal

    @property
    def num_draft_tokens(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class TargetDraws:
    """Evidence of ``coupled`` and greedy: the target's own draw after each prefix of the draft."""

    tokens: tuple[int, ...]  # [num_draft_tokens + 1]


@dataclass(frozen=True, slots=True)
class RatioTest:
    """Evidence of ``ratio``: the scalars of min(1, p/q), a residual draw per position and the bonus draw."""

    target_logprobs: tuple[float, ...]  # [num_draft_tokens] log p(x_i); -inf where p is 0
    draft_logprobs: tuple[float, ...]  # [num_draft_tokens] log q(x_i) of the law as sent
    residual_tokens: tuple[int, ...]  # [num_draft_tokens] drawn from (p_i - q_i)+ normalised
    bonus_token: int

    @property
    def tokens(self) -> tuple[int, ...]:
        """[num_draft_tokens + 1] emitted when 0, 1, ... are accepted."""
        return (*self.residual_tokens, self.bonus_token)


@dataclass(frozen=True, slots=True)
class BlockTest:
    """Evidence of ``block``: the chance of each length of the draft and the draw that would follow it."""

    accept_probs: tuple[float, ...]  # [num_draft_tokens] h_i for i = 1, 2, ... tokens accepted
    tokens: tuple[int, ...]  # [num_draft_tokens + 1] emitted when i = 0, 1, ... are accepted


Outcome = TargetDraws | RatioTest | BlockTest


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the target says of one draft. Tens of bytes; never logits."""

    base_len: int  # committed length the draft followed
    epoch: int
    outcome: Outcome
    logprobs: DraftLogprobs | None = None  # of a session that asks for them
    prompt_logprobs: tuple[
        TokenLogprobs, ...
    ] = ()  # [prompt_len - 1] likewise, in the first answer


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a round commits: ``num_accepted`` draft tokens, then ``next_token``."""

    num_accepted: int
    next_token: int
    kind: TokenKind  # of next_token: RECOVERED, BONUS or PLAIN


@dataclass(frozen=True, slots=True)
class CommittedToken:
    """One token past the commit gate."""

    token: int
    kind: TokenKind
    logprobs: TokenLogprobs | None = None  # where they are asked for
