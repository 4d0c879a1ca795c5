"""What a generation amounts to: one JSON object, or a line for a person."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, assert_never

from deployments.transport.api_records import Finished, Produced, Prompted, Started
from specdec_core.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from deployments.transport.api_records import GenerationEvent
    from specdec_core.stats import SpeculationStats
    from specdec_core.types import CommittedToken


@dataclass(slots=True)
class Report:
    """Gathers the events of a generation of one sample and when they came."""

    clock: Callable[[], float]  # seconds
    started_s: float = 0.0
    first_s: float = 0.0
    finished_s: float = 0.0
    text: str = ""
    tokens: list[CommittedToken] = field(default_factory=list)
    seed: int = 0
    finished: Finished | None = None

    def follow(self, events: Iterator[GenerationEvent]) -> Iterator[str]:
        """Consume the events; yields the text as it comes."""
        self.started_s = self.clock()
        for event in events:
            match event:
                case Started(seed=seed):
                    self.seed = seed
                case Prompted(text=text):
                    yield text
                case Produced(tokens=tokens, text=text):
                    self.first_s = self.first_s or self.clock()
                    self.tokens += tokens
                    self.text += text
                    yield text
                case Finished():
                    self.finished_s = self.clock()
                    self.finished = event
                case _ as unreachable:
                    assert_never(unreachable)

    @property
    def token_ids(self) -> list[int]:
        return [each.token for each in self.tokens]

    @property
    def outcome(self) -> Finished:
        if self.finished is None:
            raise ProtocolError("the stream ended before the generation did")
        return self.finished

    @property
    def tokens_per_s(self) -> float:
        """Tokens after the first over the time they took, so that reading the prompt does not count."""
        elapsed = self.finished_s - self.first_s
        return (len(self.tokens) - 1) / elapsed if elapsed > 0 else 0.0

    def as_json(self) -> dict[str, Any]:
        """The object that ``--json`` prints."""
        outcome = self.outcome
        return {
            "text": self.text,
            "token_ids": self.token_ids,
            "logprobs": [
                {"logprob": each.logprobs.logprob, "top": each.logprobs.top}
                for each in self.tokens
                if each.logprobs is not None
            ],
            "finish_reason": outcome.finish_reason.value,
            "seed": self.seed,
            "usage": {
                "prompt_tokens": outcome.prompt_tokens,
                "completion_tokens": outcome.completion_tokens,
            },
            "speculation": _speculation(outcome.speculation),
            "timing": {
                "ttft_s": round(self.first_s - self.started_s, 4),
                "total_s": round(self.finished_s - self.started_s, 4),
                "tokens_per_s": round(self.tokens_per_s, 3),
            },
        }

    def as_line(self) -> str:
        """One line for a person."""
        stats = self.outcome.speculation
        return (
            f"{len(self.tokens)} tokens, {self.tokens_per_s:.1f} tokens/s, first after "
            f"{self.first_s - self.started_s:.2f} s | {stats.num_rounds} rounds, acceptance rate "
            f"{stats.acceptance_rate:.2f}, {stats.acceptance_length:.2f} tokens a round | "
            f"{self.outcome.finish_reason.value}, seed {self.seed}"
        )


def _speculation(stats: SpeculationStats) -> dict[str, Any]:
    return {
        "rounds": stats.num_rounds,
        "num_drafts": stats.num_drafts,
        "num_draft_tokens": stats.num_draft_tokens,
        "num_accepted_tokens": stats.num_accepted_tokens,
        "acceptance_rate": round(stats.acceptance_rate, 4),
        "acceptance_length": round(stats.acceptance_length, 4),
        "num_accepted_tokens_per_pos": list(stats.num_accepted_tokens_per_pos),
        "fallbacks": {reason.value: count for reason, count in stats.fallbacks},
        "stale_messages": stats.num_stale_messages,
    }
