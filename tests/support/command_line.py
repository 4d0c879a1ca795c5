"""What tests of the command line share: tiny models, configuration files that name them, and what a mistake prints."""

from __future__ import annotations

import shutil
import signal
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import yaml

from tests.support.tiny_models import CHARACTERS, build_tiny_model, save_tiny_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class ConfigWriter:
    """Writes a configuration file with the tiny target and the sections given; the call gives its path."""

    models: Path
    folder: Path

    def __call__(self, **sections: dict[str, object]) -> str:
        target = {"model": str(self.models / "target"), "kv_tokens": 512}
        values = {"drafter": {"kind": "ngram"}, **sections}
        values["target"] = {**target, **sections.get("target", {})}
        path = self.folder / "config.yaml"
        path.write_text(yaml.safe_dump(values), encoding="utf-8")
        return str(path)


def build_models(folder: Path) -> Path:
    """Folders ``target``, ``small`` (same vocabulary), ``foreign`` (another one) and ``empty`` (no weights)."""
    build_tiny_model("llama", folder / "target")
    build_tiny_model("llama", folder / "small", seed=1, overrides={"num_hidden_layers": 1})
    build_tiny_model("llama", folder / "foreign", seed=1)
    save_tiny_tokenizer(folder / "foreign", characters="ba" + CHARACTERS[2:])
    shutil.copytree(folder / "target", folder / "empty", ignore=lambda *_: ["model.safetensors"])
    return folder


@contextmanager
def signal_handlers_restored() -> Iterator[None]:
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def the_error(capsys: pytest.CaptureFixture[str]) -> str:
    """The only line on stderr besides progress; nothing is on stdout."""
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    mistakes = [line for line in lines if not line.startswith("loading ")]
    assert len(mistakes) == 1, lines
    assert mistakes[0] == lines[-1]
    prefix, _, text = mistakes[0].partition("error: ")
    assert prefix == ""
    return text
