"""Every architecture we claim, tiny and random: the engine's greedy output is transformers' own, whatever drafts for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from specdec_core.drafters.lm import LmDrafter
from specdec_core.drafters.ngram import NgramDrafter
from specdec_core.models.loading import LoadOptions, Quantization, load_model
from specdec_core.params import GenerationParams, SamplingParams, SpeculationParams
from tests.support.drafters import ScriptedDrafter
from tests.support.generation import Wish, generate
from tests.support.tiny_models import SPECIAL_TOKENS, VOCAB_SIZE, build_tiny_model

if TYPE_CHECKING:
    from pathlib import Path

    from specdec_core.drafters.base import Drafter
    from specdec_core.models.forward import CausalModel

# Each with a seed whose random model does not say one token for ever.
FAMILIES = {
    "llama": 4,
    "mistral": 4,
    "qwen2": 4,
    "qwen3": 4,
    "opt": 0,
    "gpt-neox": 4,
    "gpt2": 4,
    "gemma2": 4,
    "gemma3": 4,
}
UNTIED = {"tie_word_embeddings": False}  # a tied random model says its last token for ever
MAX_TOKENS = 16
PROMPTS = ((9, 10, 11, 9, 10), tuple(6 + index * 7 % 50 for index in range(23)), (40,))
PAD = SPECIAL_TOKENS.index("<pad>")


@dataclass(frozen=True)
class Subject:
    """One architecture: our model of it, what transformers generates, and what can draft for it."""

    model: CausalModel
    expected: tuple[tuple[int, ...], ...]  # a continuation of each prompt
    folder: Path
    sibling: Path  # the same architecture with other weights

    def drafter(self, name: str) -> Drafter:
        match name:
            case "ngram":
                return NgramDrafter()
            case "wrong":
                return ScriptedDrafter([*PROMPTS[0], *self.expected[0]], VOCAB_SIZE, shift=1)
            case "lm":
                return self._lm(self.sibling, LoadOptions(kv_tokens=2048))
            case "layer_skip":
                return self._lm(self.folder, LoadOptions(kv_tokens=2048, num_layers=1))
            case _:
                options = LoadOptions(kv_tokens=2048, quantization=Quantization.INT4, group_size=32)
                return self._lm(self.folder, options)

    def check(self, drafter: Drafter, gamma: int) -> None:
        params = GenerationParams(
            SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS), SpeculationParams(gamma)
        )
        wishes = [Wish(f"{number}", prompt, params) for number, prompt in enumerate(PROMPTS)]

        states = generate(self.model, drafter, wishes)

        outputs = tuple(states[wish.session_id].output for wish in wishes)
        assert outputs == self.expected

    def _lm(self, folder: Path, options: LoadOptions) -> LmDrafter:
        return LmDrafter(load_model(folder, options), vocab_size=VOCAB_SIZE)


@torch.inference_mode()
def continuation(model: Any, prompt: tuple[int, ...]) -> tuple[int, ...]:
    """What transformers makes of the prompt with its own cache and its own loop."""
    ids = torch.tensor([prompt])
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=MAX_TOKENS,
        pad_token_id=PAD,
    )
    return tuple(output[0, len(prompt) :].tolist())


@pytest.fixture(scope="module", params=list(FAMILIES))
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return build(request.param, tmp_path_factory.mktemp(request.param))


def build(name: str, parent: Path) -> Subject:
    folder = build_tiny_model(name, parent / "target", seed=FAMILIES[name], overrides=UNTIED)
    sibling = build_tiny_model(name, parent / "sibling", seed=1, overrides=UNTIED)
    oracle: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    expected = tuple(continuation(oracle, prompt) for prompt in PROMPTS)
    return Subject(load_model(folder, LoadOptions(kv_tokens=2048)), expected, folder, sibling)


@pytest.mark.parametrize("drafter", ["ngram", "lm", "layer_skip", "quantized", "wrong"])
def test_greedy_output_is_transformers_for_every_drafter(subject: Subject, drafter: str) -> None:
    drafting = subject.drafter(drafter)
    for gamma in (1, 4, 16):
        subject.check(drafting, gamma)


@pytest.mark.parametrize("drafter", ["ngram", "quantized", "wrong"])
def test_greedy_output_is_transformers_for_every_draft_length(drafter: str, llama: Subject) -> None:
    drafting = llama.drafter(drafter)
    for gamma in range(17):
        llama.check(drafting, gamma)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return build("llama", tmp_path_factory.mktemp("llama"))


def test_plain_greedy_output_is_transformers_and_not_trivial(subject: Subject) -> None:
    subject.check(NgramDrafter(), 0)

    assert len(set(subject.expected)) == len(PROMPTS)
    assert len({token for output in subject.expected for token in output}) > 7
