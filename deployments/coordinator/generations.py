"""All generations of one coordinator replica, from a client's call to the events it is told. Knows no Ray."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deployments.coordinator.merged import merged
from deployments.coordinator.session_driver import SessionDriver
from deployments.generation import SessionFactory, default_speculation, model_info
from specdec_core.draft_length.fixed import Fixed
from specdec_core.scheduling.admission import check_admission
from specdec_core.session.events import Finish
from specdec_core.session.request import ServedModel

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from deployments.assembly import TargetText
    from deployments.config import Config
    from deployments.coordinator.session_driver import Peers
    from deployments.coordinator.shadow import ShadowCheck
    from deployments.locator import TargetFacts, TargetLocator
    from deployments.transport.api_records import GenerationCall, GenerationEvent, ModelInfo
    from specdec_core.models.tokenizer import Tokenizer
    from specdec_core.params import SpeculationParams


@dataclass(frozen=True, slots=True)
class Identifiers:
    """Sources of what must not repeat."""

    new_session_id: Callable[[], str]
    random_bits: Callable[[int], int]


class Generations:
    """Admits calls and runs their sessions."""

    def __init__(
        self,
        config: Config,
        text: TargetText,
        *,
        targets: TargetLocator,
        peers: Peers,
        identifiers: Identifiers,
        shadow: ShadowCheck,
    ) -> None:
        self._config = config
        self._text = text
        self._targets = targets
        self._peers = peers
        self._identifiers = identifiers
        self._shadow = shadow
        self._facts: TargetFacts | None = None
        self._num_sessions = 0

    @property
    def tokenizer(self) -> Tokenizer:
        return self._text.tokenizer

    @property
    def num_sessions(self) -> int:
        """Sessions under way: one per sample of each generation."""
        return self._num_sessions

    @property
    def default_speculation(self) -> SpeculationParams:
        """What a request gets that says nothing of speculation."""
        return default_speculation(self._config)

    async def generate(self, call: GenerationCall) -> AsyncGenerator[GenerationEvent, None]:
        """Run one generation with all its samples; close the iterator to cancel it.

        Raises:
            SpecdecError: if the call is refused, or the generation cannot go on.
        """
        max_sessions = self._config.coordinator.max_sessions
        check_admission(self._num_sessions + call.params.n - 1, max_sessions=max_sessions)
        self._num_sessions += call.params.n
        try:
            factory = await self._factory()
            generation = await asyncio.to_thread(factory.make, call)
            for event in generation.opening():
                yield event
            drivers = [SessionDriver(spec, self._peers).run() for spec in generation.specs]
            async with aclosing(merged(drivers)) as outputs:
                async for state, output in outputs:
                    if isinstance(output, Finish):
                        self._shadow.consider(state, num_sessions=self._num_sessions)
                    yield generation.told(state, output)
        finally:
            self._num_sessions -= call.params.n

    async def describe(self) -> ModelInfo:
        """The model served and how it is speculated on."""
        return model_info(self._config, await self._describe_target(), self.tokenizer)

    async def _factory(self) -> SessionFactory:
        facts = await self._describe_target()
        model = ServedModel(
            vocab_size=facts.vocab_size,
            max_context=facts.max_context,
            eos_token_ids=facts.eos_token_ids,
            max_draft_tokens=self._config.max_draft_tokens,
            draft_length=Fixed,
            decode=self.tokenizer.decode,
            grammars=self._text.grammars,
        )
        return SessionFactory(
            self.tokenizer, model, self._identifiers.new_session_id, self._identifiers.random_bits
        )

    async def _describe_target(self) -> TargetFacts:
        if self._facts is None:
            self._facts = await self._targets.describe()
        return self._facts
