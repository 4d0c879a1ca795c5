"""The same draft length every round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdec_core.draft_length.base import DraftLengthState
from specdec_core.errors import InvalidArgumentError
from specdec_core.params import MAX_DRAFT_TOKENS

if TYPE_CHECKING:
    from specdec_core.draft_length.base import RoundObservation


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always ``num_draft_tokens``; 0 decodes plainly.

    Raises:
        InvalidArgumentError: on construction, if it is not in [0, MAX_DRAFT_TOKENS].
    """

    num_draft_tokens: int

    def __post_init__(self) -> None:
        if not 0 <= self.num_draft_tokens <= MAX_DRAFT_TOKENS:
            raise InvalidArgumentError(
                "num_draft_tokens",
                f"must be in [0, {MAX_DRAFT_TOKENS}], got {self.num_draft_tokens}",
            )

    def initial_state(self) -> DraftLengthState:
        return DraftLengthState()

    def choose(
        self, state: DraftLengthState, _observation: RoundObservation, /
    ) -> tuple[int, DraftLengthState]:
        return self.num_draft_tokens, state
