"""What holds for every test: no Ray, no network, one thread of computation, and examples that can be repeated."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NoReturn

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Iterator

# Read when torch, tokenizers and huggingface_hub are imported, which no test has done yet.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"

settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


_RAY_WARNINGS = (
    # While ray.serve is imported.
    "ignore:Using extra keyword arguments on `Field`:DeprecationWarning:ray.serve._private.config",
)


def pytest_configure(config: pytest.Config) -> None:
    for line in _RAY_WARNINGS:
        config.addinivalue_line("filterwarnings", line)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests on the Ray cluster come last, so that it lives through no other test."""
    items.sort(key=lambda item: item.get_closest_marker("ray") is not None)


def _refuse(*_args: object, **_options: object) -> NoReturn:
    raise RuntimeError("only the tests in tests/ray may start Ray")


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ray cannot be started, and was not by a test that imported it first; tests/ray overrides this."""
    if "ray" in sys.modules:
        monkeypatch.setattr("ray.init", _refuse)
    yield
    if "ray" in sys.modules:
        assert not sys.modules["ray"].is_initialized()


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """What a test before this one may have changed."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
