"""The target role: what each message does to the sessions it holds, and that one session never hurts another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from specdec_core import reference
from specdec_core.errors import (
    InvalidArgumentError,
    InvariantError,
    OverloadedError,
    ProtocolError,
    SpecdecError,
    StaleMessageError,
)
from specdec_core.messages import Close, Extend, Failed, Open, Verified
from specdec_core.params import SamplingParams
from specdec_core.roles.target import TargetRole
from specdec_core.types import (
    AcceptanceRule,
    Coupled,
    DraftBlock,
    Evidence,
    NoiseKey,
    TargetDraws,
)
from tests.support.table_model import TableModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdec_core.messages import RoleReply
    from specdec_core.models.forward import Segment

GREEDY = SamplingParams(temperature=0.0)
PROMPT = (3, 1, 4)


def role_on(model: TableModel, *, max_sessions: int = 8, token_budget: int = 64) -> TargetRole:
    return TargetRole(model, max_sessions=max_sessions, token_budget=token_budget)


def opened(name: str, epoch: int = 1, params: SamplingParams = GREEDY) -> Open:
    return Open(name, epoch, len(PROMPT), params, AcceptanceRule.COUPLED, NoiseKey(7))


def extend(
    name: str,
    base_len: int,
    tokens: tuple[int, ...],
    draft: tuple[int, ...] = (),
    *,
    epoch: int = 1,
    gap: int = 0,
) -> Extend:
    block = DraftBlock(base_len + len(tokens) + gap, 40, draft, Coupled())
    return Extend(name, epoch, base_len, tokens, block)


def greedy(model: TableModel, tokens: Sequence[int], count: int) -> tuple[int, ...]:
    """What the model draws behind ``tokens``, from the reference."""
    params = SamplingParams(temperature=0.0, max_tokens=count)
    return tuple(reference.plain(model.logits, tokens, params, NoiseKey(7), 10**6))


def draws(reply: RoleReply) -> tuple[int, ...]:
    assert isinstance(reply, Verified)
    assert isinstance(reply.evidence.outcome, TargetDraws)
    return reply.evidence.outcome.tokens


def failure(replies: list[RoleReply]) -> SpecdecError:
    (reply,) = replies
    assert isinstance(reply, Failed)
    return reply.error


def test_a_prefix_is_answered_with_the_targets_own_draw_and_stamp() -> None:
    model = TableModel(1)
    role = role_on(model)
    role.submit(opened("s", epoch=3))
    role.submit(extend("s", 0, PROMPT, epoch=3))

    (first,) = greedy(model, PROMPT, 1)
    assert role.step() == [Verified("s", Evidence(3, 3, TargetDraws((first,))))]
    assert not role.has_work


def test_a_draft_is_answered_with_a_draw_behind_each_of_its_prefixes() -> None:
    model = TableModel(1)
    role = role_on(model)
    role.submit(opened("s"))
    role.submit(extend("s", 0, PROMPT, (5, 6)))

    (reply,) = role.step()

    prefixes = [PROMPT, (*PROMPT, 5), (*PROMPT, 5, 6)]
    assert draws(reply) == tuple(greedy(model, prefix, 1)[0] for prefix in prefixes)


def test_a_rejected_draft_is_rolled_back_by_the_next_base_len() -> None:
    model = TableModel(1)
    role = role_on(model)
    role.submit(opened("s"))
    role.submit(extend("s", 0, PROMPT, (5, 6)))
    role.step()

    role.submit(extend("s", 4, (9,)))  # 5 accepted, 6 replaced by 9

    assert draws(role.step()[0]) == greedy(model, (*PROMPT, 5, 9), 1)


def test_a_repeated_extend_gives_the_same_answer() -> None:
    role = role_on(TableModel(1))
    role.submit(opened("s"))
    message = extend("s", 0, PROMPT, (5, 6))
    role.submit(message)
    role.submit(message)
    first = role.step()

    role.submit(message)

    assert role.step() == first
    assert len(first) == 1


def test_a_long_prefix_is_read_in_chunks_beside_a_session_that_verifies() -> None:
    model = TableModel(1)
    role = role_on(model, token_budget=4)
    long_prompt = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3)
    role.submit(opened("short"))
    role.submit(extend("short", 0, PROMPT))
    assert [reply.session_id for reply in role.step()] == ["short"]
    role.submit(opened("long"))
    role.submit(extend("long", 0, long_prompt))
    role.submit(extend("short", 3, (7,)))

    answers = []
    while role.has_work:
        answers.append([(reply.session_id, draws(reply)) for reply in role.step()])

    assert answers == [
        [("short", greedy(model, (*PROMPT, 7), 1))],
        [],
        [("long", greedy(model, long_prompt, 1))],
    ]


def test_a_chunk_without_an_answer_leaves_nothing_to_deliver() -> None:
    role = role_on(TableModel(1), token_budget=2)
    role.submit(opened("s"))
    role.submit(extend("s", 0, PROMPT))

    assert role.step() == []
    assert role.has_work


def test_an_extend_may_replace_one_that_is_half_read() -> None:
    model = TableModel(1)
    role = role_on(model, token_budget=2)
    role.submit(opened("s"))
    role.submit(extend("s", 0, (3, 1, 4, 1, 5)))
    role.step()

    role.submit(extend("s", 1, (9, 2)))

    assert draws(role.step()[0]) == greedy(model, (3, 9, 2), 1)


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


def test_reopening_under_a_higher_epoch_drops_what_was_held() -> None:
    model = TableModel(1)
    role = role_on(model, max_sessions=1)
    role.submit(opened("s"))
    role.submit(extend("s", 0, PROMPT))
    role.submit(opened("s", epoch=2))

    assert not role.has_work
    assert (role.num_sessions, len(model.live)) == (1, 1)
    role.submit(extend("s", 0, (9, 2), epoch=2))
    assert draws(role.step()[0]) == greedy(model, (9, 2), 1)


def test_an_open_of_an_older_epoch_does_not_disturb_the_session() -> None:
    model = TableModel(1)
    role = role_on(model)
    role.submit(opened("s", epoch=2))
    role.submit(extend("s", 0, PROMPT, epoch=2))

    role.submit(opened("s", epoch=1))

    failed, answer = role.step()
    assert isinstance(failed, Failed)
    assert failed.epoch == 1
    assert draws(answer) == greedy(model, PROMPT, 1)


def test_closing_frees_the_memory_of_a_session_that_waits() -> None:
    model = TableModel(1)
    role = role_on(model)
    role.submit(opened("s"))
    role.submit(extend("s", 0, PROMPT))

    role.submit(Close("s", 1))

    assert (role.has_work, role.num_sessions, model.live) == (False, 0, set())


def test_closing_is_idempotent_and_ignores_unknown_sessions() -> None:
    role = role_on(TableModel(1))
    role.submit(opened("s"))

    for message in (Close("s", 1), Close("s", 1), Close("unknown", 1)):
        role.submit(message)

    assert role.step() == []


def test_closing_an_older_epoch_leaves_the_later_one() -> None:
    role = role_on(TableModel(1))
    role.submit(opened("s", epoch=2))
    role.submit(extend("s", 0, PROMPT, epoch=2))

    role.submit(Close("s", 1))

    assert len(role.step()) == 1
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
