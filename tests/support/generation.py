"""Runs generations through the in-process engine the way tests want them: parameters in, final session states out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdec_core.draft_length.fixed import Fixed
from specdec_core.engine import Engine
from specdec_core.roles.drafter import DrafterRole
from specdec_core.roles.target import TargetRole
from specdec_core.session.events import Emit, Finish
from specdec_core.session.request import ServedModel, prepare
from specdec_core.structured import NO_GRAMMARS
from specdec_core.types import NoiseKey

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdec_core.drafters.base import Drafter
    from specdec_core.models.forward import CausalModel
    from specdec_core.params import GenerationParams
    from specdec_core.session.request import Detokenizer
    from specdec_core.session.state import SessionState
    from specdec_core.structured import GrammarBackend


SPECIAL = 11


@dataclass(frozen=True)
class Wish:
    session_id: str
    prompt: tuple[int, ...]
    params: GenerationParams


def letters(tokens: Sequence[int]) -> str:
    """The text of test tokens: a, b, c, ..."""
    return "".join(chr(ord("a") + token % 26) for token in tokens)


def detokenize(tokens: Sequence[int], *, skip_special_tokens: bool) -> str:
    """``letters`` for a served model; token 11 is special, and reads ``<l>`` where it is not left out."""
    shown = "" if skip_special_tokens else "<l>"
    return "".join(shown if token == SPECIAL else letters([token]) for token in tokens)


def served(
    model: CausalModel,
    max_draft_tokens: int = 32,
    decode: Detokenizer = detokenize,
    *,
    grammars: GrammarBackend = NO_GRAMMARS,
) -> ServedModel:
    spec = model.spec
    return ServedModel(
        spec.vocab_size,
        spec.max_context,
        spec.eos_token_ids,
        max_draft_tokens,
        Fixed,
        decode,
        grammars,
    )


def generate(
    model: CausalModel,
    drafter: Drafter | None,
    wishes: Sequence[Wish],
    *,
    token_budget: int = 512,
    grammars: GrammarBackend = NO_GRAMMARS,
) -> dict[str, SessionState]:
    """Run all wishes together to their end, checking every state on the way and that text equals the tokens delivered."""
    target = TargetRole(model, max_sessions=1024, token_budget=token_budget, grammars=grammars)
    drafting = DrafterRole(drafter, max_sessions=1024) if drafter else None
    engine = Engine(target, drafting)
    finished: dict[str, SessionState] = {}
    emitted: dict[str, list[int]] = {wish.session_id: [] for wish in wishes}
    specs = [
        prepare(
            wish.session_id,
            wish.prompt,
            wish.params,
            model=served(model, grammars=grammars),
            noise=NoiseKey(wish.params.seed or 0),
        )
        for wish in wishes
    ]
    for delivered in engine.run(specs):
        delivered.state.check_integrity()
        match delivered.effect:
            case Emit(tokens=tokens):
                emitted[delivered.state.spec.session_id] += [
                    committed.token for committed in tokens
                ]
            case Finish():
                finished[delivered.state.spec.session_id] = delivered.state
    assert target.num_sessions == 0
    assert drafting is None or drafting.num_sessions == 0
    for session_id, state in finished.items():
        assert tuple(emitted[session_id]) == state.output
    return finished
