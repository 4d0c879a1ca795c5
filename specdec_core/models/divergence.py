"""Where two greedy outputs of one model part, and whether rounding alone can explain it.

In float32 speculative and plain greedy decoding give the same tokens. In bfloat16 and float16 logits that are nearly equal may change
places when another number of tokens shares the forward; a token that lies further below the best one than that is a bug.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch

from specdec_core.errors import InvariantError
from specdec_core.models.forward import Segment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdec_core.models.forward import CausalModel

# By the name of a dtype: how much of the largest logit two forwards of one text may differ by.
NEAR_TIE_TOLERANCES: Mapping[str, float] = MappingProxyType(
    {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
)


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first position at which two outputs differ, and the logits that a forward of the tokens before it gives there."""

    position: int  # counted from the start of the prompt
    token_a: int
    token_b: int
    margin: float  # best logit minus second best
    shortfall: float  # best logit minus the lower of the two tokens'; equals margin if they are the best two
    largest: float  # the largest absolute logit of the row

    def is_near_tie(self, tolerance: float) -> bool:
        """Whether both tokens are within ``tolerance`` of the best, as a fraction of the largest logit."""
        return self.shortfall <= tolerance * self.largest


def divergence(
    model: CausalModel, tokens_a: Sequence[int], tokens_b: Sequence[int], prompt_len: int
) -> Divergence | None:
    """Find where two greedy outputs of ``model`` part, prompt included in both; None if neither contradicts the other.

    An output that ends where the other goes on contradicts nothing here; lengths are for the caller to compare.

    Raises:
        InvariantError: if the prompts differ, or there is no prompt.
        OverloadedError: if the model's KV memory cannot hold the common tokens; no KV has changed then.
    """
    if prompt_len < 1 or tokens_a[:prompt_len] != tokens_b[:prompt_len]:
        raise InvariantError("two outputs are compared that do not continue the same prompt")
    pairs = enumerate(zip(tokens_a, tokens_b, strict=False))
    position = next((index for index, (a, b) in pairs if a != b), None)
    if position is None:
        return None
    row = _next_logits(model, tokens_a[:position])
    best, second = row.topk(2).values.tolist()
    token_a, token_b = tokens_a[position], tokens_b[position]
    return Divergence(
        position=position,
        token_a=token_a,
        token_b=token_b,
        margin=best - second,
        shortfall=best - row[[token_a, token_b]].min().item(),
        largest=row.abs().max().item(),
    )


def _next_logits(model: CausalModel, tokens: Sequence[int]) -> torch.Tensor:  # [vocab_size]
    kv = model.new_sequence()
    try:
        return model.forward([Segment(kv, tokens, 1)])[0].to(torch.float64)
    finally:
        kv.release()
