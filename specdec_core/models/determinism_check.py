"""Before a model serves as deterministic, it must show that a token's logits do not depend on what shares its forward."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from specdec_core.errors import UnsupportedModelError
from specdec_core.models.forward import Segment

if TYPE_CHECKING:
    from specdec_core.models.forward import CausalModel

_TEXT_LENGTH = 6
_CUTS = (1, 3)  # a token alone, then two, then the rest beside another session


def require_one_thread() -> None:
    """Refuse what a generic model cannot promise: threads split the elementwise work of its modules in the middle of rows.

    Raises:
        UnsupportedModelError: if torch computes with several threads.
    """
    if torch.get_num_threads() > 1:
        raise UnsupportedModelError(
            "numerics: deterministic is possible for this family with one thread only; set threads to 1"
        )


def check_determinism(model: CausalModel) -> None:
    """Run a text whole and in pieces, and compare every bit of the logits.

    It is a short text, to keep loading short; it finds what the strategies cannot reach, such as a transformers module with a kernel
    whose rounding follows the shape of the batch.

    Raises:
        UnsupportedModelError: if a bit differs.
    """
    vocab_size = model.spec.vocab_size
    tokens = [(7 * index + 1) % vocab_size for index in range(_TEXT_LENGTH)]
    whole, pieces, other = (model.new_sequence() for _ in range(3))
    expected = model.forward([Segment(whole, tokens, _TEXT_LENGTH)])
    first, second = _CUTS
    beside = Segment(other, tokens[::-1], 1)
    rows = [
        model.forward([Segment(pieces, tokens[:first], first)]),
        model.forward([Segment(pieces, tokens[first:second], second - first)]),
        model.forward([beside, Segment(pieces, tokens[second:], _TEXT_LENGTH - second)])[1:],
    ]
    for sequence in (whole, pieces, other):
        sequence.release()
    if not torch.equal(torch.cat(rows), expected):
        raise UnsupportedModelError(
            "numerics: deterministic is not possible here: this model's logits depend on what shares a forward"
        )
