"""What a request may demand: each record refuses what no server would take."""

from __future__ import annotations

import pytest

from specdec_core.errors import InvalidArgumentError
from specdec_core.structured import (
    MAX_CHOICES,
    MAX_STRUCTURE_CHARS,
    NO_GRAMMARS,
    Choice,
    Grammar,
    JsonSchema,
    Regex,
)


@pytest.mark.parametrize("text", ["", "{", "[1]", '"text"', "null", "[" * 10_000])
def test_a_schema_must_be_a_json_object_or_boolean(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"structured\.json_schema: "):
        JsonSchema(text)


@pytest.mark.parametrize("record", [Regex, Grammar])
def test_a_text_has_at_least_one_character_and_a_bound(record: type[Regex | Grammar]) -> None:
    record("a" * MAX_STRUCTURE_CHARS)
    for text in ("", "a" * (MAX_STRUCTURE_CHARS + 1)):
        with pytest.raises(InvalidArgumentError, match="must be 1 to 65536 characters"):
            record(text)


def test_choices_are_bounded_in_number_and_together() -> None:
    Choice(("a",) * MAX_CHOICES)
    half = "a" * (MAX_STRUCTURE_CHARS // 2)
    for options in ((), ("a",) * (MAX_CHOICES + 1), ("a", ""), (half, half, "a")):
        with pytest.raises(InvalidArgumentError, match=r"structured\.choice: "):
            Choice(options)


def test_a_server_without_a_library_says_so() -> None:
    with pytest.raises(InvalidArgumentError, match=r"structured\.regex: cannot be enforced here"):
        NO_GRAMMARS.compile(Regex("a"))
