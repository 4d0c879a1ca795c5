"""Before a generic model serves, it must show that it rewinds: our attention over cut KV equals transformers' own over the text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from specdec_core.errors import UnsupportedModelError
from specdec_core.models.forward import Segment
from specdec_core.models.transformers_runner import ATTENTION_NAME

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specdec_core.models.transformers_runner import TransformersRunner

_TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3}  # of the largest logit
_HALF_TOLERANCE = 5e-2
_TEXT_LENGTH = 6
_CUT = 3


@torch.inference_mode()
def check_rewind(runner: TransformersRunner, model: PreTrainedModel) -> None:
    """Feed a text, cut it, feed another end, and compare with the whole text run by transformers' eager attention.

    Raises:
        UnsupportedModelError: if the logits differ by more than rounding.
    """
    tokens = [(7 * index + 1) % runner.spec.vocab_size for index in range(_TEXT_LENGTH)]
    wrong_end = [(token + 1) % runner.spec.vocab_size for token in tokens[_CUT:]]
    kv = runner.new_sequence()
    runner.forward([Segment(kv, tokens[:_CUT] + wrong_end, 0)])
    kv.truncate(_CUT)
    ours = runner.forward([Segment(kv, tokens[_CUT:], _TEXT_LENGTH - _CUT)])
    kv.release()
    expected = _eager_logits(model, tokens)[_CUT:].to(ours.dtype)
    tolerance = _TOLERANCES.get(model.dtype, _HALF_TOLERANCE)
    error = (ours - expected).abs().max() / expected.abs().max()
    if not error <= tolerance:
        raise UnsupportedModelError(
            f"model: cannot be served: cutting and refeeding its KV changes the logits by {error.item():.1e} of the largest"
        )


def _eager_logits(model: PreTrainedModel, tokens: list[int]) -> torch.Tensor:  # [n, vocab_size]
    model.set_attn_implementation("eager")
    try:
        inputs = torch.tensor([tokens], device=model.device)
        logits: torch.Tensor = model(input_ids=inputs, use_cache=False).logits[0]
    finally:
        model.set_attn_implementation(ATTENTION_NAME)
    return logits
