"""The target role: what it answers, and what each message does to the session it is for."""

from __future__ import annotations

from specdec_core.errors import StaleMessageError
from specdec_core.messages import Close, Failed, Verified
from specdec_core.types import Evidence, TargetDraws
from tests.support.table_model import TableModel
from tests.support.target_role import PROMPT, draws, extend, failure, greedy, opened, role_on


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


def test_an_open_repeated_under_its_epoch_is_stale_and_closes_the_session() -> None:
    model = TableModel(1)
    role = role_on(model)
    role.submit(opened("s"))

    role.submit(opened("s"))

    assert isinstance(failure(role.step()), StaleMessageError)
    assert (role.num_sessions, model.live) == (0, set())


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
