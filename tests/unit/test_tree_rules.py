"""The rules for trees of guesses on trees small enough to draw: who is a child of whom, where a walk ends, and what is left of p."""

from __future__ import annotations

import pytest

from specdec_core.errors import InvalidArgumentError
from specdec_core.verification.tree import (
    DraftTree,
    TreeTest,
    Walk,
    sibling_test,
    walk_coupled,
    walk_recursively,
)

# 0 ─┬─ 1 "5" ─┬─ 3 "7" ── 5 "5"
#    └─ 2 "6"  └─ 4 "8"
TREE = DraftTree(parents=(0, 0, 1, 1, 3), tokens=(5, 6, 7, 8, 5))


def test_children_are_listed_in_the_order_they_were_drawn() -> None:
    assert [TREE.children(node) for node in range(TREE.num_nodes)] == [
        (1, 2),
        (3, 4),
        (),
        (5,),
        (),
        (),
    ]


@pytest.mark.parametrize(
    ("parents", "tokens", "problem"),
    [
        ((0,), (5, 6), "tree.parents: 1 parents for 2 tokens"),
        ((0, 2), (5, 6), "tree.parents: each must be a node before its child"),
        ((1,), (5,), "tree.parents: each must be a node before its child"),
        ((-1,), (5,), "tree.parents: each must be a node before its child"),
        ((0, 0), (5, -1), "tree.tokens: each must be a token id"),
        ((0, 0), (5, 5), "tree.tokens: must differ among the children of a node"),
    ],
)
def test_what_is_no_tree_of_distinct_guesses_is_refused(
    parents: tuple[int, ...], tokens: tuple[int, ...], problem: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=problem):
        DraftTree(parents, tokens)


@pytest.mark.parametrize(
    ("draws", "walk"),
    [
        ((9, 7, 0, 5, 0, 4), Walk((), 9)),
        ((6, 7, 3, 5, 0, 4), Walk((2,), 3)),
        ((5, 9, 3, 5, 0, 4), Walk((1,), 9)),
        ((5, 8, 3, 5, 2, 4), Walk((1, 4), 2)),
        ((5, 7, 3, 6, 2, 4), Walk((1, 3), 6)),
        ((5, 7, 3, 5, 2, 4), Walk((1, 3, 5), 4)),
    ],
)
def test_the_coupled_walk_follows_the_targets_draws(draws: tuple[int, ...], walk: Walk) -> None:
    assert walk_coupled(TREE, draws) == walk


@pytest.mark.parametrize(
    ("accepted", "walk"),
    [
        (set(), Walk((), 30)),
        ({2}, Walk((2,), 32)),
        ({1}, Walk((1,), 31)),
        ({1, 2}, Walk((1,), 31)),
        ({2, 3, 4, 5}, Walk((2,), 32)),
        ({1, 4}, Walk((1, 4), 34)),
        ({1, 3, 4}, Walk((1, 3), 33)),
        ({1, 3, 5}, Walk((1, 3, 5), 35)),
    ],
)
def test_the_recursive_walk_takes_the_first_accepted_child(accepted: set[int], walk: Walk) -> None:
    accept_probs = tuple(0.5 if node in accepted else 0.4 for node in range(1, 6))
    test = TreeTest(accept_probs, (30, 31, 32, 33, 34, 35))

    assert walk_recursively(TREE, test, lambda _: 0.45) == walk


def test_every_node_has_its_own_coin() -> None:
    test = TreeTest((0.5,) * 5, (30, 31, 32, 33, 34, 35))
    coins = {1: 0.4, 2: 0.9, 3: 0.9, 4: 0.4}

    assert walk_recursively(TREE, test, coins.__getitem__) == Walk((1, 4), 34)


def test_a_tree_without_guesses_gives_the_targets_own_token() -> None:
    empty = DraftTree((), ())

    assert walk_coupled(empty, (3,)) == Walk((), 3)
    assert walk_recursively(empty, TreeTest((), (3,)), lambda _: 0.5) == Walk((), 3)


def test_one_candidate_is_the_ratio_rule() -> None:
    test = sibling_test({0: 0.2, 1: 0.3, 2: 0.5}, {0: 0.8, 1: 0.2}, [0])

    assert test.accept_probs == pytest.approx((0.25,))
    assert test.residual == pytest.approx({1: 1 / 6, 2: 5 / 6})


def test_a_second_candidate_is_tested_on_what_the_first_left() -> None:
    """p' = (0, 1/5, 4/5) and q' = (0, 2/3, 1/3): token 1 is accepted with (1/5) / (2/3); then only token 2 is left."""
    test = sibling_test({0: 0.2, 1: 0.3, 2: 0.5}, {0: 0.7, 1: 0.2, 2: 0.1}, [0, 1])

    assert test.accept_probs == pytest.approx((2 / 7, 3 / 10))
    assert test.residual == pytest.approx({2: 1.0})


def test_candidates_that_exhaust_the_draft_law_are_tested_as_one_hot() -> None:
    test = sibling_test({0: 0.5, 1: 0.3, 2: 0.2}, {0: 1.0}, [0, 1])

    assert test.accept_probs == pytest.approx((0.5, 0.6))
    assert test.residual == pytest.approx({2: 1.0})


def test_a_candidate_the_draft_law_does_not_know_is_tested_as_one_hot() -> None:
    test = sibling_test({0: 0.5, 1: 0.3, 2: 0.2}, {1: 1.0}, [0])

    assert test.accept_probs == (0.5,)
    assert test.residual == pytest.approx({1: 0.6, 2: 0.4})


def test_a_candidate_the_target_excludes_is_never_accepted() -> None:
    assert sibling_test({1: 1.0}, {0: 0.5, 1: 0.5}, [0, 1]).accept_probs == (0.0, 1.0)


def test_equal_laws_accept_the_first_candidate_and_leave_the_target() -> None:
    law = {0: 0.75, 1: 0.25}

    test = sibling_test(law, law, [1])

    assert test.accept_probs == (1.0,)
    assert test.residual == law


def test_no_candidates_leave_the_target() -> None:
    test = sibling_test({0: 0.75, 1: 0.25}, {0: 1.0}, [])

    assert (test.accept_probs, test.residual) == ((), {0: 0.75, 1: 0.25})


def test_tiny_probabilities_do_not_overflow() -> None:
    test = sibling_test({0: 1.0 - 1e-16, 1: 1e-16}, {1: 1.0, 0: 5e-324}, [0, 1])

    assert test.accept_probs[0] == 1.0
