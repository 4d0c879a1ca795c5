from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_core.errors import InvalidArgumentError, InvariantError, OverloadedError
from specdec_core.scheduling.admission import check_admission
from specdec_core.scheduling.batching import Chunk, Work, plan_step


def verify(session_id: str, num_tokens: int) -> Work:
    return Work(session_id, num_tokens, num_tokens)


def after(waiting: list[Work], chunks: tuple[Chunk, ...]) -> list[Work]:
    """What still waits, in the same order."""
    taken = {chunk.session_id: chunk for chunk in chunks}
    assert len(taken) == len(chunks)
    assert set(taken) <= {work.session_id for work in waiting}
    left = []
    for work in waiting:
        chunk = taken.get(work.session_id)
        if chunk is None:
            left.append(work)
        elif chunk.is_last:
            assert chunk.num_tokens == work.num_tokens
        else:
            assert 0 < chunk.num_tokens <= work.num_tokens - work.num_tail
            left.append(replace(work, num_tokens=work.num_tokens - chunk.num_tokens))
    return left


def test_nothing_waiting_plans_an_empty_step() -> None:
    assert plan_step([], 16) == ()


def test_verifying_sessions_go_before_an_older_prompt() -> None:
    waiting = [Work("prompt", 100, 1), verify("a", 5), verify("b", 5)]

    assert plan_step(waiting, 16) == (
        Chunk("a", 5, is_last=True),
        Chunk("b", 5, is_last=True),
        Chunk("prompt", 6, is_last=False),
    )


def test_a_prompt_keeps_a_quarter_of_a_full_budget() -> None:
    waiting = [*(verify(f"v{i}", 4) for i in range(5)), Work("prompt", 100, 1)]

    assert plan_step(waiting, 16) == (
        Chunk("v0", 4, is_last=True),
        Chunk("v1", 4, is_last=True),
        Chunk("v2", 4, is_last=True),
        Chunk("prompt", 4, is_last=False),
    )


def test_a_short_prompt_keeps_no_more_than_it_needs() -> None:
    waiting = [*(verify(f"v{i}", 7) for i in range(2)), Work("prompt", 2, 1)]

    assert [chunk.num_tokens for chunk in plan_step(waiting, 16)] == [7, 7, 2]


def test_verifying_sessions_fill_the_budget_when_no_prompt_waits() -> None:
    waiting = [verify(f"v{i}", 4) for i in range(5)]

    assert [chunk.session_id for chunk in plan_step(waiting, 16)] == ["v0", "v1", "v2", "v3"]


def test_a_smaller_tail_uses_the_room_that_a_larger_one_cannot() -> None:
    waiting = [verify("a", 9), verify("b", 9), verify("c", 7)]

    assert [chunk.session_id for chunk in plan_step(waiting, 16)] == ["a", "c"]


def test_prompts_share_the_rest_oldest_first() -> None:
    waiting = [Work("old", 10, 1), Work("young", 100, 1)]

    assert plan_step(waiting, 16) == (
        Chunk("old", 10, is_last=True),
        Chunk("young", 6, is_last=False),
    )


def test_the_tail_of_a_prompt_is_not_split() -> None:
    waiting = [Work("prompt", 18, 5)]

    first = plan_step(waiting, 16)

    assert first == (Chunk("prompt", 13, is_last=False),)
    assert plan_step(after(waiting, first), 16) == (Chunk("prompt", 5, is_last=True),)


def test_a_catch_up_without_a_tail_completes_with_its_last_token() -> None:
    assert plan_step([Work("a", 16, 0)], 16) == (Chunk("a", 16, is_last=True),)


def test_a_tail_beyond_the_budget_goes_alone_when_it_is_the_oldest() -> None:
    waiting = [verify("big", 20), verify("small", 1), Work("prompt", 100, 1)]

    assert plan_step(waiting, 16) == (Chunk("big", 20, is_last=True),)


