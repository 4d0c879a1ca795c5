"""The packaged SmolLM2-135M-Instruct: our runner against transformers on real weights."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from specdec_core.models.forward import Segment
from specdec_core.models.loading import LoadOptions, ModelSource, load_model, resolve
from specdec_core.models.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from specdec_core.models.forward import CausalModel
    from specdec_core.models.tokenizer import Tokenizer

pytestmark = [pytest.mark.weights, pytest.mark.slow]

NUM_TOKENS = 16
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def folder() -> Path:
    torch.set_num_threads(1)
    cache = Path(os.environ.get("SPECDEC_CACHE", "~/.cache/specdec")).expanduser()
    return resolve(ModelSource("packaged:smollm2-135m-instruct"), cache, lambda _: None)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(folder)


@pytest.fixture(scope="module")
def model(folder: Path) -> CausalModel:
    return load_model(folder, LoadOptions(kv_tokens=1024))


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@torch.inference_mode()
def oracle_logits(oracle: Any, tokens: tuple[int, ...]) -> torch.Tensor:
    logits: torch.Tensor = oracle(torch.tensor([tokens]), use_cache=False).logits[0]
    return logits


def test_logits_are_transformers(model: CausalModel, tokenizer: Tokenizer, oracle: Any) -> None:
    tokens = tokenizer.encode_chat(QUESTION)
    kv = model.new_sequence()
    ours = model.forward([Segment(kv, tokens, len(tokens))])
    expected = oracle_logits(oracle, tokens)
    kv.release()
    assert ((ours - expected).abs().max() / expected.abs().max()).item() <= 1e-4


def test_greedy_tokens_are_transformers(
    model: CausalModel, tokenizer: Tokenizer, oracle: Any
) -> None:
    prompt = tokenizer.encode("The three primary colours are")
    kv = model.new_sequence()
    logits = model.forward([Segment(kv, prompt, 1)])
    ours: list[int] = []
    for _ in range(NUM_TOKENS):
        ours.append(int(logits[-1].argmax()))
        logits = model.forward([Segment(kv, ours[-1:], 1)])
    kv.release()
    expected = oracle_logits(oracle, (*prompt, *ours)).argmax(dim=-1)[len(prompt) - 1 : -1]
    assert ours == expected.tolist()


def test_the_answer_makes_sense(model: CausalModel, tokenizer: Tokenizer) -> None:
    kv = model.new_sequence()
    logits = model.forward([Segment(kv, tokenizer.encode_chat(QUESTION), 1)])
    answer: list[int] = []
    while not set(answer) & set(tokenizer.eos_token_ids) and len(answer) < NUM_TOKENS:
        answer.append(int(logits[-1].argmax()))
        logits = model.forward([Segment(kv, answer[-1:], 1)])
    kv.release()
    assert tokenizer.decode(answer) == "The capital of France is Paris."


def test_text_survives_the_tokenizer(tokenizer: Tokenizer) -> None:
    text = "Grüße, 世界! 2 + 2 = 4;  two  spaces\n\tand tabs 🙂"
    assert tokenizer.vocab_size == 49152
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode("2024", add_special_tokens=False)) == 4
