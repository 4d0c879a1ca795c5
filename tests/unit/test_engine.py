"""The in-process driver: sessions come, are cancelled, fail and go, and leave nothing behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from specdec_core import reference
from specdec_core.drafters.base import Draft
from specdec_core.drafters.lm import LmDrafter
from specdec_core.engine import Delivered, Engine
from specdec_core.errors import InvalidArgumentError
from specdec_core.params import GenerationParams, SamplingParams, SpeculationParams
from specdec_core.roles.drafter import DrafterRole
from specdec_core.roles.target import TargetRole
from specdec_core.session.events import Emit, Finish
from specdec_core.session.request import prepare
from specdec_core.stats import FallbackReason
from specdec_core.types import AcceptanceRule, FinishReason, NoiseKey, OneHot
from tests.support.generation import Wish, generate, served
from tests.support.table_model import TableModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdec_core.drafters.base import DraftContext
    from specdec_core.session.state import SessionSpec

PROMPT = (3, 1, 4)
GREEDY = SamplingParams(temperature=0.0, max_tokens=20)


class Stubborn:
    """Always proposes the same tokens."""

    def __init__(self, *tokens: int) -> None:
        self._tokens = tokens

    def propose(self, contexts: Sequence[DraftContext]) -> list[Draft]:
        return [Draft(self._tokens[: each.num_draft_tokens], OneHot()) for each in contexts]

    def forget(self, session_id: str) -> None:
        del session_id


class Rig:
    """An engine whose roles can be looked into."""

    def __init__(self, *, max_drafting: int = 8) -> None:
        self.model, self.draft_model = TableModel(1), TableModel(1)
        self.target = TargetRole(self.model, max_sessions=8, token_budget=64)
        self.drafter = DrafterRole(
            LmDrafter(self.draft_model, vocab_size=12), max_sessions=max_drafting
        )
        self.engine = Engine(self.target, self.drafter)

    def spec(self, name: str, params: SamplingParams = GREEDY) -> SessionSpec:
        wanted = GenerationParams(params, SpeculationParams(3))
        return prepare(name, PROMPT, wanted, model=served(self.model), noise=NoiseKey(7))

    @property
    def held(self) -> tuple[int, int, int]:
        return self.engine.num_sessions, self.target.num_sessions, self.drafter.num_sessions


def plain(model: TableModel, params: SamplingParams = GREEDY) -> tuple[int, ...]:
    return tuple(reference.plain(model.logits, PROMPT, params, NoiseKey(7), 256))


def reasons(delivered: Sequence[Delivered]) -> list[FinishReason]:
    return [each.effect.reason for each in delivered if isinstance(each.effect, Finish)]


def test_a_session_runs_to_its_end_and_leaves_nothing() -> None:
    rig = Rig()

    delivered = list(rig.engine.run([rig.spec("s")]))

    tokens = [
        committed.token
        for each in delivered
        if isinstance(each.effect, Emit)
        for committed in each.effect.tokens
    ]
    assert tuple(tokens) == plain(rig.model)
    assert delivered[-1].effect == Finish(FinishReason.LENGTH, None)
    assert (rig.held, rig.model.live, rig.draft_model.live) == ((0, 0, 0), set(), set())


def test_a_drafter_equal_to_the_target_saves_rounds() -> None:
    rig = Rig()

    state = list(rig.engine.run([rig.spec("s")]))[-1].state

    assert state.stats.num_rounds == 6  # one plain, then four tokens a round


@pytest.mark.parametrize("steps", range(5))
def test_cancelling_at_any_step_frees_both_peers(steps: int) -> None:
    rig = Rig()
    rig.engine.start(rig.spec("s"))
    for _ in range(steps):
        rig.engine.step()
    assert rig.held == (1, 1, 1)

    rig.engine.cancel("s")

    assert (rig.held, rig.model.live, rig.draft_model.live) == ((0, 0, 0), set(), set())
    assert reasons(rig.engine.step()) == [FinishReason.CANCELLED]


def test_cancelling_an_unknown_session_is_ignored() -> None:
    rig = Rig()

    rig.engine.cancel("unknown")

    assert rig.engine.step() == []


def test_a_refusal_for_a_session_that_is_over_is_dropped() -> None:
    rig = Rig(max_drafting=0)
    rig.engine.start(rig.spec("over"))
    rig.engine.cancel("over")

    assert reasons(rig.engine.step()) == [FinishReason.CANCELLED]
    assert rig.held == (0, 0, 0)


def test_sessions_the_drafter_refuses_decode_plainly() -> None:
    rig = Rig(max_drafting=1)

    delivered = list(rig.engine.run([rig.spec("drafted"), rig.spec("plain")]))

    finals = {
        each.state.spec.session_id: each.state
        for each in delivered
        if isinstance(each.effect, Finish)
    }
    assert {state.output for state in finals.values()} == {plain(rig.model)}
    assert finals["plain"].stats.num_rounds > finals["drafted"].stats.num_rounds
    assert rig.held == (0, 0, 0)


def test_a_session_without_a_drafter_counts_why_it_went_without() -> None:
    model = TableModel(1)

    state = generate(model, None, [Wish("s", PROMPT, GenerationParams(GREEDY))])["s"]

    assert state.output == plain(model)
    assert state.stats.fallbacks == ((FallbackReason.DRAFTER_UNAVAILABLE, 18),)


@pytest.mark.parametrize("rule", AcceptanceRule)
def test_a_draft_into_a_dead_end_cannot_end_a_session_that_never_goes_there(
    rule: AcceptanceRule,
) -> None:
    """Token 5 may be followed by nothing, but the target draws 4 for ever."""
    params = SamplingParams(
        temperature=0.0,
        max_tokens=6,
        allowed_token_ids=(4, 5),
        bad_words=((5, 4), (5, 5)),
        logit_bias=((4, 50.0),),
    )
    model = TableModel(1)
    wish = Wish("s", PROMPT, GenerationParams(params, SpeculationParams(2, rule), 7))

    state = generate(model, Stubborn(5, 4), [wish])["s"]

    assert (state.output, state.finish) == ((4,) * 6, FinishReason.LENGTH)


def test_a_dead_end_that_plain_decoding_meets_too_ends_the_session_by_name() -> None:
    params = SamplingParams(allowed_token_ids=(5,), bad_words=((5, 5),))
    rig = Rig()

    finish = list(rig.engine.run([rig.spec("s", params)]))[-1].effect

    assert isinstance(finish, Finish)
    assert finish.reason is FinishReason.ERROR
    with pytest.raises(InvalidArgumentError, match="allowed_token_ids: leaves no token"):
        raise finish.error or AssertionError
    assert rig.held == (0, 0, 0)


@pytest.mark.parametrize(
    ("params", "prompt", "field"),
    [
        (GenerationParams(), (), "prompt"),
        (GenerationParams(), (12,), "prompt"),
        (GenerationParams(SamplingParams(stop_token_ids=(12,))), PROMPT, "stop_token_ids"),
        (GenerationParams(speculation=SpeculationParams(5)), PROMPT, "max_draft_tokens"),
    ],
)
def test_a_request_the_model_cannot_serve_is_refused_by_field(
    params: GenerationParams, prompt: tuple[int, ...], field: str
) -> None:
    model = served(TableModel(1), max_draft_tokens=4)

    with pytest.raises(InvalidArgumentError) as raised:
        prepare("s", prompt, params, model=model, noise=NoiseKey(7))

    assert raised.value.field == field


def test_where_no_drafter_is_deployed_any_wish_to_draft_decodes_plainly() -> None:
    model = served(TableModel(1), max_draft_tokens=0)

    spec = prepare("s", PROMPT, GenerationParams(), model=model, noise=NoiseKey(7))

    assert spec.max_draft_tokens == 0
