"""Acceptance rules for a tree of guesses, in plain Python: several candidates may follow one prefix.

A walk starts at the root, the committed prefix, and descends while a child is accepted; the tokens on its path are committed, then
one token more. Two rules say which child:

- coupled (Daliri et al., arXiv 2408.07978): the one that is the target's own draw after the node. What is committed is the target's
  own text whatever the tree holds.
- recursive rejection without replacement (Sequoia, arXiv 2402.12374; EAGLE, arXiv 2401.15077): the children c_1, c_2, ... of a node
  were drawn from q one after the other, each without those before it. With p' = p and q' = q at first, accept c_j with probability
  min(1, p'(c_j) / q'(c_j)); at a rejection p' becomes (p' - q')+ normalised and q' becomes q' without c_j, normalised. If all are
  rejected, the next token is drawn from the p' that is left. One child is the ratio rule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdec_core.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Law = Mapping[int, float]  # token id -> probability; absent tokens have none


@dataclass(frozen=True, slots=True)
class DraftTree:
    """Guessed continuations as a tree: node 0 is the committed prefix, node i carries ``tokens[i - 1]``."""

    parents: tuple[int, ...]  # parents[i - 1] is the parent of node i and below i
    tokens: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.parents) != len(self.tokens):
            raise InvalidArgumentError(
                "tree.parents", f"{len(self.parents)} parents for {len(self.tokens)} tokens"
            )
        if not all(0 <= parent <= index for index, parent in enumerate(self.parents)):
            raise InvalidArgumentError("tree.parents", "each must be a node before its child")
        if any(token < 0 for token in self.tokens):
            raise InvalidArgumentError("tree.tokens", "each must be a token id, at least 0")
        if len(set(zip(self.parents, self.tokens, strict=True))) != len(self.tokens):
            raise InvalidArgumentError("tree.tokens", "must differ among the children of a node")

    @property
    def num_nodes(self) -> int:
        """How many nodes there are, the root included."""
        return len(self.tokens) + 1

    def children(self, node: int) -> tuple[int, ...]:
        """Nodes whose parent is ``node``, in the order they were drawn."""
        return tuple(child for child, parent in enumerate(self.parents, 1) if parent == node)


@dataclass(frozen=True, slots=True)
class Walk:
    """What one tree commits: the tokens of ``path``, then ``next_token``."""

    path: tuple[int, ...]  # accepted nodes, each the child of the one before, the root left out
    next_token: int


@dataclass(frozen=True, slots=True)
class TreeTest:
    """What the target says of a tree under recursive rejection."""

    accept_probs: tuple[
        float, ...
    ]  # [num_nodes - 1] of node i, once its parent stands and its elder siblings fell
    tokens: tuple[
        int, ...
    ]  # [num_nodes] emitted where the walk ends: drawn from the p' left at the node


@dataclass(frozen=True, slots=True)
class SiblingTest:
    """How the children of one node fare, in the order they were drawn."""

    accept_probs: tuple[float, ...]  # of each, once those before it were rejected
    residual: Law  # what to draw from if all are


def walk_coupled(tree: DraftTree, draws: Sequence[int]) -> Walk:
    """Follow the target's draws while the tree foresaw them.

    Args:
        tree: The guesses.
        draws: ``[num_nodes]``, the target's own draw after each node.
    """
    return _walk(tree, draws, lambda child, parent: tree.tokens[child - 1] == draws[parent])


def walk_recursively(
    tree: DraftTree, test: TreeTest, accept_uniform: Callable[[int], float]
) -> Walk:
    """Flip the coins of recursive rejection.

    Args:
        tree: The guesses, each node's children drawn without replacement.
        test: The target's evidence on this tree.
        accept_uniform: Node -> uniform in (0, 1), independent of each other and of every draft and target draw.
    """
    return _walk(
        tree, test.tokens, lambda child, _: accept_uniform(child) <= test.accept_probs[child - 1]
    )


def sibling_test(target: Law, draft: Law, candidates: Sequence[int]) -> SiblingTest:
    """Recursive rejection at one node.

    A candidate without mass in what is left of q is tested as one-hot, which is exact wherever it came from.

    Args:
        target: p, summing to 1.
        draft: q, summing to 1.
        candidates: Distinct token ids, drawn from q one after the other without replacement.
    """
    accept_probs = []
    for candidate in candidates:
        mass = draft.get(candidate, 0.0)
        proposal = draft if mass > 0.0 else {candidate: 1.0}
        accept_probs.append(min(1.0, target.get(candidate, 0.0) / proposal[candidate]))
        target = _residual(target, proposal)
        draft = _normalised({token: prob for token, prob in draft.items() if token != candidate})
    return SiblingTest(tuple(accept_probs), target)


def _walk(tree: DraftTree, tokens: Sequence[int], accepts: Callable[[int, int], bool]) -> Walk:
    node = 0
    path: list[int] = []
    while True:
        accepted = next((child for child in tree.children(node) if accepts(child, node)), None)
        if accepted is None:
            return Walk(tuple(path), tokens[node])
        path.append(accepted)
        node = accepted


def _residual(target: Law, proposal: Law) -> Law:
    """(p - q)+ normalised; p where nothing is left, since a rejection cannot happen then but for rounding."""
    left = _normalised(
        {token: max(0.0, prob - proposal.get(token, 0.0)) for token, prob in target.items()}
    )
    return left or target


def _normalised(masses: Law) -> Law:
    """The law in these proportions; empty where there is no mass."""
    total = math.fsum(masses.values())
    return {token: mass / total for token, mass in masses.items() if mass > 0.0}
