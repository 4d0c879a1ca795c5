"""A folder with a model: its configuration files and its safetensors weights, read without running anything from it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from specdec_core.errors import NotFoundError, UnsupportedModelError

if TYPE_CHECKING:
    from pathlib import Path

    import torch


def check_folder(folder: Path) -> None:
    """Refuse what is not a folder with a configuration and safetensors weights.

    Raises:
        NotFoundError: if the folder or its config.json is missing.
        UnsupportedModelError: if it holds no safetensors weights.
    """
    if not folder.is_dir():
        raise NotFoundError(f"model: no folder {folder}")
    if not (folder / "config.json").is_file():
        raise NotFoundError(f"model: {folder} holds no config.json")
    if not any(folder.glob("*.safetensors")):
        raise UnsupportedModelError(
            f"model: {folder} holds no *.safetensors weights, and only safetensors are loaded: other formats can run code"
        )


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """The object in one of the folder's JSON files; empty if there is no such file.

    Raises:
        UnsupportedModelError: if the file is not a JSON object.
    """
    path = folder / name
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UnsupportedModelError(f"model: {path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise UnsupportedModelError(f"model: {path} is not a JSON object")
    return content


def end_of_sequence_ids(folder: Path) -> tuple[int, ...]:
    """Every id that generation_config.json or config.json declares as an end of sequence, ascending."""
    declared: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        ids = read_json(folder, name).get("eos_token_id")
        if isinstance(ids, int):
            declared.add(ids)
        elif isinstance(ids, list):
            declared.update(ids)
    return tuple(sorted(declared))


class Checkpoint:
    """The named tensors of a folder, memory-mapped: only what is asked for is read from disk.

    Raises:
        UnsupportedModelError: if a weights file is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, Any] = {}  # tensor name to the open file that holds it
        for path in sorted(folder.glob("*.safetensors")):
            try:
                opened: Any = safe_open(path, framework="pt")
            except (SafetensorError, OSError) as error:
                raise UnsupportedModelError(f"model: {path} cannot be read: {error}") from error
            self._files.update(dict.fromkeys(opened.keys(), opened))

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor; it may share memory with the file and must not be written to.

        Raises:
            UnsupportedModelError: if there is none of that name.
        """
        if name not in self._files:
            raise UnsupportedModelError(f"model: {self._folder} lacks the weight {name}")
        tensor: torch.Tensor = self._files[name].get_tensor(name)
        return tensor
