"""The structure of a session follows its tokens as its KV does."""

from __future__ import annotations

import pytest

from specdec_core.errors import ProtocolError
from specdec_core.models.grammar import load_grammars
from specdec_core.sampling.structure import Structure
from specdec_core.structured import Choice
from tests.support.structures import EOS, allowed_by, tiny_bpe

TOKENIZER = tiny_bpe()
GRAMMARS = load_grammars(TOKENIZER, (EOS,))
PROMPT = (40, 41)
CHOICES = Choice(("be", "beta"))
B, E, T, A = (TOKENIZER.encode(letter)[0] for letter in "beta")


def structure(*, stops: tuple[int, ...] = (EOS,)) -> Structure:
    return Structure(GRAMMARS.compile(CHOICES), prompt_len=len(PROMPT), stop_token_ids=stops)


def test_each_prefix_of_a_draft_has_its_own_mask() -> None:
    masks = structure().masks((*PROMPT, B, E, T), 3)
    assert [allowed_by(mask) for mask in masks if mask] == [(E,), (EOS, T), (A,)]


def test_nothing_is_said_behind_a_forbidden_token() -> None:
    masks = structure().masks((*PROMPT, B, T, A), 3)
    assert [mask is None for mask in masks] == [False, True, True]


def test_nothing_is_said_behind_a_token_that_ends_the_generation() -> None:
    masks = structure().masks((*PROMPT, B, E, EOS, EOS), 4)
    assert [mask is None for mask in masks] == [False, False, True, True]


def test_only_the_end_follows_an_end_that_does_not_stop() -> None:
    masks = structure(stops=()).masks((*PROMPT, B, E, EOS, EOS), 3)
    assert [allowed_by(mask) for mask in masks if mask] == [(EOS, T), (EOS,), (EOS,)]


def test_asking_again_gives_the_same_masks() -> None:
    followed = structure()
    tokens = (*PROMPT, B, E, T)
    assert followed.masks(tokens, 3) == followed.masks(tokens, 3)


@pytest.mark.parametrize("length", range(7))
def test_a_truncated_structure_is_as_if_it_had_never_seen_more(length: int) -> None:
    tokens = (*PROMPT, B, E, T, A)
    followed, fresh = structure(), structure()
    followed.masks(tokens, 5)

    followed.truncate(length)

    assert followed.length == max(2, length)
    kept = tokens[: max(2, length)]
    assert followed.masks(kept, 1) == fresh.masks(kept, 1)


def test_a_rejected_draft_may_be_replaced_by_another() -> None:
    followed = structure()
    followed.masks((*PROMPT, B, E, T), 2)

    followed.truncate(len(PROMPT) + 2)

    masks = followed.masks((*PROMPT, B, E, EOS), 1 + 1)
    assert [mask is None for mask in masks] == [False, True]


def test_committed_tokens_that_break_the_structure_are_a_peers_mistake() -> None:
    with pytest.raises(ProtocolError, match=f"token {A} at 3 breaks the structure"):
        structure().masks((*PROMPT, B, A, E), 1)
