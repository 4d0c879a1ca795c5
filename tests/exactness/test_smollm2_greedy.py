"""The embedded default on real weights: greedy answers are transformers' own, token for token."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from deployments.assembly import target_folder
from deployments.config import Config, load_config
from deployments.local import LocalServer
from deployments.transport.api_records import ChatMessage, ChatPrompt, GenerationCall, Produced
from specdec_core.models.tokenizer import load_tokenizer
from specdec_core.params import GenerationParams, SamplingParams, SpeculationParams
from specdec_core.types import AcceptanceRule

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.weights, pytest.mark.slow]

NUM_TOKENS = 64
QUESTIONS = (
    "Explain in a few sentences why the sky is blue.",
    "Write a short story about a lighthouse keeper who finds a message in a bottle.",
    "List the steps to bake a loaf of bread, and say why each matters.",
    "What is the difference between a list and a tuple in Python?",
    "Translate to French: The weather is nice today, so we will walk to the market.",
)


@pytest.fixture(scope="module")
def config() -> Config:
    return load_config(None, os.environ)


@pytest.fixture(scope="module")
def folder(config: Config) -> Path:
    return target_folder(config, lambda _line: None)


@pytest.fixture(scope="module")
def server(config: Config) -> LocalServer:
    return LocalServer(config, lambda _line: None)


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)  # in eval mode


@torch.inference_mode()
def continuation(oracle: Any, prompt: tuple[int, ...]) -> list[int]:
    ids = torch.tensor([prompt])
    output = oracle.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=NUM_TOKENS,
    )
    return [int(token) for token in output[0, len(prompt) :]]


@torch.inference_mode()
def margin(oracle: Any, prompt: tuple[int, ...], output: list[int]) -> float:
    """How far the likeliest next token is ahead of the second, in logits."""
    first, second = oracle(torch.tensor([[*prompt, *output]])).logits[0, -1].topk(2).values.tolist()
    return float(first - second)


@pytest.mark.parametrize("question", QUESTIONS)
def test_greedy_answers_of_the_default_configuration_are_transformers(
    question: str, server: LocalServer, folder: Path, oracle: Any
) -> None:
    prompt = load_tokenizer(folder).encode_chat([{"role": "user", "content": question}])
    params = GenerationParams(
        SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS),
        SpeculationParams(3, AcceptanceRule.COUPLED),
    )
    call = GenerationCall(ChatPrompt((ChatMessage("user", question),)), params)

    events = [event for event in server.generate(call) if isinstance(event, Produced)]

    output = [each.token for event in events for each in event.tokens]
    expected = continuation(oracle, prompt)
    agreed = next(
        (n for n, pair in enumerate(zip(output, expected, strict=False)) if pair[0] != pair[1]),
        min(len(output), len(expected)),
    )
    assert output == expected, (agreed, margin(oracle, prompt, expected[:agreed]))
    assert len(events) < len(output)  # drafts were accepted
