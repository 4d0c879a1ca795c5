"""Conversion of a GGUF file: the same model comes out, once, whole or not at all."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import torch

from specdec_core.errors import UnsupportedModelError
from specdec_core.models import gguf as conversion
from specdec_core.models.forward import Segment
from specdec_core.models.loading import LoadOptions, ModelSource, load_model, resolve
from specdec_core.models.tokenizer import load_tokenizer
from tests.support.tiny_gguf import TOKENS, write_tiny_gguf
from tests.support.tiny_models import build_tiny_model

if TYPE_CHECKING:
    from pathlib import Path

torch.set_num_threads(1)

TEXT = [(11 * index + 5) % 40 for index in range(20)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model("llama", tmp_path_factory.mktemp("tiny") / "llama")


@pytest.fixture(scope="module")
def gguf_file(checkpoint: Path) -> Path:
    return write_tiny_gguf(checkpoint, checkpoint.parent / "tiny.gguf")


def logits_of(folder: Path) -> torch.Tensor:
    model = load_model(folder, LoadOptions())
    return model.forward([Segment(model.new_sequence(), TEXT, len(TEXT))])


def converted(gguf_file: Path, cache: Path, lines: list[str]) -> Path:
    return resolve(ModelSource(str(gguf_file)), cache, lines.append)


def test_the_converted_model_is_the_same_model(
    checkpoint: Path, gguf_file: Path, tmp_path: Path
) -> None:
    folder = converted(gguf_file, tmp_path, [])
    assert torch.equal(logits_of(folder), logits_of(checkpoint))
    assert load_model(folder, LoadOptions()).spec.eos_token_ids == (2,)


def test_the_converted_tokenizer_keeps_ids_and_template(gguf_file: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(converted(gguf_file, tmp_path, []))
    expected = tuple(TOKENS.index(token) for token in ("<|im_start|>", "h", "i", "Ġ", "4", "2"))
    assert tokenizer.encode("<|im_start|>hi 42", add_special_tokens=False) == expected
    assert tokenizer.decode(expected) == "hi 42"
    assert tokenizer.eos_token_ids == (2,)
    assert tokenizer.render_chat([{"role": "user", "content": "hi"}]) == "hi"


def test_a_file_is_converted_once(gguf_file: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    first = converted(gguf_file, tmp_path, lines)
    second = converted(gguf_file, tmp_path, lines)
    assert first == second
    assert len(lines) == 1
    assert [path.name for path in tmp_path.iterdir()] == [first.name]


def test_other_content_is_another_folder(gguf_file: Path, tmp_path: Path) -> None:
    before = converted(gguf_file, tmp_path, [])
    changed = tmp_path / gguf_file.name
    content = bytearray(gguf_file.read_bytes())
    content[-1] ^= 1
    changed.write_bytes(content)
    assert converted(changed, tmp_path, []) != before


def test_the_slower_of_two_processes_keeps_the_result_of_the_faster(
    gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overtaken(_: Path, folder: Path) -> None:
        (folder / "mine").touch()
        winner = tmp_path / folder.name.removeprefix(".").rsplit("-", 1)[0]
        winner.mkdir()
        (winner / "theirs").touch()

    monkeypatch.setattr(conversion, "_convert", overtaken)
    folder = converted(gguf_file, tmp_path, [])
    assert os.listdir(folder) == ["theirs"]
    assert os.listdir(tmp_path) == [folder.name]


def test_a_failed_conversion_leaves_nothing_behind(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF but not really")
    with pytest.raises(UnsupportedModelError, match="cannot be converted"):
        converted(broken, cache, [])
    assert list(cache.iterdir()) == []
