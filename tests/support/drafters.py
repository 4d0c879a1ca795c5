"""Drafters that no one would deploy, to show that only the speed depends on them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdec_core.drafters.base import Draft
from specdec_core.types import OneHot, Sparse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdec_core.drafters.base import DraftContext, Drafter


@dataclass
class ScriptedDrafter:
    """Knows a whole continuation and proposes it shifted by ``shift``: 0 is always right, anything else always wrong."""

    sequence: Sequence[int]  # prompt and output
    vocab_size: int
    shift: int = 0

    def propose(self, contexts: Sequence[DraftContext]) -> list[Draft]:
        return [Draft(self._guess(context), OneHot()) for context in contexts]

    def forget(self, session_id: str) -> None:
        del session_id

    def _guess(self, context: DraftContext) -> tuple[int, ...]:
        start = len(context.tokens)
        known = self.sequence[start : start + context.num_draft_tokens]
        return tuple((token + self.shift) % self.vocab_size for token in known)


@dataclass
class RandomDrafter:
    """Proposes noise, the end-of-sequence token among it."""

    seed: int
    vocab_size: int

    def propose(self, contexts: Sequence[DraftContext]) -> list[Draft]:
        return [Draft(self._guess(context), OneHot()) for context in contexts]

    def forget(self, session_id: str) -> None:
        del session_id

    def _guess(self, context: DraftContext) -> tuple[int, ...]:
        rng = random.Random(f"{self.seed} {context.session_id} {len(context.tokens)}")
        return tuple(rng.randrange(self.vocab_size) for _ in range(context.num_draft_tokens))


@dataclass
class ConstantDrafter:
    """Proposes one token over and over."""

    token: int

    def propose(self, contexts: Sequence[DraftContext]) -> list[Draft]:
        return [Draft((self.token,) * each.num_draft_tokens, OneHot()) for each in contexts]

    def forget(self, session_id: str) -> None:
        del session_id


@dataclass
class DrafterBySession:
    """Sessions named ``drafter/...`` each have their own drafter."""

    by_name: Mapping[str, Drafter]

    def propose(self, contexts: Sequence[DraftContext]) -> list[Draft]:
        drafts: dict[str, Draft] = {}
        for name, drafter in self.by_name.items():
            own = [each for each in contexts if each.session_id.startswith(f"{name}/")]
            for context, draft in zip(own, drafter.propose(own), strict=True):
                drafts[context.session_id] = draft
        return [drafts[each.session_id] for each in contexts]

    def forget(self, session_id: str) -> None:
        self.by_name[session_id.partition("/")[0]].forget(session_id)


class SilentDrafter:
    """Never has anything to propose."""

    def propose(self, contexts: Sequence[DraftContext]) -> list[Draft]:
        return [Draft((), OneHot()) for _ in contexts]

    def forget(self, session_id: str) -> None:
        del session_id


@dataclass
class LyingDrafter:
    """Draws uniformly but claims to have drawn from a skewed law: the seeded bug that the ratio tests must notice."""

    seed: int
    vocab_size: int

    def propose(self, contexts: Sequence[DraftContext]) -> list[Draft]:
        return [self._lie(context) for context in contexts]

    def forget(self, session_id: str) -> None:
        del session_id

    def _lie(self, context: DraftContext) -> Draft:
        rng = random.Random(f"{self.seed} {context.session_id} {len(context.tokens)}")
        tokens = tuple(rng.randrange(self.vocab_size) for _ in range(context.num_draft_tokens))
        weights = [1.0 + token for token in range(self.vocab_size)]
        probs = tuple(weight / sum(weights) for weight in weights)
        support = tuple(range(self.vocab_size))
        return Draft(tokens, Sparse((support,) * len(tokens), (probs,) * len(tokens)))
