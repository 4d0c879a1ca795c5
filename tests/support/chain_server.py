"""A server that is right by construction, and can be made wrong in one place: a Markov chain, decoded in plain Python."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from deployments.transport.api_records import Finished, ModelInfo, Produced, Started
from specdec_core.params import SpeculationParams
from specdec_core.stats import SpeculationStats
from specdec_core.types import AcceptanceRule, CommittedToken, FinishReason, TokenKind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from deployments.transport.api_records import GenerationCall, GenerationEvent

    Law = Sequence[float]

EOS = 0
VOCAB_SIZE = 5


def _laws(seed: int) -> list[list[float]]:
    """One law for each previous token; every token is possible, the end less than others."""
    rng = random.Random(seed)
    rows = [
        [0.1, *(0.1 + rng.random() ** 3 for _ in range(1, VOCAB_SIZE))] for _ in range(VOCAB_SIZE)
    ]
    return [[weight / sum(row) for weight in row] for row in rows]


TARGET_LAWS, DRAFT_LAWS = _laws(1), _laws(2)


def residual(target: Law, draft: Law) -> list[float]:
    """(p - q)+, which makes the ratio rule lossless."""
    return [max(p - q, 0.0) for p, q in zip(target, draft, strict=True)]


def full_target(target: Law, _draft: Law) -> list[float]:
    """The well-known bug: resample from p."""
    return list(target)


def untouched(_call: GenerationCall, events: list[GenerationEvent]) -> list[GenerationEvent]:
    return events


@dataclass(frozen=True)
class ChainServer:
    """``recover`` is the law drawn from after a rejection; ``tamper`` changes what a client is told."""

    recover: Callable[[Law, Law], list[float]] = residual
    tamper: Callable[[GenerationCall, list[GenerationEvent]], list[GenerationEvent]] = untouched
    max_draft_tokens: int = 3

    def describe(self) -> ModelInfo:
        default = SpeculationParams(self.max_draft_tokens)
        return ModelInfo(
            name="chain",
            vocab_size=VOCAB_SIZE,
            max_context=4096,
            eos_token_ids=(EOS,),
            drafter="lm",
            drafter_model="",
            max_draft_tokens=self.max_draft_tokens,
            default_speculation=default,
            has_chat_template=False,
            version="0",
        )

    def generate_many(
        self, calls: Sequence[GenerationCall], *, at_once: int
    ) -> list[list[GenerationEvent]]:
        del at_once
        return [self.tamper(call, _Generation(call, self.recover).run()) for call in calls]


@dataclass
class _Generation:
    call: GenerationCall
    recover: Callable[[Law, Law], list[float]]
    tokens: list[int] = field(default_factory=list)
    events: list[GenerationEvent] = field(default_factory=list)
    stats: SpeculationStats = field(default_factory=SpeculationStats)

    def run(self) -> list[GenerationEvent]:
        """The first round is plain, as a session's is."""
        self.events.append(Started("chain", self.call.params.seed or 0, 1))
        self._commit(0, [], self._draw(TARGET_LAWS, self._last))
        while not self._finish:
            self._round()
        self.events.append(Finished(self._finish, 1, len(self.tokens), self.stats))
        return self.events

    @property
    def _last(self) -> int:
        return self.tokens[-1] if self.tokens else VOCAB_SIZE - 1

    @property
    def _finish(self) -> FinishReason | None:
        sampling = self.call.params.sampling
        if self.tokens[-1] == EOS and not sampling.ignore_eos:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self.tokens) == sampling.max_tokens else None

    def _round(self) -> None:
        room = self.call.params.sampling.max_tokens - len(self.tokens) - 1
        gamma = min(self.call.params.speculation.max_draft_tokens, room)
        is_coupled = self.call.params.speculation.rule is AcceptanceRule.COUPLED
        accepted: list[int] = []
        previous = self._last
        for index in range(gamma):
            place = len(self.tokens) + index
            stream = "token" if is_coupled else "draft"
            guess = self._draw(DRAFT_LAWS, previous, place, stream)
            drawn = self._verify(previous, guess, place, is_coupled=is_coupled)
            if drawn != guess:
                self._commit(gamma, accepted, drawn)
                return
            accepted.append(guess)
            previous = guess
        self._commit(gamma, accepted, self._draw(TARGET_LAWS, previous, len(self.tokens) + gamma))

    def _verify(self, previous: int, guess: int, place: int, *, is_coupled: bool) -> int:
        """The token to commit at this place: the guess if it is accepted."""
        if is_coupled or self.call.params.sampling.is_greedy:
            return self._draw(TARGET_LAWS, previous, place)
        target, draft = TARGET_LAWS[previous], DRAFT_LAWS[previous]
        if self._rng(place, "accept").random() * draft[guess] < target[guess]:
            return guess
        weights = self.recover(target, draft)
        return self._rng(place, "residual").choices(range(VOCAB_SIZE), weights)[0]

    def _draw(
        self,
        laws: Sequence[Law],
        previous: int,
        place: int | None = None,
        stream: str = "token",
    ) -> int:
        law = laws[previous]
        if self.call.params.sampling.is_greedy:
            return max(range(VOCAB_SIZE), key=law.__getitem__)
        rng = self._rng(len(self.tokens) if place is None else place, stream)
        return rng.choices(range(VOCAB_SIZE), law)[0]

    def _rng(self, place: int, stream: str) -> random.Random:
        return random.Random(f"{self.call.params.seed} {place} {stream}")

    def _commit(self, gamma: int, accepted: list[int], own: int) -> None:
        kinds = [TokenKind.ACCEPTED] * len(accepted)
        kind = TokenKind.BONUS if len(accepted) == gamma else TokenKind.RECOVERED
        kinds.append(kind if gamma else TokenKind.PLAIN)
        first, committed = len(self.tokens), []
        for token, each in zip([*accepted, own], kinds, strict=True):
            self.tokens.append(token)
            committed.append(CommittedToken(token, each))
            if self._finish:
                break
        self.events.append(Produced(first, tuple(committed), ""))
        self.stats = self.stats.with_round(gamma, len(accepted), len(committed))
