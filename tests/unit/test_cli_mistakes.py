"""Every mistake on the command line is one line that names it, and exit code 2."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from deployments.cli.main import main
from tests.support.command_line import (
    ConfigWriter,
    build_models,
    signal_handlers_restored,
    the_error,
)
from tests.support.tiny_models import MAX_CONTEXT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def config(models: Path, tmp_path: Path) -> ConfigWriter:
    return ConfigWriter(models, tmp_path)


@pytest.fixture(autouse=True)
def signal_handlers() -> Iterator[None]:
    with signal_handlers_restored():
        yield


@pytest.mark.parametrize(
    ("options", "begins", "says"),
    [
        (["--max-tokens", "0"], "max_tokens: ", "[1, 1048576]"),
        (["--max-tokens", "-1"], "max_tokens: ", "[1, 1048576]"),
        (["--temperature", "nan"], "temperature: ", "[0, 10]"),
        (["--temperature", "-1"], "temperature: ", "[0, 10]"),
        (["--temperature", "1e9"], "temperature: ", "[0, 10]"),
        (["--temperature", "inf"], "temperature: ", "[0, 10]"),
        (["--top-p", "0"], "top_p: ", "(0, 1]"),
        (["--top-p", "1.5"], "top_p: ", "(0, 1]"),
        (["--top-p", "abc"], "Invalid value for '--top-p'", "number"),
        (["--top-k", "-1"], "top_k: ", "[0, 1048576]"),
        (["--seed", "-1"], "seed: ", "[0, 18446744073709551615]"),
        (["--seed", str(2**64)], "seed: ", "[0, 18446744073709551615]"),
        (["--stop", ""], "stop: ", "1 to 256 characters"),
        (["--stop", "x"] + ["--stop", "y"] * 16, "stop: ", "at most 16"),
        (["--max-draft-tokens", "17"], "max_draft_tokens: ", "[0, 16]"),
        (["--max-draft-tokens", "33"], "max_draft_tokens: ", "[0, 32]"),
        (["--max-draft-tokens", "-1"], "max_draft_tokens: ", "[0, 32]"),
        (["--drafter", "oracle"], "Invalid value for '--drafter'", "'ngram', 'lm', 'layer_skip'"),
        (["--rule", "luck"], "Invalid value for '--rule'", "'coupled', 'ratio'"),
        (["--drafter", "lm"], "drafter.model: ", "required"),
        (["--drafter", "layer_skip"], "drafter.num_layers: ", "required"),
        (["--regex", "a", "--choice", "b"], "--choice: ", "cannot be combined with --regex"),
        (["--json-schema", "/nowhere"], "--json-schema: ", "cannot read /nowhere"),
        (["--grammar", "/dev/null"], "structured.grammar: ", "1 to 65536 characters"),
        (["--json-schema", __file__], "structured.json_schema: ", "is not JSON"),
        (["--choice", ""], "structured.choice: ", "no entry may be empty"),
        (["--regex", "a"], "structured.regex: ", "the tokenizer is not supported"),
        (["--address", "127.0.0.1:1"], "--local: ", "either --local or --address"),
        (["--nonsense"], "No such option: --nonsense", ""),
    ],
)
def test_a_bad_option_is_one_line_naming_it_and_what_is_allowed(
    options: list[str],
    begins: str,
    says: str,
    config: ConfigWriter,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = main(["generate", "hello", "--local", "--config", config(), *options])

    error = the_error(capsys)
    assert code == 2
    assert error.startswith(begins)
    assert says in error


@pytest.mark.parametrize("layers", ["0", "4"])
def test_layers_that_the_target_lacks_are_refused(
    layers: str, config: ConfigWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["generate", "hello", "--local", "--config", config()]

    code = main([*arguments, "--drafter", "layer_skip", "--drafter-layers", layers])

    assert code == 2
    assert "num_layers: " in the_error(capsys)


def test_neither_local_nor_an_address_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "hello"]) == 2
    assert the_error(capsys) == "--local: give either --local or --address HOST:PORT"


@pytest.mark.parametrize(
    ("prompt", "problem"),
    [
        ("", "prompt: is empty; at least one token is needed"),
        (
            "a" * MAX_CONTEXT,
            f"prompt: has {MAX_CONTEXT} tokens; at most {MAX_CONTEXT - 1} fit a context of {MAX_CONTEXT}",
        ),
        ("caf\udce9", "prompt: is not Unicode"),
    ],
    ids=["empty", "as long as the context", "not unicode"],
)
def test_a_prompt_that_cannot_be_answered_is_refused(
    prompt: str, problem: str, config: ConfigWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", prompt, "--raw", "--local", "--config", config()]) == 2
    assert the_error(capsys) == problem


def test_an_empty_chat_prompt_is_refused_like_an_empty_text(
    config: ConfigWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "", "--chat", "--local", "--config", config()]) == 2
    assert the_error(capsys) == "prompt: is empty; at least one token is needed"


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        ({"target": {"modle": "x"}}, "target.modle: Extra inputs are not permitted"),
        ({"targets": {}}, "targets: Extra inputs are not permitted"),
        ({"target": {"tensor_parallel": 2}}, "target.tensor_parallel: Input should be 1"),
        ({"target": {"device": "abacus"}}, "device: 'abacus' is not available here"),
        ({"target": {"max_context": 97}}, "max_context: must be in [1, 96] for this model"),
        ({"target": {"model": "/nowhere"}}, "model: no folder '/nowhere'"),
        ({"target": {"model": "packaged:x"}}, "model: no packaged model 'x'"),
    ],
)
def test_a_bad_configuration_is_one_line_naming_the_key(
    sections: dict[str, dict[str, object]],
    problem: str,
    config: ConfigWriter,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["generate", "hello", "--local", "--config", config(**sections)]) == 2
    assert the_error(capsys).startswith(problem)


@pytest.mark.parametrize("command", [["serve"], ["generate", "hello", "--local", "--config"]])
def test_a_missing_configuration_file_is_refused_by_every_command(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, str(tmp_path / "none.yaml")]) == 2
    assert the_error(capsys).startswith(f"config: {tmp_path}/none.yaml cannot be read")


def test_a_model_folder_without_weights_is_refused(
    models: Path, config: ConfigWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(target={"model": str(models / "empty")})

    assert main(["generate", "hello", "--local", "--config", path]) == 2
    assert the_error(capsys).startswith(f"model: {models}/empty holds no *.safetensors weights")


def test_a_draft_model_with_another_vocabulary_is_refused_by_its_first_differing_id(
    models: Path, config: ConfigWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(drafter={"kind": "lm", "model": str(models / "foreign")})

    assert main(["generate", "hello", "--local", "--config", path]) == 2
    assert the_error(capsys) == (
        "drafter.model: must share the target's vocabulary; token id 6 is 'a' for the target and 'b' for the drafter"
    )


def test_what_only_a_local_engine_takes_is_refused_with_an_address(
    config: ConfigWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    for options in (["--config", config()], ["--drafter-model", "m"], ["--drafter-layers", "1"]):
        assert main(["generate", "hello", "--address", "127.0.0.1:1", *options]) == 2
        assert the_error(capsys).startswith("--address: the server has its own configuration")


def test_a_server_that_is_not_there_is_a_failure_not_a_mistake(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["generate", "hello", "--address", "127.0.0.1:1"]) == 1
    assert "127.0.0.1:1" in the_error(capsys)


@pytest.mark.parametrize("arguments", [["generate"], ["conjure"], ["serve", "a", "b"]])
def test_a_wrong_command_line_is_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert the_error(capsys)
