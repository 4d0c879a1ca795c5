"""Structured output: what a request may demand of its text, and what a grammar library must do to enforce it.

Only records and contracts are here; ``specdec_core.models.grammar`` implements them and ``specdec_core.sampling.structure`` keeps a
grammar in step with a session.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from specdec_core.errors import InvalidArgumentError

if TYPE_CHECKING:
    from typing import NoReturn

MAX_STRUCTURE_CHARS = 2**16  # of a schema, a pattern, a grammar, or all choices together
MAX_CHOICES = 1024


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """The output is a JSON document that a schema allows.

    Raises:
        InvalidArgumentError: on construction, if ``text`` is no JSON object or boolean, or too long.
    """

    field: ClassVar[str] = "structured.json_schema"
    text: str

    def __post_init__(self) -> None:
        _check_chars(self.field, len(self.text))
        try:
            schema = json.loads(self.text)
        except (ValueError, RecursionError) as error:
            raise InvalidArgumentError(self.field, f"is not JSON: {error}") from error
        if not isinstance(schema, dict | bool):
            raise InvalidArgumentError(self.field, "must be a JSON object or boolean")


@dataclass(frozen=True, slots=True)
class Regex:
    """The whole output matches a regular expression, without anchors."""

    field: ClassVar[str] = "structured.regex"
    pattern: str

    def __post_init__(self) -> None:
        _check_chars(self.field, len(self.pattern))


@dataclass(frozen=True, slots=True)
class Grammar:
    """The output is a sentence of a context-free grammar in Lark's syntax, whose first rule is ``start``."""

    field: ClassVar[str] = "structured.grammar"
    text: str

    def __post_init__(self) -> None:
        _check_chars(self.field, len(self.text))


@dataclass(frozen=True, slots=True)
class Choice:
    """The output is one of these strings."""

    field: ClassVar[str] = "structured.choice"
    options: tuple[str, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.options) <= MAX_CHOICES:
            raise InvalidArgumentError(
                self.field, f"takes 1 to {MAX_CHOICES} entries, got {len(self.options)}"
            )
        if not all(self.options):
            raise InvalidArgumentError(self.field, "no entry may be empty")
        _check_chars(self.field, sum(map(len, self.options)))


StructuredOutput = JsonSchema | Regex | Grammar | Choice


class GrammarState(Protocol):
    """How far one output has come in its grammar.

    End-of-sequence tokens may follow where the grammar could end; after the first of them nothing else may.
    """

    def advance(self, token: int) -> bool:
        """Take a token if it may follow; else change nothing and say False."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Forget the last tokens taken, end-of-sequence tokens included.

        Raises:
            InvariantError: if so many were not taken.
        """
        ...

    def mask(self) -> bytes:
        """Which tokens may follow: bit ``t % 8``, the least significant first, of byte ``t // 8``. Ids past the end may not.

        Raises:
            InvalidArgumentError: if the grammar has grown too complex to go on.
        """
        ...


class GrammarBackend(Protocol):
    """Compiles what requests demand, for one tokenizer. Safe to share between threads; its states are not."""

    def compile(self, structured: StructuredOutput) -> GrammarState:
        """A state before the first output token.

        Raises:
            InvalidArgumentError: naming the field, if the demand is malformed, unsupported or too complex.
        """
        ...


@dataclass(frozen=True, slots=True)
class NoGrammars:
    """Refuses every demand."""

    reason: str

    def compile(self, structured: StructuredOutput) -> NoReturn:
        """Raise InvalidArgumentError."""
        raise InvalidArgumentError(structured.field, f"cannot be enforced here: {self.reason}")


NO_GRAMMARS = NoGrammars("no grammar library is at hand")


def _check_chars(field: str, count: int) -> None:
    if not 1 <= count <= MAX_STRUCTURE_CHARS:
        raise InvalidArgumentError(
            field, f"must be 1 to {MAX_STRUCTURE_CHARS} characters, got {count}"
        )