def test_a_tail_beyond_the_budget_waits_for_older_work() -> None:
    waiting = [verify("small", 1), verify("big", 20)]

    first = plan_step(waiting, 16)

    assert first == (Chunk("small", 1, is_last=True),)
    assert plan_step(after(waiting, first), 16) == (Chunk("big", 20, is_last=True),)


def test_a_budget_that_is_not_positive_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="token_budget"):
        plan_step([], 0)


@pytest.mark.parametrize(("num_tokens", "num_tail"), [(0, 0), (3, 4), (3, -1)])
def test_work_that_cannot_exist_is_a_bug(num_tokens: int, num_tail: int) -> None:
    with pytest.raises(InvariantError, match="session a"):
        Work("a", num_tokens, num_tail)


def works(max_tail: int) -> st.SearchStrategy[list[Work]]:
    shapes = st.tuples(st.just(0) | st.integers(1, 60), st.integers(1, max_tail))
    return st.lists(shapes, min_size=1, max_size=12).map(
        lambda found: [Work(f"s{i}", body + tail, tail) for i, (body, tail) in enumerate(found)]
    )


@given(works(max_tail=40), st.integers(1, 24))
def test_a_step_keeps_to_its_budget_unless_one_tail_exceeds_it(
    waiting: list[Work], budget: int
) -> None:
    chunks = plan_step(waiting, budget)

    after(waiting, chunks)
    total = sum(chunk.num_tokens for chunk in chunks)
    alone = len(chunks) == 1 and chunks[0].num_tokens == waiting[0].num_tail
    assert total <= budget or alone


@given(works(max_tail=40), st.integers(1, 24))
def test_the_oldest_session_moves_in_every_step_and_all_finish(
    waiting: list[Work], budget: int
) -> None:
    num_steps, num_tokens = 0, sum(work.num_tokens for work in waiting)

    while waiting:
        chunks = plan_step(waiting, budget)
        assert waiting[0].session_id in {chunk.session_id for chunk in chunks}
        waiting = after(waiting, chunks)
        num_steps += 1

    assert num_steps <= num_tokens


@given(works(max_tail=12), st.lists(st.integers(1, 12), max_size=8))
def test_verifying_sessions_wait_no_more_steps_than_there_are_older_ones(
    waiting: list[Work], newcomers: list[int]
) -> None:
    num_older = {w.session_id: i for i, w in enumerate(waiting) if not w.is_prefill}

    num_steps = 0
    while num_older.keys() & {work.session_id for work in waiting}:
        chunks = plan_step(waiting, 16)
        for chunk in chunks:
            if chunk.session_id in num_older:
                assert num_steps <= num_older[chunk.session_id]
        waiting = after(waiting, chunks)
        waiting += [verify(f"n{num_steps}.{i}", tail) for i, tail in enumerate(newcomers)]
        num_steps += 1


@given(st.lists(st.integers(1, 12), max_size=20), st.integers(1, 300), st.integers(1, 12))
def test_decodes_that_fill_every_step_leave_a_prompt_its_quarter(
    tails: list[int], body: int, tail: int
) -> None:
    decodes = [verify(f"v{i}", size) for i, size in enumerate(tails)]
    prompt, num_steps = Work("p", body + tail, tail), 0

    # Every decode is back at once, and still older than the prompt: the worst that can happen.
    while prompt.is_prefill:
        *_, chunk = plan_step([*decodes, prompt], 16)
        assert chunk.session_id == "p"
        assert chunk.num_tokens >= min(4, prompt.num_tokens - prompt.num_tail)
        num_steps += 1
        if chunk.is_last:
            break
        prompt = replace(prompt, num_tokens=prompt.num_tokens - chunk.num_tokens)

    assert num_steps <= -(-body // 4)


def test_admission_refuses_one_session_too_many() -> None:
    check_admission(7, max_sessions=8)

    with pytest.raises(OverloadedError, match="8 of 8 sessions are open"):
        check_admission(8, max_sessions=8)
