from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_core.drafters.base import Draft, DraftContext, Drafter
from specdec_core.drafters.ngram import NgramDrafter
from specdec_core.errors import InvalidArgumentError
from specdec_core.params import SamplingParams
from specdec_core.types import AcceptanceRule, NoiseKey, OneHot


def context(tokens: Sequence[int], count: int, session_id: str = "s") -> DraftContext:
    return DraftContext(
        session_id, tokens, 1, count, SamplingParams(), AcceptanceRule.COUPLED, NoiseKey(1)
    )


def draft(drafter: NgramDrafter, tokens: Sequence[int], count: int) -> tuple[int, ...]:
    (found,) = drafter.propose([context(tokens, count)])
    return found.tokens


def brute_force(
    tokens: Sequence[int], count: int, max_ngram: int, min_ngram: int
) -> tuple[int, ...]:
    """Longest size first, latest end first, comparing token by token; then copy one token at a time."""
    text = list(tokens)
    for size in range(max_ngram, min_ngram - 1, -1):
        for end in range(len(text) - 1, size - 1, -1):
            if text[end - size : end] == text[len(text) - size :]:
                for i in range(count):
                    text.append(text[end + i])
                return tuple(text[len(tokens) :])
    return ()


def test_the_continuation_of_the_earlier_match_is_proposed() -> None:
    drafter: Drafter = NgramDrafter()

    assert drafter.propose([context([1, 2, 3, 4, 5, 6, 7, 2, 3, 4], 3)]) == [
        Draft((5, 6, 7), OneHot())
    ]


def test_the_longest_match_wins_over_a_later_shorter_one() -> None:
    assert draft(NgramDrafter(), [1, 2, 3, 7, 9, 3, 8, 1, 2, 3], 1) == (7,)


def test_the_latest_of_equally_long_matches_wins() -> None:
    assert draft(NgramDrafter(), [1, 2, 5, 1, 2, 6, 1, 2], 1) == (6,)


def test_nothing_is_proposed_where_nothing_matches() -> None:
    assert NgramDrafter().propose([context([1, 2, 3, 4], 4)]) == [Draft((), OneHot())]


@pytest.mark.parametrize("tokens", [[], [1]])
def test_a_text_too_short_to_repeat_gets_no_draft(tokens: list[int]) -> None:
    assert draft(NgramDrafter(), tokens, 4) == ()


def test_a_match_shorter_than_the_minimum_does_not_count() -> None:
    tokens = [1, 2, 3, 4, 2]

    assert draft(NgramDrafter(3, 2), tokens, 2) == ()
    assert draft(NgramDrafter(3, 1), tokens, 2) == (3, 4)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([7, 7], (7, 7, 7, 7, 7)),
        ([1, 2, 1, 2, 1], (2, 1, 2, 1, 2)),
        ([9, 1, 2, 3, 1, 2, 3, 1, 2], (3, 1, 2, 3, 1)),
    ],
)
def test_a_periodic_text_is_drafted_on_beyond_its_end(
    tokens: list[int], expected: tuple[int, ...]
) -> None:
    assert draft(NgramDrafter(), tokens, 5) == expected


def test_no_draft_tokens_only_brings_the_index_up_to_date() -> None:
    drafter = NgramDrafter()

    assert draft(drafter, [1, 2, 1], 0) == ()
    assert drafter.num_sessions == 1


def test_sessions_do_not_see_each_others_text() -> None:
    drafter = NgramDrafter()

    drafts = drafter.propose([context([1, 2, 1], 1, "a"), context([1, 3, 1], 1, "b")])

    assert [found.tokens for found in drafts] == [(2,), (3,)]


def test_forget_frees_the_session_and_ignores_unknown_ones() -> None:
    drafter = NgramDrafter()
    draft(drafter, [1, 2, 1], 1)

    drafter.forget("s")
    drafter.forget("never seen")

    assert drafter.num_sessions == 0


@pytest.mark.parametrize(
    "restarted",
    [
        [5, 6, 5],  # another, shorter text
        [1, 2, 3, 1],  # the same text, one token ago: its end must not match itself
        [1, 2, 3],
        [8, 8, 8, 8, 8, 8, 8, 8],  # another, longer text
        [],
    ],
)
def test_a_session_that_restarts_with_another_text_is_indexed_anew(restarted: list[int]) -> None:
    drafter = NgramDrafter()
    draft(drafter, [1, 2, 3, 1, 2], 4)

    assert draft(drafter, restarted, 4) == brute_force(restarted, 4, 3, 1)


def test_asking_twice_gives_the_same_draft() -> None:
    drafter = NgramDrafter()

    assert draft(drafter, [1, 2, 3, 1, 2], 4) == draft(drafter, [1, 2, 3, 1, 2], 4) == (3, 1, 2, 3)


@pytest.mark.parametrize(("sizes", "field"), [((3, 0), "min_ngram"), ((1, 2), "max_ngram")])
def test_sizes_that_make_no_sense_are_refused(sizes: tuple[int, int], field: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        NgramDrafter(*sizes)

    assert caught.value.field == field


@given(
    st.lists(st.integers(0, 2), max_size=40),
    st.lists(st.integers(1, 6), max_size=20),
    st.integers(0, 9),
    st.sampled_from([(3, 1), (1, 1), (4, 2)]),
)
def test_every_round_agrees_with_a_search_of_the_whole_text(
    tokens: list[int], round_sizes: list[int], count: int, sizes: tuple[int, int]
) -> None:
    drafter = NgramDrafter(*sizes)
    length = 0
    for size in [*round_sizes, len(tokens)]:
        length += size
        text = tokens[:length]
        assert draft(drafter, text, count) == brute_force(text, count, *sizes)


class CountingTokens(Sequence[int]):
    """Counts the tokens that are read."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens
        self.num_read = 0

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, int):
            self.num_read += 1
            return self.tokens[index]
        self.num_read += len(self.tokens[index])
        return self.tokens[index]

    def __len__(self) -> int:
        return len(self.tokens)


@pytest.mark.parametrize("num_old_tokens", [100, 10_000])
def test_a_round_reads_the_new_tokens_and_not_the_whole_text(num_old_tokens: int) -> None:
    drafter = NgramDrafter()
    old = CountingTokens([i % 50 for i in range(num_old_tokens)])
    draft(drafter, old, 4)
    new = CountingTokens([*old.tokens, 7, 8, 9])

    draft(drafter, new, 4)

    assert old.num_read > num_old_tokens
    assert new.num_read < 100
