"""Drafting with a language model that shares the target's vocabulary: a small model, a quantised copy, the first layers.

Under ``coupled`` the drafter draws argmax(log q + g) with the target's own noise; under a rule that tests its law, from the top-K
law that it then sends. It shapes q with the request's sampling parameters as the target shapes p; that helps acceptance and is never needed for
exactness.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specdec_core.drafters.base import Draft
from specdec_core.errors import InvalidArgumentError, OverloadedError
from specdec_core.models.forward import Segment
from specdec_core.params import check_token_ids
from specdec_core.philox import Stream, round_key
from specdec_core.sampling.draw import draw, draw_sparse, sparse_law
from specdec_core.sampling.process import Row, process
from specdec_core.sampling.structure import structure_of
from specdec_core.structured import NO_GRAMMARS
from specdec_core.types import Coupled, Sparse

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from specdec_core.drafters.base import DraftContext
    from specdec_core.models.forward import CausalModel, SequenceKv
    from specdec_core.sampling.structure import Structure
    from specdec_core.structured import GrammarBackend

_PREFILL_CHUNK = 512  # tokens of one session in one forward
_SUPPORT = 64  # K of the law sent where it is tested


@dataclass(slots=True)
class _Cache:
    kv: SequenceKv
    structure: Structure | None
    tokens: list[int] = field(default_factory=list)  # whose KV is held

    def truncate(self, length: int) -> None:
        self.kv.truncate(length)
        if self.structure is not None:
            self.structure.truncate(length)
        del self.tokens[length:]


@dataclass(slots=True)
class _Guessing:
    """One session's draft while it grows."""

    context: DraftContext
    cache: _Cache
    tokens: list[int]  # committed and drafted
    num_read: int  # committed tokens that must be in the cache before the first guess
    limit: int  # draft tokens to guess
    support: list[tuple[int, ...]] = field(default_factory=list)
    probs: list[tuple[float, ...]] = field(default_factory=list)

    @property
    def drafted(self) -> tuple[int, ...]:
        return tuple(self.tokens[len(self.context.tokens) :])

    @property
    def unread(self) -> list[int]:
        return self.tokens[len(self.cache.tokens) : self.num_read]

    @property
    def missing(self) -> list[int]:
        return self.tokens[len(self.cache.tokens) :]

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to guess: no token behind a stop token is ever committed."""
        drafted = self.drafted
        has_ended = bool(drafted) and drafted[-1] in self.context.params.stop_token_ids
        return has_ended or len(drafted) >= self.limit

    @property
    def row(self) -> Row:
        """Of the next token, masked as the target will mask it."""
        structure, context = self.cache.structure, self.context
        mask = structure.masks(self.tokens, 1)[0] if structure else None
        return Row(self.tokens, context.prompt_len, context.params, mask)

    @property
    def draft(self) -> Draft:
        if not self.support:
            return Draft(self.drafted, Coupled())
        return Draft(self.drafted, Sparse(tuple(self.support), tuple(self.probs)))


class LmDrafter:
    """A causal LM that guesses token by token, all sessions of a batch together."""

    def __init__(
        self, model: CausalModel, *, vocab_size: int, grammars: GrammarBackend = NO_GRAMMARS
    ) -> None:
        """Guess with ``model``, whose ids below ``vocab_size`` (the target's) mean what they mean to the target."""
        self._model = model
        self._grammars = grammars
        self._vocab_size = min(vocab_size, model.spec.vocab_size)
        self._is_narrow = model.spec.vocab_size < vocab_size
        self._caches: dict[str, _Cache] = {}

    def propose(self, contexts: Sequence[DraftContext]) -> list[Draft]:
        try:
            return self._draft(contexts)
        except OverloadedError:
            self._make_room(keep={context.session_id for context in contexts})
        try:
            return self._draft(contexts)
        except OverloadedError:
            self._make_room(keep=set())
            return [Draft((), Coupled()) for _ in contexts]

    def forget(self, session_id: str) -> None:
        if cache := self._caches.pop(session_id, None):
            cache.kv.release()

    def _draft(self, contexts: Sequence[DraftContext]) -> list[Draft]:
        """Read, then guess; an OverloadedError leaves caches that hold what they say, so this can be called again."""
        guesses = [self._begin(context) for context in contexts]
        while behind := [guess for guess in guesses if guess.unread]:
            self._forward(behind, [guess.unread[:_PREFILL_CHUNK] for guess in behind], num_logits=0)
        while active := [guess for guess in guesses if not guess.is_over]:
            self._guess_next(active)
        return [guess.draft for guess in guesses]

    def _begin(self, context: DraftContext) -> _Guessing:
        """Roll the cache back to what it shares with the committed tokens, short of the one whose logits are needed."""
        cache = self._caches.get(context.session_id)
        if cache is None:
            cache = self._caches[context.session_id] = self._new_cache(context)
        tokens = list(context.tokens)
        room = self._model.spec.max_context - len(tokens)
        limit = max(0, min(context.num_draft_tokens, room))
        num_read = len(tokens) - (limit > 0)
        shared = min(common_length(cache.tokens, tokens), num_read)
        cache.truncate(shared)
        if room < 0 or not self._knows(context, shared):
            return _Guessing(context, cache, tokens, num_read=0, limit=0)
        return _Guessing(context, cache, tokens, num_read, limit)

    def _new_cache(self, context: DraftContext) -> _Cache:
        structure = structure_of(context.params, context.prompt_len, self._grammars)
        return _Cache(self._model.new_sequence(), structure)

    def _knows(self, context: DraftContext, num_cached: int) -> bool:
        """Whether every id of a session means something here; the target's vocabulary may be padded further."""
        if not self._is_narrow:
            return True
        try:
            context.params.check_vocabulary(self._vocab_size)
            check_token_ids("tokens", context.tokens[num_cached:], self._vocab_size)
        except InvalidArgumentError:
            return False
        return True

    def _guess_next(self, guesses: Sequence[_Guessing]) -> None:
        logits = self._forward(guesses, [guess.missing for guess in guesses], num_logits=1)
        law = process(logits[:, : self._vocab_size], [guess.row for guess in guesses])
        for tests_law, guess_token in ((False, _guess_coupled), (True, _guess_sparse)):
            chosen = [
                row
                for row, guess in enumerate(guesses)
                if guess.context.rule.tests_draft_law is tests_law
            ]
            if chosen:
                guess_token(law[chosen], [guesses[row] for row in chosen])

    def _forward(
        self, guesses: Sequence[_Guessing], chunks: Sequence[list[int]], *, num_logits: int
    ) -> torch.Tensor:  # [len(guesses) * num_logits, vocab]
        segments = [
            Segment(guess.cache.kv, chunk, num_logits)
            for guess, chunk in zip(guesses, chunks, strict=True)
        ]
        logits = self._model.forward(segments)
        for guess, chunk in zip(guesses, chunks, strict=True):
            guess.cache.tokens += chunk
        return logits

    def _make_room(self, keep: set[str]) -> None:
        """Drop the caches of all other sessions; each is read again when its session drafts next."""
        for session_id in self._caches.keys() - keep:
            self.forget(session_id)


def common_length(left: list[int], right: list[int]) -> int:
    """Length of the longest common prefix, by bisection over slices that compare at C speed."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _guess_coupled(law: torch.Tensor, guesses: Sequence[_Guessing]) -> None:
    keys = [guess.context.noise for guess in guesses]
    for guess, token in zip(
        guesses, draw(law, keys, _positions(guesses), Stream.TOKEN), strict=True
    ):
        guess.tokens.append(token)


def _guess_sparse(law: torch.Tensor, guesses: Sequence[_Guessing]) -> None:
    keys = [round_key(guess.context.noise, len(guess.context.tokens)) for guess in guesses]
    ids, probs = sparse_law(law, _SUPPORT)
    tokens = draw_sparse(ids, probs, keys, _positions(guesses), Stream.DRAFT)
    for guess, token, row_ids, row_probs in zip(
        guesses, tokens, ids.tolist(), probs.tolist(), strict=True
    ):
        kept = [
            (token_id, prob) for token_id, prob in zip(row_ids, row_probs, strict=True) if prob > 0
        ]
        guess.tokens.append(token)
        guess.support.append(tuple(token_id for token_id, _ in kept))
        guess.probs.append(tuple(prob for _, prob in kept))


def _positions(guesses: Sequence[_Guessing]) -> list[int]:
    return [len(guess.tokens) for guess in guesses]
