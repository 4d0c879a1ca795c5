"""What a YAML file and the environment say of the configuration, as plain values; ``deployments.config`` judges them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml
from pydantic import TypeAdapter, ValidationError

from specdec_core.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_ENV_PREFIX = "SPECDEC_"


def read_file(path: Path) -> dict[str, Any]:
    """The sections of a YAML file.

    Raises:
        InvalidArgumentError: if it cannot be read, or is not a mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidArgumentError("config", f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidArgumentError("config", f"{path} is not UTF-8") from error
    values = _parse("config", text, f"{path} is")
    try:
        return TypeAdapter(dict[str, Any]).validate_python(values or {})
    except ValidationError as error:
        raise InvalidArgumentError("config", f"{path} must be a mapping of sections") from error


def read_environment(environ: Mapping[str, str]) -> Iterator[tuple[list[str], object]]:
    """Each ``SPECDEC_<SECTION>__<FIELD>`` as the path of its key and its value, read as YAML.

    Raises:
        InvalidArgumentError: naming the variable whose value is not YAML.
    """
    for name, text in sorted(environ.items()):
        if name.startswith(_ENV_PREFIX) and "__" in name:
            keys = name.removeprefix(_ENV_PREFIX).lower().split("__")
            yield keys, _parse(name, text, "is")


def place(values: dict[str, Any], keys: list[str], value: object) -> None:
    """Set a key inside nested sections, which are made where they are missing.

    Raises:
        InvalidArgumentError: if what should be a section holds a value.
    """
    for depth, key in enumerate(keys[:-1]):
        inner = values.setdefault(key, {})
        if not isinstance(inner, dict):
            raise InvalidArgumentError(".".join(keys[: depth + 1]), "is not a section")
        values = inner
    values[keys[-1]] = value


def _parse(field: str, text: str, subject: str) -> object:
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidArgumentError(field, f"{subject} not YAML: {reason}") from error
