"""Deterministic numerics on the packaged SmolLM2-135M-Instruct: real weights, all bits."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from specdec_core.models import loading
from specdec_core.models.loading import LoadOptions, ModelSource, Numerics, load_model, resolve
from specdec_core.models.paged_storage import PagedKv
from specdec_core.models.storage import ContiguousKv
from specdec_core.models.tokenizer import load_tokenizer
from tests.support.forward_paths import (
    VERIFIED_COUNTS,
    among_others,
    at_random_cuts,
    one_by_one,
    verified,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdec_core.models.forward import CausalModel

pytestmark = [pytest.mark.weights, pytest.mark.slow]

STORAGES = {"contiguous": ContiguousKv, "paged": PagedKv}
PASSAGE = (
    "Speculative decoding lets a small model guess several tokens ahead, and the large one check them all in a single forward. "
    "What is read is written by the large model alone."
)


@pytest.fixture(scope="module")
def folder() -> Path:
    torch.set_num_threads(1)
    cache = Path(os.environ.get("SPECDEC_CACHE", "~/.cache/specdec")).expanduser()
    return resolve(ModelSource("packaged:smollm2-135m-instruct"), cache, lambda _: None)


@pytest.fixture(scope="module")
def tokens(folder: Path) -> tuple[int, ...]:
    return tuple(load_tokenizer(folder).encode(PASSAGE))


@pytest.fixture(scope="module", params=STORAGES)
def model(request: pytest.FixtureRequest, folder: Path) -> Iterator[CausalModel]:
    with pytest.MonkeyPatch.context() as patch:
        # Paged pages run on any device; only the choice by device is overridden here.
        patch.setattr(loading, "ContiguousKv", STORAGES[request.param])
        yield load_model(folder, LoadOptions(kv_tokens=1024, numerics=Numerics.DETERMINISTIC))


@pytest.fixture(scope="module")
def expected(model: CausalModel, tokens: tuple[int, ...]) -> torch.Tensor:
    return whole(model, tokens)


def test_one_by_one_and_whole_give_the_same_bits(
    model: CausalModel, tokens: tuple[int, ...], expected: torch.Tensor
) -> None:
    assert torch.equal(one_by_one(model, tokens), expected)


def test_random_cuts_change_no_bit(
    model: CausalModel, tokens: tuple[int, ...], expected: torch.Tensor
) -> None:
    for seed in range(2):
        assert torch.equal(at_random_cuts(model, tokens, seed), expected)


def test_verifying_any_number_of_tokens_changes_no_bit_of_the_real_model(
    model: CausalModel, tokens: tuple[int, ...], expected: torch.Tensor
) -> None:
    for count in VERIFIED_COUNTS:
        assert torch.equal(verified(model, tokens, count), expected[-count:]), count


def test_other_sessions_change_no_bit(
    model: CausalModel, tokens: tuple[int, ...], expected: torch.Tensor
) -> None:
    for seed in range(2):
        assert torch.equal(among_others(model, tokens, seed), expected)


def test_fast_numerics_differ_in_the_last_bits_of_the_real_model(
    folder: Path, tokens: tuple[int, ...]
) -> None:
    fast = load_model(folder, LoadOptions(kv_tokens=1024))
    expected = whole(fast, tokens)
    others = [one_by_one(fast, tokens), at_random_cuts(fast, tokens, 0)]
    assert not torch.equal(others[0], expected)  # cuts that leave no token alone may change nothing
    assert all(torch.allclose(other, expected, rtol=0, atol=1e-2) for other in others)
