"""The tree rules emit exactly the target's law: every tree and coin enumerated in float64.

Emissions are continued by the target to one length and compared as whole sequences. Each wrong variant is a bug someone could write;
the same comparison must notice it.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pytest

from specdec_core.verification.tree import (
    DraftTree,
    SiblingTest,
    TreeTest,
    sibling_test,
    walk_coupled,
    walk_recursively,
)
from tests.support.enumeration import distance_from_target, drafter_law, target_law

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tests.support.enumeration import Law, Prefix, SequenceLaw

    Judge = Callable[[Mapping[int, float], Mapping[int, float], Sequence[int]], SiblingTest]
    Drawing = Callable[
        [Law, int], Iterator[tuple[float, Prefix]]
    ]  # q and a number of siblings to each choice

SHAPES = [(3, (2,)), (4, (3,)), (3, (2, 2)), (4, (3, 1)), (3, (1, 2)), (4, (2, 2))]


@dataclass(frozen=True)
class Grown:
    """One tree that may be drawn: its nodes' paths from the root, in order, which the root's () begins."""

    paths: tuple[Prefix, ...]
    weight: float

    @property
    def tree(self) -> DraftTree:
        numbers = {path: node for node, path in enumerate(self.paths)}
        guesses = self.paths[1:]
        return DraftTree(
            tuple(numbers[path[:-1]] for path in guesses), tuple(path[-1] for path in guesses)
        )


def without_replacement(q: Law, count: int) -> Iterator[tuple[float, Prefix]]:
    for chosen in itertools.permutations(range(len(q)), count):
        weight, left = 1.0, 1.0
        for token in chosen:
            weight *= q[token] / left
            left -= q[token]
        yield weight, chosen


def likeliest(q: Law, count: int) -> Iterator[tuple[float, Prefix]]:
    """Wrong for recursive rejection: the children are not drawn at all."""
    yield 1.0, tuple(sorted(range(len(q)), key=lambda token: -q[token])[:count])


def grown_trees(
    drawing: Drawing, vocab: int, seed: int, branching: tuple[int, ...]
) -> Iterator[Grown]:
    """Every tree whose nodes at depth d have ``branching[d]`` children, breadth first."""
    level = [Grown(((),), 1.0)]
    for depth, count in enumerate(branching):
        level = [
            grown
            for start in level
            for grown in _with_children(
                start, partial(_siblings, drawing, vocab, seed, count), depth
            )
        ]
    yield from level


def _siblings(
    drawing: Drawing, vocab: int, seed: int, count: int, path: Prefix
) -> list[tuple[float, Prefix]]:
    return list(drawing(drafter_law(vocab, seed, path), count))


def _with_children(
    start: Grown, siblings: Callable[[Prefix], list[tuple[float, Prefix]]], depth: int
) -> Iterator[Grown]:
    parents = [path for path in start.paths if len(path) == depth]
    for choice in itertools.product(*map(siblings, parents)):
        born = tuple(
            (*parent, token)
            for parent, (_, tokens) in zip(parents, choice, strict=True)
            for token in tokens
        )
        chance = math.prod(weight for weight, _ in choice)
        yield Grown((*start.paths, *born), start.weight * chance)


def as_mapping(law: Law) -> dict[int, float]:
    return {token: prob for token, prob in enumerate(law) if prob > 0.0}


def drawing_from_all_of_p(
    target: Mapping[int, float], draft: Mapping[int, float], candidates: Sequence[int]
) -> SiblingTest:
    return SiblingTest(sibling_test(target, draft, candidates).accept_probs, target)


def putting_rejected_candidates_back(
    target: Mapping[int, float], draft: Mapping[int, float], candidates: Sequence[int]
) -> SiblingTest:
    """Each sibling is tested against the q that the first was drawn from."""
    probs: list[float] = []
    for candidate in candidates:
        test = sibling_test(target, draft, [candidate])
        probs += test.accept_probs
        target = test.residual
    return SiblingTest(tuple(probs), target)


def comparing_every_sibling_with_all_of_p(
    target: Mapping[int, float], draft: Mapping[int, float], candidates: Sequence[int]
) -> SiblingTest:
    probs = [sibling_test(target, draft, [each]).accept_probs[0] for each in candidates]
    return SiblingTest(tuple(probs), sibling_test(target, draft, candidates).residual)


def error_of_recursive_rejection(
    judge: Judge, drawing: Drawing, *, vocab: int, branching: tuple[int, ...], seed: int
) -> float:
    emitted: SequenceLaw = defaultdict(float)
    for grown in grown_trees(drawing, vocab, seed, branching):
        tests = [
            judge(
                as_mapping(target_law(vocab, seed, path)),
                as_mapping(drafter_law(vocab, seed, path)),
                [each[-1] for each in grown.paths if each[:-1] == path and each],
            )
            for path in grown.paths
        ]
        for weight, node in ends_of_walks(grown.tree, tests):
            for token, prob in tests[node].residual.items():
                emitted[(*grown.paths[node], token)] += grown.weight * weight * prob
    return distance_from_target(emitted, vocab=vocab, seed=seed, length=len(branching) + 1)


def ends_of_walks(tree: DraftTree, tests: list[SiblingTest]) -> Iterator[tuple[float, int]]:
    """Where the walk ends for every outcome of the coins, with its probability."""
    accept_probs = tuple(prob for test in tests for prob in test.accept_probs)  # breadth first
    numbered = TreeTest(accept_probs, tuple(range(tree.num_nodes)))
    for pattern in itertools.product((True, False), repeat=len(accept_probs)):
        pairs = list(zip(accept_probs, pattern, strict=True))
        weight = math.prod(prob if accepts else 1.0 - prob for prob, accepts in pairs)
        if weight > 0.0:
            coins = [prob / 2 if accepts else (1.0 + prob) / 2 for prob, accepts in pairs]
            walk = walk_recursively(tree, numbered, [math.nan, *coins].__getitem__)
            yield weight, walk.next_token


@pytest.mark.parametrize(("vocab", "branching"), SHAPES)
@pytest.mark.parametrize("seed", [0, 1])
def test_recursive_rejection_emits_exactly_the_targets_law(
    vocab: int, branching: tuple[int, ...], seed: int
) -> None:
    error = error_of_recursive_rejection(
        sibling_test, without_replacement, vocab=vocab, branching=branching, seed=seed
    )

    assert error < 1e-12


@pytest.mark.parametrize(
    ("judge", "drawing"),
    [
        (drawing_from_all_of_p, without_replacement),
        (putting_rejected_candidates_back, without_replacement),
        (comparing_every_sibling_with_all_of_p, without_replacement),
        (sibling_test, likeliest),
    ],
)
@pytest.mark.parametrize(("vocab", "branching"), SHAPES[:4])
def test_a_wrong_recursive_rejection_is_caught(
    vocab: int, branching: tuple[int, ...], judge: Judge, drawing: Drawing
) -> None:
    error = error_of_recursive_rejection(judge, drawing, vocab=vocab, branching=branching, seed=10)

    assert error > 0.01


DEPTH = 3


def binary_trees(depth: int = DEPTH, path: Prefix = ()) -> list[tuple[Prefix, ...]]:
    """Every set of paths over two tokens that holds the path to each of its nodes, parents first."""
    if depth == 0:
        return [(path,)]
    subtrees = [[(), *binary_trees(depth - 1, (*path, token))] for token in (0, 1)]
    return [(path, *left, *right) for left, right in itertools.product(*subtrees)]


def coupled_emission(paths: tuple[Prefix, ...], text: Prefix) -> Prefix:
    """What a tree emits if the target draws ``text``, and something else wherever that is not the prefix."""
    draws = [
        text[len(path)] if path == text[: len(path)] else 1 - text[len(path)] for path in paths
    ]
    walk = walk_coupled(Grown(paths, 1.0).tree, draws)
    return (*(paths[node][-1] for node in walk.path), walk.next_token)


def test_the_coupled_walk_emits_the_targets_own_text_whatever_the_tree() -> None:
    trees = binary_trees()
    assert len(trees) == 676

    for paths, text in itertools.product(trees, itertools.product((0, 1), repeat=DEPTH + 1)):
        emitted = coupled_emission(paths, text)
        foreseen = max(size for size in range(DEPTH + 1) if text[:size] in paths)
        assert emitted == text[: foreseen + 1]


def redrawn_after_a_mismatch(paths: tuple[Prefix, ...], text: Prefix) -> SequenceLaw:
    """Wrong: the draw that decided the mismatch is thrown away for another."""
    head = coupled_emission(paths, text)[:-1]
    return {(*head, token): prob for token, prob in enumerate(target_law(2, 0, head))}


def kept(paths: tuple[Prefix, ...], text: Prefix) -> SequenceLaw:
    return {coupled_emission(paths, text): 1.0}


def error_of_the_coupled_walk(
    emission: Callable[[tuple[Prefix, ...], Prefix], SequenceLaw], paths: tuple[Prefix, ...]
) -> float:
    """Over all texts, whose draws are independent along the one path that is walked."""
    emitted: SequenceLaw = defaultdict(float)
    for text in itertools.product((0, 1), repeat=DEPTH + 1):
        drawn = math.prod(
            target_law(2, 0, text[:position])[token] for position, token in enumerate(text)
        )
        for sequence, prob in emission(paths, text).items():
            emitted[sequence] += drawn * prob
    return distance_from_target(emitted, vocab=2, seed=0, length=DEPTH + 1)


def test_the_coupled_walk_emits_exactly_the_targets_law() -> None:
    assert all(error_of_the_coupled_walk(kept, paths) < 1e-12 for paths in binary_trees()[::7])


def test_a_coupled_walk_that_draws_again_after_a_mismatch_is_caught() -> None:
    assert error_of_the_coupled_walk(redrawn_after_a_mismatch, ((), (0,), (0, 1))) > 0.01
