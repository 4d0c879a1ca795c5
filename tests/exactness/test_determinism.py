"""Deterministic numerics: a token's logits have the same bits whatever shares its forwards. Every comparison here is of bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from deployments.assembly import load_target
from deployments.config import parse_config
from specdec_core.errors import UnsupportedModelError
from specdec_core.models import loading
from specdec_core.models.loading import LoadOptions, Numerics, Quantization, load_model
from specdec_core.models.paged_storage import PagedKv
from specdec_core.models.storage import ContiguousKv
from tests.support.forward_paths import (
    VERIFIED_COUNTS,
    among_others,
    at_random_cuts,
    in_chunks,
    one_by_one,
    text,
    verified,
    whole,
)
from tests.support.tiny_models import build_tiny_model

if TYPE_CHECKING:
    from pathlib import Path

    from specdec_core.models.forward import CausalModel

VOCAB_SIZE = 320
_BASE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "num_hidden_layers": 2,
    "max_position_embeddings": 400,
}
_SMOLLM2_WIDTHS = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-of-smollm2-widths": ("llama", _SMOLLM2_WIDTHS),
    "qwen3-of-odd-widths": (
        "qwen3",
        {"hidden_size": 200, "intermediate_size": 1100, "head_dim": 64},
    ),
    "qwen2-biased": ("qwen2", {"hidden_size": 96, "intermediate_size": 300}),
    "mistral-with-window": ("mistral", {"hidden_size": 32, "intermediate_size": 100}),
    "gemma2-generic-with-softcap": ("gemma2", {"intermediate_size": 64}),
}
STORAGES = {"contiguous": ContiguousKv, "paged": PagedKv}
TOKENS = text(72, VOCAB_SIZE, seed=1)
DETERMINISTIC = LoadOptions(kv_tokens=2048, block_size=4, numerics=Numerics.DETERMINISTIC)
FAST = LoadOptions(kv_tokens=2048, block_size=4)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("tiny")
    return {
        name: build_tiny_model(variant, root / name, overrides={**_BASE, **widths})
        for name, (variant, widths) in MODELS.items()
    }


@pytest.fixture(
    scope="module", params=[(name, kind) for name in MODELS for kind in STORAGES], ids="-".join
)
def model(request: pytest.FixtureRequest, folders: dict[str, Path]) -> CausalModel:
    torch.set_num_threads(
        1
    )  # a fixture of this scope comes before the one that sets it for each test
    name, kind = request.param
    with pytest.MonkeyPatch.context() as patch:
        # Paged pages run on any device; only the choice by device is overridden here.
        patch.setattr(loading, "ContiguousKv", STORAGES[kind])
        return load_model(folders[name], DETERMINISTIC)


def test_decoding_one_by_one_gives_the_bits_of_a_whole_prefill(model: CausalModel) -> None:
    assert torch.equal(one_by_one(model, TOKENS), whole(model, TOKENS))


@pytest.mark.parametrize("seed", range(2))
def test_cuts_of_a_prefill_change_no_bit(model: CausalModel, seed: int) -> None:
    assert torch.equal(at_random_cuts(model, TOKENS, seed), whole(model, TOKENS))


def test_verifying_any_number_of_tokens_changes_no_bit(model: CausalModel) -> None:
    expected = whole(model, TOKENS)
    for count in VERIFIED_COUNTS:
        assert torch.equal(verified(model, TOKENS, count), expected[-count:]), count


@pytest.mark.parametrize("seed", range(2))
def test_other_sessions_in_the_batch_change_no_bit(model: CausalModel, seed: int) -> None:
    assert torch.equal(among_others(model, TOKENS, seed), whole(model, TOKENS))


def test_how_the_memory_grew_changes_no_bit(model: CausalModel) -> None:
    long = text(301, VOCAB_SIZE, seed=2)  # one slot of 301 tokens, against one doubled to 512
    assert torch.equal(whole(model, long), in_chunks(model, long, [200, 80, 21]))


@pytest.mark.parametrize("name", MODELS)
def test_both_storages_give_the_same_bits(
    name: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    contiguous = at_random_cuts(load_model(folders[name], DETERMINISTIC), TOKENS, seed=5)
    monkeypatch.setattr(loading, "ContiguousKv", PagedKv)
    assert torch.equal(contiguous, one_by_one(load_model(folders[name], DETERMINISTIC), TOKENS))


@pytest.mark.parametrize("name", ["llama-of-smollm2-widths", "qwen3-of-odd-widths"])
def test_two_threads_change_no_bit_either(name: str, folders: dict[str, Path]) -> None:
    torch.set_num_threads(2)
    model = load_model(folders[name], DETERMINISTIC)
    expected = whole(model, TOKENS)
    for count in (1, 2, 17):
        assert torch.equal(verified(model, TOKENS, count), expected[-count:])
    assert torch.equal(among_others(model, TOKENS, seed=3), expected)


@pytest.mark.parametrize("name", MODELS)
def test_fast_numerics_do_differ_in_the_last_bits(name: str, folders: dict[str, Path]) -> None:
    model = load_model(folders[name], FAST)
    expected = whole(model, TOKENS)
    others = (one_by_one(model, TOKENS), at_random_cuts(model, TOKENS, 0))
    assert not all(torch.equal(other, expected) for other in others)
    assert all(torch.allclose(other, expected, rtol=0, atol=1e-3) for other in others)


@pytest.mark.parametrize("name", MODELS)
def test_deterministic_and_fast_agree_within_rounding(name: str, folders: dict[str, Path]) -> None:
    deterministic = whole(load_model(folders[name], DETERMINISTIC), TOKENS)
    fast = whole(load_model(folders[name], FAST), TOKENS)
    assert ((deterministic - fast).abs().max() / fast.abs().max()).item() <= 1e-4


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (LoadOptions(device="meta", numerics=Numerics.DETERMINISTIC), "batch-invariant kernels"),
        (LoadOptions(dtype="bfloat16", numerics=Numerics.DETERMINISTIC), "float32 only"),
        (LoadOptions(dtype="float64", numerics=Numerics.DETERMINISTIC), "float32 only"),
        (
            LoadOptions(quantization=Quantization.INT8, numerics=Numerics.DETERMINISTIC),
            "unrounded weights only",
        ),
    ],
)
def test_what_cannot_be_deterministic_is_refused_with_the_reason(
    options: LoadOptions, reason: str, folders: dict[str, Path]
) -> None:
    with pytest.raises(UnsupportedModelError, match=f"^numerics: .*{reason}"):
        load_model(folders["mistral-with-window"], options)


def test_a_generic_model_is_refused_with_several_threads(folders: dict[str, Path]) -> None:
    torch.set_num_threads(2)
    with pytest.raises(UnsupportedModelError, match="one thread only"):
        load_model(folders["gemma2-generic-with-softcap"], DETERMINISTIC)


def test_a_generic_model_whose_modules_follow_the_batch_is_refused(tmp_path: Path) -> None:
    folder = build_tiny_model("gemma2", tmp_path, overrides={"intermediate_size": 100})
    with pytest.raises(UnsupportedModelError, match="depend on what shares a forward"):
        load_model(folder, DETERMINISTIC)


def test_the_configuration_reaches_the_model(folders: dict[str, Path]) -> None:
    target = {"model": str(folders["mistral-with-window"]), "numerics": "deterministic"}
    load_target(parse_config({"target": target}), lambda _: None)
    with pytest.raises(UnsupportedModelError, match="float32 only"):
        load_target(parse_config({"target": {**target, "dtype": "bfloat16"}}), lambda _: None)
