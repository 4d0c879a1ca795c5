"""Every runner against transformers' own eager forward of the whole text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from specdec_core.models import loading
from specdec_core.models.forward import Segment
from specdec_core.models.loading import LoadOptions, load_model
from specdec_core.models.paged_storage import PagedKv
from specdec_core.models.runner import LlamaRunner
from specdec_core.models.storage import ContiguousKv
from specdec_core.models.transformers_runner import TransformersRunner
from tests.support.tiny_models import ARCHITECTURES, GENERIC, LLAMA_FAMILY, build_tiny_model

if TYPE_CHECKING:
    from pathlib import Path

    from specdec_core.models.forward import CausalModel

torch.set_num_threads(1)

TEXT = [(11 * index + 5) % 60 for index in range(40)]
OTHER = [(17 * index + 3) % 60 for index in range(9)]
THIRD = [(7 * index + 1) % 60 for index in range(23)]
STORAGES = {"contiguous": ContiguousKv, "paged": PagedKv}


class Case:
    """One checkpoint under test and its oracle."""

    def __init__(self, folder: Path, model: CausalModel) -> None:
        self.model = model
        self._oracle: Any = AutoModelForCausalLM.from_pretrained(
            folder, attn_implementation="eager", dtype=torch.float32
        )

    @torch.inference_mode()
    def expected(self, tokens: list[int]) -> torch.Tensor:
        logits: torch.Tensor = self._oracle(torch.tensor([tokens]), use_cache=False).logits[0]
        return logits


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("tiny")
    return {name: build_tiny_model(name, root / name) for name in ARCHITECTURES}


@pytest.fixture(params=[(name, kind) for name in ARCHITECTURES for kind in STORAGES], ids="-".join)
def case(
    request: pytest.FixtureRequest, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> Case:
    name, kind = request.param
    # Paged pages run on any device; only the choice by device is overridden here.
    monkeypatch.setattr(loading, "ContiguousKv", STORAGES[kind])
    model = load_model(folders[name], LoadOptions(kv_tokens=256, block_size=4))
    return Case(folders[name], model)


def assert_same(ours: torch.Tensor, expected: torch.Tensor) -> None:
    error = (ours - expected).abs().max() / expected.abs().max()
    assert ours.shape == expected.shape
    assert error.item() <= 1e-4


def test_whole_prefill_gives_transformers_logits(case: Case) -> None:
    kv = case.model.new_sequence()
    logits = case.model.forward([Segment(kv, TEXT, len(TEXT))])
    assert logits.dtype == torch.float32
    assert kv.length == len(TEXT)
    assert_same(logits, case.expected(TEXT))


def test_chunks_then_single_tokens_give_the_logits_of_the_whole_text(case: Case) -> None:
    kv = case.model.new_sequence()
    empty = case.model.forward([Segment(kv, TEXT[:18], 0)])
    rows = [case.model.forward([Segment(kv, TEXT[18:30], 5)])]
    rows += [case.model.forward([Segment(kv, [token], 1)]) for token in TEXT[30:]]
    assert empty.shape == (0, case.model.spec.vocab_size)
    assert_same(torch.cat(rows), case.expected(TEXT)[25:])


def test_a_ragged_batch_equals_each_session_alone(case: Case) -> None:
    first, second, third = (case.model.new_sequence() for _ in range(3))
    case.model.forward([Segment(first, TEXT[:30], 0), Segment(third, THIRD[:5], 1)])
    logits = case.model.forward(
        [
            Segment(first, TEXT[30:34], 4),
            Segment(second, OTHER, 2),
            Segment(third, THIRD[5:], 0),
        ]
    )
    later = case.model.forward(
        [Segment(third, [7], 1), Segment(first, [9], 1), Segment(second, [2, 3], 1)]
    )
    assert_same(logits[:4], case.expected(TEXT[:34])[30:])
    assert_same(logits[4:], case.expected(OTHER)[-2:])
    assert_same(later[0:1], case.expected([*THIRD, 7])[-1:])
    assert_same(later[1:2], case.expected([*TEXT[:34], 9])[-1:])
    assert_same(later[2:3], case.expected([*OTHER, 2, 3])[-1:])


def test_other_tokens_after_a_rollback_equal_a_fresh_text(case: Case) -> None:
    kv = case.model.new_sequence()
    case.model.forward([Segment(kv, TEXT, 0)])
    kv.truncate(13)
    case.model.forward([Segment(kv, OTHER[:4], 1)])
    kv.truncate(14)
    logits = case.model.forward([Segment(kv, OTHER, len(OTHER))])
    assert_same(logits, case.expected([*TEXT[:13], OTHER[0], *OTHER])[14:])


def test_the_comparison_notices_a_missing_rollback(folders: dict[str, Path]) -> None:
    model = load_model(folders["llama"], LoadOptions())
    kv = model.new_sequence()
    model.forward([Segment(kv, TEXT[:13], 0)])
    logits = model.forward([Segment(kv, OTHER, len(OTHER))])
    expected = Case(folders["llama"], model).expected([*TEXT[:12], *OTHER])[12:]
    with pytest.raises(AssertionError):
        assert_same(logits, expected)


@pytest.mark.parametrize("name", ["llama", "qwen2-window", "opt", "gemma3", "gpt2"])
def test_first_layers_equal_transformers_with_fewer_layers(
    folders: dict[str, Path], name: str
) -> None:
    config = AutoConfig.from_pretrained(folders[name])
    config.num_hidden_layers = 2
    if name in {"qwen2-window", "gemma3"}:
        config.layer_types = config.layer_types[:2]
    oracle: Any = AutoModelForCausalLM.from_pretrained(
        folders[name], config=config, attn_implementation="eager", dtype=torch.float32
    )
    with torch.inference_mode():
        expected = oracle(torch.tensor([TEXT]), use_cache=False).logits[0]
    model = load_model(folders[name], LoadOptions(num_layers=2))
    logits = model.forward([Segment(model.new_sequence(), TEXT, len(TEXT))])
    assert_same(logits, expected)


@pytest.mark.parametrize("name", ["llama", "qwen3", "opt"])
def test_float64_is_exact_whatever_the_chunks(folders: dict[str, Path], name: str) -> None:
    model = load_model(folders[name], LoadOptions(dtype="float64"))
    whole = model.forward([Segment(model.new_sequence(), TEXT, len(TEXT))])
    kv = model.new_sequence()
    rows = [model.forward([Segment(kv, [token], 1)]) for token in TEXT]
    assert whole.dtype == torch.float64
    assert (torch.cat(rows) - whole).abs().max().item() < 1e-12


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_llama_family_has_the_fast_path_and_the_rest_the_generic_one(
    folders: dict[str, Path], name: str
) -> None:
    model = load_model(folders[name], LoadOptions())
    assert isinstance(model, LlamaRunner) == (name in LLAMA_FAMILY)
    assert isinstance(model, TransformersRunner) == (name in GENERIC)


@pytest.mark.parametrize("name", ["llama-tied", "llama-biased", "gpt2"])
def test_the_parameter_count_is_transformers(folders: dict[str, Path], name: str) -> None:
    oracle: Any = AutoModelForCausalLM.from_pretrained(folders[name])
    spec = load_model(folders[name], LoadOptions()).spec
    assert spec.num_parameters == oracle.num_parameters()
    assert (spec.vocab_size, spec.max_context, spec.eos_token_ids) == (64, 96, (1,))
