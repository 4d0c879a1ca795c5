"""The in-process server: the same API on ``specdec_core.engine``, without Ray or gRPC."""

from __future__ import annotations

import secrets
import uuid
from collections import deque
from typing import TYPE_CHECKING

from deployments.assembly import load_drafter, load_target
from deployments.config import NoDrafterConfig
from deployments.generation import SessionFactory, model_info
from specdec_core.draft_length.fixed import Fixed
from specdec_core.engine import Engine
from specdec_core.session.request import ServedModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from deployments.config import Config
    from deployments.generation import Generation
    from deployments.transport.api_records import GenerationCall, GenerationEvent, ModelInfo


class LocalServer:
    """A target and a drafter in this process."""

    def __init__(self, config: Config, progress: Callable[[str], None]) -> None:
        """Load what the configuration names; ``progress`` gets a line before anything slow."""
        target = load_target(config, progress)
        tokenizer = target.text.tokenizer
        drafter = (
            None
            if isinstance(config.drafter, NoDrafterConfig)
            else load_drafter(config, config.drafter, progress)
        )
        self._info = model_info(config, target.facts, tokenizer)
        self._max_sessions = config.target.max_sessions
        self._engine = Engine(target.role, drafter)
        model = ServedModel(
            vocab_size=target.facts.vocab_size,
            max_context=target.facts.max_context,
            eos_token_ids=target.facts.eos_token_ids,
            max_draft_tokens=config.max_draft_tokens,
            draft_length=Fixed,
            decode=tokenizer.decode,
            grammars=target.text.grammars,
        )
        self._factory = SessionFactory(tokenizer, model, lambda: uuid.uuid4().hex, secrets.randbits)

    def describe(self) -> ModelInfo:
        """The model served and how it is speculated on."""
        return self._info

    def generate(self, call: GenerationCall) -> Iterator[GenerationEvent]:
        """Run one generation with all its samples; closing the iterator cancels it.

        Raises:
            SpecdecError: if the call is refused, or the generation cannot go on.
        """
        generation = self._factory.make(call)
        yield from generation.opening()
        try:
            for delivered in self._engine.run(generation.specs):
                yield generation.told(delivered.state, delivered.effect)
        finally:
            self._cancel([generation])

    def generate_many(
        self, calls: Sequence[GenerationCall], *, at_once: int
    ) -> list[list[GenerationEvent]]:
        """Run generations in the same steps, at most ``at_once`` sessions under way; the events of each call, in order of the calls.

        Raises:
            SpecdecError: the first that a call is refused for, or a generation ends with.
        """
        generations = [self._factory.make(call) for call in calls]
        events = [list(generation.opening()) for generation in generations]
        places = {
            spec.session_id: place
            for place, generation in enumerate(generations)
            for spec in generation.specs
        }
        waiting = deque(spec for generation in generations for spec in generation.specs)
        try:
            while waiting or self._engine.num_sessions:
                while waiting and self._engine.num_sessions < min(at_once, self._max_sessions):
                    self._engine.start(waiting.popleft())
                for delivered in self._engine.step():
                    place = places[delivered.state.spec.session_id]
                    event = generations[place].told(delivered.state, delivered.effect)
                    events[place].append(event)
        finally:
            self._cancel(generations)
        return events

    def _cancel(self, generations: Sequence[Generation]) -> None:
        for generation in generations:
            for spec in generation.specs:
                self._engine.cancel(spec.session_id)
        self._engine.step()  # what cancelling left to deliver is nobody's
