"""What a session is told at birth, and what it knows of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdec_core.errors import InvariantError
from specdec_core.session.commit_gate import GateRules, GateState
from specdec_core.session.phases import Phase

if TYPE_CHECKING:
    from specdec_core.draft_length.base import DraftLengthPolicy, DraftLengthState, RoundObservation
    from specdec_core.params import SamplingParams
    from specdec_core.session.commit_gate import TextDecoder
    from specdec_core.stats import SpeculationStats
    from specdec_core.types import AcceptanceRule, DraftBlock, FinishReason, NoiseKey


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """Everything fixed for the life of a session; prompt and parameters are validated already."""

    session_id: str
    prompt: tuple[int, ...]
    params: SamplingParams  # stop_token_ids hold the model's end-of-sequence ids
    rule: AcceptanceRule
    noise: NoiseKey
    vocab_size: int
    max_context: int
    max_draft_tokens: int  # 0: no drafter is opened
    draft_length: DraftLengthPolicy
    decode: TextDecoder

    @property
    def gate_rules(self) -> GateRules:
        room = self.max_context - len(self.prompt)
        return GateRules(self.params, min(self.params.max_tokens, room), self.decode)


@dataclass(frozen=True, slots=True)
class PeerView:
    """What this session knows of a peer. A peer that is not open holds nothing."""

    epoch: int = 0
    is_open: bool = False
    synced_len: int = 0  # length of the committed prefix that the peer holds (target: in its KV)


@dataclass(frozen=True, slots=True)
class SessionState:
    """One session between two inputs."""

    spec: SessionSpec
    phase: Phase
    tokens: tuple[int, ...]  # committed: prompt and output
    target: PeerView
    drafter: PeerView
    draft: DraftBlock | None  # being verified
    gate: GateState
    draft_length: DraftLengthState
    last_round: RoundObservation
    stats: SpeculationStats
    target_losses: int = 0  # since the last commit
    finish: FinishReason | None = None

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens) - len(self.spec.prompt)

    @property
    def output(self) -> tuple[int, ...]:
        return self.tokens[len(self.spec.prompt) :]

    def check_integrity(self) -> None:
        """Raise InvariantError unless counts, lengths and phase agree."""
        self.stats.check_integrity()
        facts = {
            "the gate counts every output token": self.gate.num_output_tokens
            == self.num_output_tokens,
            "stats count every output token": self.stats.num_committed_tokens
            == self.num_output_tokens,
            "a finished session has a reason": (self.phase is Phase.FINISHED)
            == (self.finish is not None),
            "a draft is held only while it is verified": (self.draft is not None)
            == (self.phase is Phase.VERIFYING),
            "the target lacks at least the last token": self.target.synced_len < len(self.tokens),
            "the drafter knows committed tokens only": self.drafter.synced_len <= len(self.tokens),
            "the output keeps to its limit": self.num_output_tokens
            <= self.spec.gate_rules.max_output_tokens,
        }
        if broken := [fact for fact, holds in facts.items() if not holds]:
            raise InvariantError(f"session {self.spec.session_id}: not true that {broken[0]}")
