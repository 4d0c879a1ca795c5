"""The error tree: stable codes, and errors that survive a process boundary."""

from __future__ import annotations

import copy

import pytest

from specdec_core.errors import (
    ErrorCode,
    InvalidArgumentError,
    SpecdecError,
    VocabularyMismatchError,
)


def subclasses(root: type[SpecdecError]) -> list[type[SpecdecError]]:
    return [root, *(found for child in root.__subclasses__() for found in subclasses(child))]


def sample(kind: type[SpecdecError]) -> SpecdecError:
    return (
        kind("top_p", "must be in (0, 1]")
        if issubclass(kind, InvalidArgumentError)
        else kind("went wrong")
    )


@pytest.mark.parametrize("kind", subclasses(SpecdecError), ids=lambda kind: kind.__name__)
def test_an_error_is_rebuilt_whole_as_pickle_would_rebuild_it(kind: type[SpecdecError]) -> None:
    error = sample(kind)
    rebuilt = copy.copy(error)
    assert type(rebuilt) is kind
    assert (str(rebuilt), rebuilt.code) == (str(error), error.code)


def test_a_refusal_is_rebuilt_with_its_field() -> None:
    rebuilt = copy.copy(VocabularyMismatchError("drafter.model", "differs at token 7"))
    assert (rebuilt.field, rebuilt.problem) == ("drafter.model", "differs at token 7")


def test_every_code_has_a_class_of_its_own() -> None:
    codes = {kind.code for kind in subclasses(SpecdecError)}
    assert codes == set(ErrorCode)
