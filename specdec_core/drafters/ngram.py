"""Prompt lookup: guess that what followed the same words before follows again.

Saxena, "Prompt lookup decoding" (2023). Where the usual implementations search the whole text every round, an index from n-grams
to where they last ended is kept per session, so a round costs O(new tokens).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec_core.drafters.base import Draft
from specdec_core.errors import InvalidArgumentError
from specdec_core.types import OneHot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdec_core.drafters.base import DraftContext


class NgramDrafter:
    """Proposes the continuation of the longest, then most recent, earlier match of the last tokens.

    The continuation may run into the matched tokens themselves and on into the draft: a text that has begun to repeat with some
    period is drafted to repeat on. A draft is thus as long as wished, or empty when nothing matches.

    Args:
        max_ngram: Tokens at the end of the text that a match should have at best.
        min_ngram: Tokens that a match must have, positive.

    Raises:
        InvalidArgumentError: unless 1 <= min_ngram <= max_ngram.
    """

    def __init__(self, max_ngram: int = 3, min_ngram: int = 1) -> None:
        if min_ngram < 1:
            raise InvalidArgumentError("min_ngram", f"must be positive, got {min_ngram}")
        if max_ngram < min_ngram:
            raise InvalidArgumentError(
                "max_ngram", f"must be at least min_ngram {min_ngram}, got {max_ngram}"
            )
        self._sizes = range(max_ngram, min_ngram - 1, -1)
        self._indexes: dict[str, _NgramIndex] = {}

    @property
    def num_sessions(self) -> int:
        """Sessions for which an index is held."""
        return len(self._indexes)

    def propose(self, contexts: Sequence[DraftContext]) -> list[Draft]:
        """One draft per context, in order; proposals are always ``OneHot``."""
        return [self._propose_one(context) for context in contexts]

    def forget(self, session_id: str) -> None:
        """Free a session's index; unknown ids are ignored."""
        self._indexes.pop(session_id, None)

    def _propose_one(self, context: DraftContext) -> Draft:
        index = self._indexes.get(context.session_id)
        if index is None or not index.is_of(context.tokens):
            index = _NgramIndex(self._sizes)
            self._indexes[context.session_id] = index
        index.extend(context.tokens)
        match_end = index.find_suffix(context.tokens)
        if match_end is None:
            return Draft((), OneHot())
        return Draft(_continuation(context.tokens, match_end, context.num_draft_tokens), OneHot())


class _NgramIndex:
    """Where each n-gram of one text last ended, the end of the text excluded: a match needs a token behind it.

    Holds one entry per distinct n-gram, about 0.1 KiB each.
    """

    _NUM_CHECKED = 32  # tokens before the end of the index that must agree

    def __init__(self, sizes: range) -> None:
        self._sizes = sizes  # longest first
        self._ends: dict[tuple[int, ...], int] = {}
        self._length = 0  # n-grams that end at or before it are indexed
        self._last: tuple[int, ...] = ()  # the tokens before it

    def is_of(self, tokens: Sequence[int]) -> bool:
        """Whether ``tokens`` seem to extend the indexed text by at least one token.

        Only its last tokens are compared, which keeps a round cheap. A text that differs earlier, and only there, is taken for the
        same one; that costs bad guesses and nothing else.
        """
        start = self._length - len(self._last)
        return len(tokens) > self._length and tuple(tokens[start : self._length]) == self._last

    def extend(self, tokens: Sequence[int]) -> None:
        """Index the n-grams that have a token behind them by now."""
        length = max(self._length, len(tokens) - 1)
        for end in range(self._length + 1, length + 1):
            for size in self._sizes:
                if size <= end:
                    self._ends[tuple(tokens[end - size : end])] = end
        self._length = length
        self._last = tuple(tokens[max(0, length - self._NUM_CHECKED) : length])

    def find_suffix(self, tokens: Sequence[int]) -> int | None:
        """Where the longest known n-gram that ``tokens`` ends with last ended."""
        for size in self._sizes:
            end = self._ends.get(tuple(tokens[-size:]))
            if end is not None:
                return end
        return None


def _continuation(tokens: Sequence[int], start: int, count: int) -> tuple[int, ...]:
    """``count`` tokens from ``start`` on; past the end, the tokens just drafted are read again."""
    period = len(tokens) - start
    known = tuple(tokens[start : start + count])
    return tuple(known[i % period] for i in range(count))
