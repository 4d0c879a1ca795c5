"""Converts a GGUF file once into a folder of safetensors, configuration and tokenizer.

Dequantising takes half a minute, loading the result a fraction of a second. The weights of the result are float32 and equal to what
the GGUF's quantised blocks stand for.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from specdec_core.errors import NotFoundError, UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Callable

_DIGEST_SAMPLE = (
    1 << 20
)  # bytes hashed at each end; the whole file would be read anew at every start
_DIGEST_CHARS = 12
_FORMAT = 1  # raise when the conversion changes, so that older results are not reused


def convert_gguf(
    path: Path, name: str, *, cache_dir: Path, progress: Callable[[str], None]
) -> Path:
    """The folder with the converted model, made now unless an earlier conversion of the same file is in ``cache_dir``.

    Two processes may convert at once: each works in a folder of its own, and the first rename wins.

    Raises:
        NotFoundError: if there is no such file.
        UnsupportedModelError: if transformers cannot read it.
    """
    if not path.is_file():
        raise NotFoundError(f"model: no file {path}")
    folder = cache_dir / f"{name}-{_digest(path)}"
    if folder.is_dir():
        return folder
    progress(f"converting {path.name} to safetensors in {folder}; this happens once")
    cache_dir.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=cache_dir))
    try:
        _convert(path, partial)
        _publish(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def _digest(path: Path) -> str:
    """Of size, head (which holds the metadata) and tail."""
    size = path.stat().st_size
    digest = hashlib.sha256(f"{_FORMAT} {size}".encode())
    with path.open("rb") as file:
        digest.update(file.read(_DIGEST_SAMPLE))
        file.seek(max(0, size - _DIGEST_SAMPLE))
        digest.update(file.read(_DIGEST_SAMPLE))
    return digest.hexdigest()[:_DIGEST_CHARS]


def _publish(partial: Path, folder: Path) -> None:
    try:
        partial.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise


def _convert(path: Path, folder: Path) -> None:
    auto_model: Any = AutoModelForCausalLM
    read_gguf: Any = load_gguf_checkpoint
    try:
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
        with torch.device("meta"):
            model = auto_model.from_config(config)
        # Not from_pretrained: it wants accelerate for a GGUF, and marks the plain weights it makes as quantised.
        weights = read_gguf(
            str(path), return_tensors=True, model_to_load=model, torch_dtype=torch.float32
        )["tensors"]
    except (ValueError, LookupError, NotImplementedError, OSError, struct.error) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UnsupportedModelError(f"model: {path} cannot be converted: {reason}") from error
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config.architectures = [type(model).__name__]
    config.dtype = torch.float32
    stops = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    config.update({**stops, "pad_token_id": tokenizer.pad_token_id})
    config.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps(stops), encoding="utf-8")
    tokenizer.save_pretrained(folder)
