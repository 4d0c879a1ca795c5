"""One finished generation as a client saw it, and the laws its counters must keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from deployments.transport.api_records import Finished, Produced, Started
from specdec_core.errors import InvariantError, ProtocolError
from specdec_core.types import FinishReason, TokenKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from deployments.transport.api_records import GenerationCall, GenerationEvent, ModelInfo
    from specdec_core.stats import SpeculationStats
    from specdec_core.types import CommittedToken


class Subject(Protocol):
    """The system under test."""

    def describe(self) -> ModelInfo:
        """What it serves."""
        ...

    def generate_many(
        self, calls: Sequence[GenerationCall], *, at_once: int
    ) -> list[list[GenerationEvent]]:
        """The events of each call, in order of the calls, with at most ``at_once`` under way.

        Raises:
            SpecdecError: the first that a generation ended with.
        """
        ...


@dataclass(frozen=True, slots=True)
class Run:
    """All that a client was told of one generation."""

    call: GenerationCall
    started: Started
    produced: tuple[Produced, ...]
    finished: Finished

    @property
    def delivered(self) -> tuple[CommittedToken, ...]:
        return tuple(token for each in self.produced for token in each.tokens)

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(each.token for each in self.delivered)

    @property
    def stats(self) -> SpeculationStats:
        return self.finished.speculation


def run_of(call: GenerationCall, events: Iterable[GenerationEvent]) -> Run:
    """Gather the events of a call.

    Raises:
        ProtocolError: if they do not begin, or do not end, as a generation does.
    """
    first, *others = events
    last = others.pop() if others else first
    produced = tuple(each for each in others if isinstance(each, Produced))
    if not (isinstance(first, Started) and isinstance(last, Finished)) or produced != (*others,):
        raise ProtocolError("a generation must start once, produce tokens, and finish once")
    return Run(call, first, produced, last)


def broken_laws(run: Run, eos_token_ids: Iterable[int]) -> list[str]:
    """What this run's counters, usage and tokens contradict; empty for a sound one. Stop strings are not looked at."""
    laws = {**_delivery_laws(run), **_round_laws(run), **_ending_laws(run, eos_token_ids)}
    broken = [law for law, holds in laws.items() if not holds]
    try:
        run.stats.check_integrity()
    except InvariantError as error:
        broken.append(str(error))
    return broken


def _delivery_laws(run: Run) -> dict[str, bool]:
    num_delivered = len(run.delivered)
    places: list[int] = []
    for each in run.produced:
        places += range(each.first_index, each.first_index + len(each.tokens))
    return {
        "tokens delivered == usage": num_delivered == run.finished.completion_tokens,
        "tokens delivered == tokens committed": num_delivered == run.stats.num_committed_tokens,
        "every token has its own place": places == [*range(num_delivered)],
        "prompt tokens agree": run.started.prompt_tokens == run.finished.prompt_tokens,
    }


def _round_laws(run: Run) -> dict[str, bool]:
    """Every round commits its accepted tokens and one of the target's own; only the last may have been cut."""
    stats, kinds = run.stats, [each.kind for each in run.delivered]
    num_own = sum(kind is not TokenKind.ACCEPTED for kind in kinds)
    num_cut = stats.num_accepted_tokens + stats.num_rounds - stats.num_committed_tokens
    longest = run.call.params.speculation.max_draft_tokens
    ends_accepted = bool(kinds) and kinds[-1] is TokenKind.ACCEPTED
    return {
        "committed == accepted + rounds before cuts": 0 <= num_cut <= longest
        and (num_cut > 0) == ends_accepted,
        "one token of the target's own a round": num_own == stats.num_rounds - ends_accepted,
        "drafted <= drafts * max_draft_tokens": stats.num_draft_tokens
        <= stats.num_drafts * longest,
        "plain decoding drafts nothing": longest > 0 or {*kinds} <= {TokenKind.PLAIN},
    }


def _ending_laws(run: Run, eos_token_ids: Iterable[int]) -> dict[str, bool]:
    sampling, tokens = run.call.params.sampling, run.tokens
    stops = set(sampling.with_eos(eos_token_ids).stop_token_ids)
    is_stopped = bool(tokens) and tokens[-1] in stops
    return {
        "nothing follows an end-of-sequence token": stops.isdisjoint(tokens[:-1]),
        "stopped == ended by a stop token": is_stopped
        == (run.finished.finish_reason is FinishReason.STOP),
        "no more than max_tokens": len(tokens) <= sampling.max_tokens,
    }
