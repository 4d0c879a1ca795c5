"""The target role refuses what it cannot take, by name, and one session never hurts another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from specdec_core.errors import (
    InvalidArgumentError,
    InvariantError,
    OverloadedError,
    ProtocolError,
    StaleMessageError,
)
from specdec_core.messages import Close
from specdec_core.params import SamplingParams
from tests.support.table_model import TableModel
from tests.support.target_role import (
    GREEDY,
    PROMPT,
    draws,
    extend,
    failure,
    greedy,
    opened,
    role_on,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdec_core.messages import Extend
    from specdec_core.models.forward import Segment


@pytest.mark.parametrize("epoch", [1, 3])
def test_another_epoch_is_stale_and_leaves_a_later_one_alone(epoch: int) -> None:
    role = role_on(TableModel(1))
    role.submit(opened("s", epoch=2))

    role.submit(extend("s", 0, PROMPT, epoch=epoch))

    assert isinstance(failure(role.step()), StaleMessageError)
    assert role.num_sessions == (1 if epoch == 1 else 0)


def test_a_session_that_was_never_opened_is_stale() -> None:
    role = role_on(TableModel(1))

    role.submit(extend("s", 0, PROMPT))

    assert isinstance(failure(role.step()), StaleMessageError)


def test_a_gap_behind_the_tokens_held_is_stale_and_closes_the_session() -> None:
    model = TableModel(1)
    role = role_on(model)
    role.submit(opened("s"))
    role.submit(extend("s", 0, PROMPT))
    role.step()

    role.submit(extend("s", 4, (7,)))

    with pytest.raises(StaleMessageError, match="base_len 4 is beyond the 3 tokens held"):
        raise failure(role.step())
    assert (role.num_sessions, model.live) == (0, set())


@pytest.mark.parametrize(
    "message", [extend("s", 0, ()), extend("s", 0, PROMPT, gap=1), extend("s", 0, PROMPT, gap=-1)]
)
def test_a_draft_that_does_not_follow_its_tokens_breaks_the_contract(message: Extend) -> None:
    role = role_on(TableModel(1))
    role.submit(opened("s"))

    role.submit(message)

    assert isinstance(failure(role.step()), ProtocolError)


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (extend("s", 0, (3, 12)), "tokens: token id 12 is outside the vocabulary of 12"),
        (extend("s", 0, (3, -1)), "tokens: token id -1 is outside the vocabulary of 12"),
        (extend("s", 0, PROMPT, (5, 12)), "draft.tokens: token id 12 is outside"),
        (extend("s", 0, (3,) * 15, (5, 6)), "tokens: exceed the context of 16"),
    ],
)
def test_tokens_the_model_cannot_take_are_refused_by_field(message: Extend, problem: str) -> None:
    role = role_on(TableModel(1, max_context=16))
    role.submit(opened("s"))

    role.submit(message)

    with pytest.raises(InvalidArgumentError, match=problem):
        raise failure(role.step())


def test_a_draft_may_fill_the_context_exactly() -> None:
    role = role_on(TableModel(1, max_context=16))
    role.submit(opened("s"))

    role.submit(extend("s", 0, (3,) * 14, (5, 6)))

    assert len(draws(role.step()[0])) == 3


def test_more_sessions_than_allowed_are_refused() -> None:
    role = role_on(TableModel(1), max_sessions=1)
    role.submit(opened("first"))

    role.submit(opened("second"))

    with pytest.raises(OverloadedError, match="1 of 1 sessions are open"):
        raise failure(role.step())
    assert role.num_sessions == 1


def test_where_the_memory_is_full_only_the_youngest_session_fails() -> None:
    model = TableModel(1, kv_tokens=11)
    role = role_on(model)
    for name in ("old", "middle", "young"):
        role.submit(opened(name))
    for name in ("young", "old", "middle"):  # waits longest, but is youngest
        role.submit(extend(name, 0, PROMPT, (5,)))

    overloaded = role.step()
    answers = role.step()

    assert isinstance(failure(overloaded), OverloadedError)
    assert [reply.session_id for reply in overloaded] == ["young"]
    assert [reply.session_id for reply in answers] == ["old", "middle"]
    assert (role.num_sessions, len(model.live)) == (2, 2)


def test_a_session_whose_options_leave_no_token_does_not_hurt_its_neighbours() -> None:
    model = TableModel(1)
    role = role_on(model)
    dead_end = SamplingParams(allowed_token_ids=(5,), bad_words=((4, 5),))
    for name, params in (("before", GREEDY), ("broken", dead_end), ("after", GREEDY)):
        role.submit(opened(name, params=params))
        role.submit(extend(name, 0, PROMPT))

    failed, *answers = role.step()

    with pytest.raises(InvalidArgumentError, match="allowed_token_ids: leaves no token"):
        raise failure([failed])
    assert failed.session_id == "broken"
    assert [reply.session_id for reply in answers] == ["before", "after"]
    assert {draws(reply) for reply in answers} == {greedy(model, PROMPT, 1)}
    assert (role.num_sessions, len(model.live)) == (2, 2)


class BrokenAtNine(TableModel):
    """Gives NaN behind token 9."""

    def forward(self, segments: Sequence[Segment]) -> torch.Tensor:
        logits = super().forward(segments)
        logits[[segment.tokens[-1] == 9 for segment in segments]] = torch.nan
        return logits


def test_a_session_the_model_breaks_on_does_not_hurt_its_neighbours() -> None:
    role = role_on(BrokenAtNine(1))
    for name, last in (("sound", 7), ("broken", 9)):
        role.submit(opened(name))
        role.submit(extend(name, 0, (3, last)))

    failed, answer = role.step()

    assert isinstance(failure([failed]), InvariantError)
    assert (failed.session_id, answer.session_id) == ("broken", "sound")


def test_everything_returns_to_zero_after_all_sessions_close() -> None:
    model = TableModel(1)
    role = role_on(model)
    for number in range(8):
        role.submit(opened(str(number)))
        role.submit(extend(str(number), 0, PROMPT, (5,)))
    role.step()

    for number in range(8):
        role.submit(Close(str(number), 1))

    assert (role.num_sessions, model.live, role.has_work) == (0, set(), False)
