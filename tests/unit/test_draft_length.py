from __future__ import annotations

import pytest

from specdec_core.draft_length.base import (
    DraftLengthPolicy,
    DraftLengthState,
    RoundObservation,
    room,
)
from specdec_core.draft_length.fixed import Fixed
from specdec_core.errors import InvalidArgumentError


def test_fixed_drafts_the_same_length_whatever_was_accepted() -> None:
    policy: DraftLengthPolicy = Fixed(4)
    state = policy.initial_state()

    chosen = []
    for observation in (RoundObservation(), RoundObservation(4, 0), RoundObservation(4, 4)):
        num_draft_tokens, state = policy.choose(state, observation)
        chosen.append(num_draft_tokens)

    assert chosen == [4, 4, 4]
    assert state == DraftLengthState()


@pytest.mark.parametrize("num_draft_tokens", [0, 32])
def test_fixed_takes_every_length_up_to_the_cap(num_draft_tokens: int) -> None:
    assert Fixed(num_draft_tokens).num_draft_tokens == num_draft_tokens


@pytest.mark.parametrize("num_draft_tokens", [-1, 33])
def test_fixed_refuses_a_length_outside_the_cap(num_draft_tokens: int) -> None:
    with pytest.raises(InvalidArgumentError, match=r"num_draft_tokens: must be in \[0, 32\]"):
        Fixed(num_draft_tokens)


@pytest.mark.parametrize(
    ("wanted", "output_left", "context_left", "granted"),
    [
        (4, 100, 100, 4),
        (4, 5, 100, 4),
        (4, 4, 100, 3),
        (4, 100, 5, 4),
        (4, 100, 3, 2),
        (4, 1, 100, 0),
        (4, 100, 1, 0),
        (4, 0, 0, 0),
        (0, 100, 100, 0),
    ],
)
def test_room_leaves_one_token_for_the_target(
    wanted: int, output_left: int, context_left: int, granted: int
) -> None:
    assert room(wanted, output_left=output_left, context_left=context_left) == granted
