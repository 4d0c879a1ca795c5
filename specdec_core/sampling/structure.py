"""The grammar of one session, kept in step with its tokens as its KV is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec_core.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdec_core.params import SamplingParams
    from specdec_core.structured import GrammarBackend, GrammarState


class Structure:
    """Follows the output of one session, drafts included, and gives the mask of every position."""

    def __init__(
        self, state: GrammarState, *, prompt_len: int, stop_token_ids: Sequence[int]
    ) -> None:
        """Follow an output that starts behind ``prompt_len`` tokens, with a ``state`` that has taken none."""
        self._state = state
        self._prompt_len = prompt_len
        self._stop_token_ids = frozenset(stop_token_ids)
        self._length = prompt_len  # tokens of the session that the state stands behind

    @property
    def length(self) -> int:
        """Tokens of the session, prompt included, that the grammar has taken."""
        return self._length

    def truncate(self, length: int) -> None:
        """Forget every token from position ``length`` of the session on."""
        kept = max(length, self._prompt_len)
        if kept < self._length:
            self._state.rollback(self._length - kept)
            self._length = kept

    def masks(self, tokens: Sequence[int], num_rows: int) -> list[bytes | None]:
        """Which tokens may follow each of the last ``num_rows`` prefixes of ``tokens``, the whole of it being the last.

        None stands for a prefix that cannot come to be, since a token of it is forbidden or ends the generation; what is drawn
        there is never committed. ``tokens`` must agree with those seen before up to the first of these prefixes, or up to where
        the structure was truncated since.

        Raises:
            ProtocolError: if the first prefix breaks the grammar.
            InvalidArgumentError: if the grammar has grown too complex to go on.
        """
        first = len(tokens) - num_rows + 1
        self.truncate(first)
        self._follow(tokens[self._length : first])
        masks: list[bytes | None] = [self._state.mask()]
        for token in tokens[first:]:
            if token in self._stop_token_ids or not self._take(token):
                break
            masks.append(self._state.mask())
        return masks + [None] * (num_rows - len(masks))

    def _follow(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if not self._take(token):
                raise ProtocolError(
                    f"token {token} at {self._length} breaks the structure of the output"
                )

    def _take(self, token: int) -> bool:
        is_taken = self._state.advance(token)
        self._length += is_taken
        return is_taken


def structure_of(
    params: SamplingParams, prompt_len: int, grammars: GrammarBackend
) -> Structure | None:
    """What follows the output of a session with these parameters; None where they demand no structure.

    Raises:
        InvalidArgumentError: if the demand is refused.
    """
    if params.structured is None:
        return None
    state = grammars.compile(params.structured)
    return Structure(state, prompt_len=prompt_len, stop_token_ids=params.stop_token_ids)
