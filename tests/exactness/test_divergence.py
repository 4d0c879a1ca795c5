"""What rounding may change in greedy decoding, and that nothing else passes for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from specdec_core.errors import InvariantError
from specdec_core.models.divergence import NEAR_TIE_TOLERANCES, divergence
from specdec_core.models.forward import Segment
from specdec_core.models.loading import LoadOptions, load_model
from tests.support.forward_paths import text
from tests.support.tiny_models import build_tiny_model

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from specdec_core.models.forward import CausalModel

VOCAB_SIZE = 2048
NUM_TOKENS = 60
WIDTHS = {"vocab_size": VOCAB_SIZE, "hidden_size": 128, "intermediate_size": 256}
PROMPTS = [text(8, VOCAB_SIZE, seed) for seed in range(12)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model("llama", tmp_path_factory.mktemp("tiny"), overrides=WIDTHS)


@pytest.fixture(scope="module")
def model(folder: Path) -> CausalModel:
    torch.set_num_threads(1)
    return load_model(folder, LoadOptions(kv_tokens=256, dtype="bfloat16"))


def greedy(model: CausalModel, prompt: Sequence[int], *, gamma: int) -> list[int]:
    """Prompt and output of greedy decoding with ``gamma`` repetitions of the last token as each draft."""
    tokens = list(prompt)
    kv = model.new_sequence()
    model.forward([Segment(kv, tokens[:-1], 0)])
    while len(tokens) < len(prompt) + NUM_TOKENS:
        block = [tokens[-1]] * (gamma + 1)
        drawn = model.forward([Segment(kv, block, gamma + 1)]).argmax(dim=-1).tolist()
        wrong = (index for index in range(gamma) if drawn[index] != block[index + 1])
        tokens.extend(drawn[: next(wrong, gamma) + 1])
        kv.truncate(len(tokens) - 1)
    kv.release()
    return tokens[: len(prompt) + NUM_TOKENS]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_diverges_at_near_ties_only(dtype: str, folder: Path) -> None:
    model = load_model(folder, LoadOptions(kv_tokens=256, dtype=dtype))
    found = [
        divergence(
            model, greedy(model, prompt, gamma=0), greedy(model, prompt, gamma=4), len(prompt)
        )
        for prompt in PROMPTS
    ]
    tolerance = NEAR_TIE_TOLERANCES[dtype]
    divergences = [each for each in found if each is not None]
    assert all(each.is_near_tie(tolerance) for each in divergences)
    assert all(each.margin <= tolerance * each.largest for each in divergences)
    assert dtype == "float16" or divergences  # bfloat16 rounds coarsely enough to show some


def test_float32_does_not_diverge(folder: Path) -> None:
    model = load_model(folder, LoadOptions(kv_tokens=256))
    for prompt in PROMPTS:
        plain, speculative = (greedy(model, prompt, gamma=gamma) for gamma in (0, 4))
        assert plain == speculative


def test_a_planted_wrong_token_is_no_near_tie(model: CausalModel) -> None:
    prompt = PROMPTS[0]
    right = greedy(model, prompt, gamma=0)
    kv = model.new_sequence()
    row = model.forward([Segment(kv, right[:20], 1)])[0]
    kv.release()
    middling = int(row.argsort()[VOCAB_SIZE // 2])
    planted = [*right[:20], middling, *right[21:]]
    found = divergence(model, right, planted, len(prompt))
    assert found is not None
    assert (found.position, found.token_a, found.token_b) == (20, right[20], middling)
    assert found.shortfall == pytest.approx(float(row.max() - row[middling]), rel=0.05)
    assert not found.is_near_tie(NEAR_TIE_TOLERANCES["bfloat16"])


def test_the_best_two_tokens_fall_short_by_the_margin(model: CausalModel) -> None:
    prompt = PROMPTS[1]
    kv = model.new_sequence()
    row = model.forward([Segment(kv, prompt, 1)])[0]
    kv.release()
    values, (first, second) = row.topk(2).values.tolist(), row.topk(2).indices.tolist()
    found = divergence(model, [*prompt, first], [*prompt, second], len(prompt))
    assert found is not None
    assert found.margin == found.shortfall == values[0] - values[1]
    assert found.largest == row.abs().max().item()


def test_outputs_that_agree_as_far_as_both_go_do_not_diverge(model: CausalModel) -> None:
    prompt = PROMPTS[0]
    assert divergence(model, [*prompt, 1, 2], [*prompt, 1, 2], len(prompt)) is None
    assert divergence(model, [*prompt, 1, 2], [*prompt, 1], len(prompt)) is None


def test_outputs_of_different_prompts_are_not_compared(model: CausalModel) -> None:
    with pytest.raises(InvariantError, match="the same prompt"):
        divergence(model, [1, 2, 3], [1, 4, 3], 2)
    with pytest.raises(InvariantError, match="the same prompt"):
        divergence(model, [1], [2], 0)


def test_a_comparison_leaves_no_kv_behind(folder: Path) -> None:
    model = load_model(folder, LoadOptions(kv_tokens=32, block_size=16))
    for _ in range(5):
        assert divergence(model, [*range(30), 1], [*range(30), 2], 30) is not None
