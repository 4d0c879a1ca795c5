"""The files in ``examples/`` are what they say: every one is read by the code that will read it."""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments.config import Config, LmDrafterConfig, load_config, parse_config
from specdec_core.errors import InvalidArgumentError

EXAMPLES = Path(__file__).parents[2] / "examples"
SERVE_FILE = EXAMPLES / "serve-deploy.yaml"
CONFIG_FILES = sorted(set(EXAMPLES.glob("*.yaml")) - {SERVE_FILE})
DRAFTERS = {
    "embedded": "quantized",
    "layer_skip": "layer_skip",
    "llama-3.1-8b-llama-3.2-1b": "lm",
    "ngram": "ngram",
    "opt-1.3b-opt-125m": "lm",
    "qwen3-8b-qwen3-0.6b": "lm",
}


def read(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return values


def import_ray_module(name: str) -> Any:
    """Ray's own modules warn while they are imported, and warnings are errors here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(name)


def test_every_file_is_a_configuration_with_the_drafter_of_its_name() -> None:
    kinds = {path.stem: load_config(path, {}).drafter.kind for path in CONFIG_FILES}
    assert kinds == DRAFTERS


@pytest.mark.parametrize("path", CONFIG_FILES, ids=lambda path: path.stem)
def test_an_unknown_key_is_refused_wherever_it_stands(path: Path) -> None:
    values = read(path)
    sections = [name for name, section in values.items() if isinstance(section, dict)]
    places = [((), "surprise"), *(((name,), f"{name}.surprise") for name in sections)]
    for keys, named in places:
        changed = read(path)
        section = changed
        for key in keys:
            section = section[key]
        section["surprise"] = 1
        with pytest.raises(InvalidArgumentError, match=f"^{named}: "):
            parse_config(changed)


def test_the_embedded_file_spells_out_every_default() -> None:
    path = EXAMPLES / "embedded.yaml"
    assert load_config(path, {}) == Config()
    assert read(path) == Config().model_dump(mode="json")


def test_the_pairs_of_models_differ_and_share_their_device() -> None:
    for name in ("llama-3.1-8b-llama-3.2-1b", "opt-1.3b-opt-125m", "qwen3-8b-qwen3-0.6b"):
        config = load_config(EXAMPLES / f"{name}.yaml", {})
        assert isinstance(config.drafter, LmDrafterConfig)
        assert config.drafter.model != config.target.model
        assert (config.drafter.device, config.drafter.dtype) == (
            config.target.device,
            config.target.dtype,
        )


def test_the_serve_file_is_what_serve_deploy_takes() -> None:
    schema = import_ray_module("ray.serve.schema").ServeDeploySchema
    facade = import_ray_module("deployments.ray_facade")
    deploy = schema.model_validate(read(SERVE_FILE))
    (application,) = deploy.applications
    assert application.name == facade.APP_NAME
    assert deploy.grpc_options.grpc_servicer_functions == [facade.GENERATION_SERVICER]
    # The schema drops keys that it does not know.
    assert set(read(SERVE_FILE)) <= set(schema.model_fields)
    assert set(read(SERVE_FILE)["applications"][0]) <= set(type(application).model_fields)


def test_the_serve_file_names_a_builder_that_takes_its_arguments() -> None:
    (application,) = read(SERVE_FILE)["applications"]
    module, name = application["import_path"].split(":")
    build = vars(import_ray_module(module))[name]
    assert type(build(application["args"])).__name__ == "Application"
    with pytest.raises(InvalidArgumentError, match=r"^surprise: "):
        build({**application["args"], "surprise": 1})


def test_the_servicer_function_of_the_serve_file_exists() -> None:
    (path,) = read(SERVE_FILE)["grpc_options"]["grpc_servicer_functions"]
    module, _, name = path.rpartition(".")
    assert callable(vars(importlib.import_module(module))[name])
