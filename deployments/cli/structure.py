"""What ``--json-schema``, ``--regex``, ``--grammar`` and ``--choice`` ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdec_core.errors import InvalidArgumentError
from specdec_core.structured import (
    MAX_STRUCTURE_CHARS,
    Choice,
    Grammar,
    JsonSchema,
    Regex,
)

if TYPE_CHECKING:
    from pathlib import Path

    from specdec_core.structured import StructuredOutput

_MAX_BYTES = 4 * MAX_STRUCTURE_CHARS  # of a file; no character takes more than four


@dataclass(frozen=True, slots=True)
class StructureOptions:
    """The four options as they were given."""

    json_schema: Path | None
    regex: str | None
    grammar: Path | None
    choice: tuple[str, ...]

    def resolve(self) -> StructuredOutput | None:
        """The structure asked for, its file read.

        Raises:
            InvalidArgumentError: if several are asked for, a file cannot be read, or it does not hold what it should.
        """
        given = {
            "--json-schema": self.json_schema is not None,
            "--regex": self.regex is not None,
            "--grammar": self.grammar is not None,
            "--choice": bool(self.choice),
        }
        named = [option for option, is_given in given.items() if is_given]
        if len(named) > 1:
            raise InvalidArgumentError(named[1], f"cannot be combined with {named[0]}")
        if self.json_schema is not None:
            return JsonSchema(_read("--json-schema", self.json_schema))
        if self.regex is not None:
            return Regex(self.regex)
        if self.grammar is not None:
            return Grammar(_read("--grammar", self.grammar))
        return Choice(self.choice) if self.choice else None


def _read(option: str, path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        text = content.decode()
    except OSError as error:
        raise InvalidArgumentError(option, f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(option, f"{path} is not UTF-8 text") from error
    if len(content) > _MAX_BYTES:
        raise InvalidArgumentError(option, f"{path} is larger than {_MAX_BYTES} bytes")
    return text
