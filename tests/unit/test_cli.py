"""The command line in process: what it prints where, and that every mistake is one line and exit code 2."""

from __future__ import annotations

import json
import shutil
import signal
from typing import TYPE_CHECKING

import pytest
import yaml

from deployments.cli.main import main
from tests.support.tiny_models import (
    CHARACTERS,
    MAX_CONTEXT,
    build_tiny_model,
    save_tiny_tokenizer,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    WriteConfig = Callable[..., str]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders: a target, a draft model, one with another vocabulary, and one without weights."""
    folder = tmp_path_factory.mktemp("models")
    build_tiny_model("llama", folder / "target")
    build_tiny_model("llama", folder / "small", seed=1, overrides={"num_hidden_layers": 1})
    build_tiny_model("llama", folder / "foreign", seed=1)
    save_tiny_tokenizer(folder / "foreign", characters="ba" + CHARACTERS[2:])
    shutil.copytree(folder / "target", folder / "empty", ignore=lambda *_: ["model.safetensors"])
    return folder


@pytest.fixture
def config(models: Path, tmp_path: Path) -> WriteConfig:
    """Writes a configuration file with the tiny target and these sections; gives its path."""

    def write(**sections: dict[str, object]) -> str:
        target = {"model": str(models / "target"), "kv_tokens": 512, **sections.pop("target", {})}
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump({"drafter": {"kind": "ngram"}, "target": target} | sections))
        return str(path)

    return write


@pytest.fixture(autouse=True)
def signal_handlers() -> Iterator[None]:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def the_error(capsys: pytest.CaptureFixture[str]) -> str:
    """The only line on stderr besides progress; nothing is on stdout."""
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    mistakes = [line for line in lines if not line.startswith("loading ")]
    assert len(mistakes) == 1, lines
    assert mistakes[0] == lines[-1]
    prefix, _, text = mistakes[0].partition("error: ")
    assert prefix == ""
    return text


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
        (["--address", "127.0.0.1:1"], "--local: ", "either --local or --address"),
        (["--nonsense"], "No such option: --nonsense", ""),
    ],
)
def test_a_bad_option_is_one_line_naming_it_and_what_is_allowed(
    options: list[str],
    begins: str,
    says: str,
    config: WriteConfig,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = main(["generate", "hello", "--local", "--config", config(), *options])

    error = the_error(capsys)
    assert code == 2
    assert error.startswith(begins)
    assert says in error


@pytest.mark.parametrize("layers", ["0", "4"])
def test_layers_that_the_target_lacks_are_refused(
    layers: str, config: WriteConfig, capsys: pytest.CaptureFixture[str]
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
    ],
    ids=["empty", "as long as the context"],
)
def test_a_prompt_that_cannot_be_answered_is_refused(
    prompt: str, problem: str, config: WriteConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", prompt, "--raw", "--local", "--config", config()]) == 2
    assert the_error(capsys) == problem


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
    config: WriteConfig,
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
    models: Path, config: WriteConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(target={"model": str(models / "empty")})

    assert main(["generate", "hello", "--local", "--config", path]) == 2
    assert the_error(capsys).startswith(f"model: {models}/empty holds no *.safetensors weights")


def test_a_draft_model_with_another_vocabulary_is_refused_by_its_first_differing_id(
    models: Path, config: WriteConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(drafter={"kind": "lm", "model": str(models / "foreign")})

    assert main(["generate", "hello", "--local", "--config", path]) == 2
    assert the_error(capsys) == (
        "drafter.model: must share the target's vocabulary; token id 6 is 'a' for the target and 'b' for the drafter"
    )


def test_a_server_that_is_not_there_is_a_failure_not_a_mistake(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["generate", "hello", "--address", "127.0.0.1:1"]) == 1
    assert "127.0.0.1:1" in the_error(capsys)


KEYS = {"text", "token_ids", "finish_reason", "seed", "usage", "speculation", "timing"}
SPECULATION_KEYS = {
    "rounds",
    "num_draft_tokens",
    "num_accepted_tokens",
    "acceptance_rate",
    "acceptance_length",
    "num_accepted_tokens_per_pos",
    "fallbacks",
}


def test_json_is_exactly_one_object_on_stdout(
    config: WriteConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(drafter={"kind": "layer_skip", "num_layers": 3, "num_draft_tokens": 2})

    code = main(["generate", "hello", "--local", "--config", path, "--json", "--max-tokens", "9"])

    out = capsys.readouterr().out
    answer = json.loads(out)
    assert code == 0
    assert out.count("\n") == 1
    assert answer.keys() >= KEYS
    assert answer["usage"] == {"prompt_tokens": 8, "completion_tokens": 9}
    assert len(answer["token_ids"]) == 9
    assert answer["finish_reason"] == "length"
    assert answer["speculation"].keys() >= SPECULATION_KEYS
    assert answer["speculation"]["acceptance_rate"] == 1.0  # the drafter is the target
    assert answer["timing"].keys() >= {"ttft_s", "tokens_per_s"}


def test_people_get_the_text_alone_on_stdout(
    config: WriteConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["generate", "hello", "--local", "--config", config(), "--max-tokens", "9"]

    main([*arguments, "--json"])
    text = json.loads(capsys.readouterr().out)["text"]
    code = main(arguments)

    captured = capsys.readouterr()
    assert code == 0
    assert captured.out == text + "\n"
    assert captured.err.splitlines()[-1].startswith("9 tokens, ")


@pytest.mark.parametrize("rule", ["coupled", "ratio"])
def test_no_drafter_changes_a_greedy_answer(
    rule: str, models: Path, config: WriteConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    drafters = [
        ["none"],
        ["ngram"],
        ["quantized"],
        ["layer_skip", "--drafter-layers", "1"],
        ["lm", "--drafter-model", str(models / "small")],
    ]
    answers = []

    for drafter in drafters:
        options = ["--rule", rule, "--max-tokens", "24", "--drafter", *drafter]
        assert main(["generate", "hello", "--local", "--config", config(), "--json", *options]) == 0
        answers.append(json.loads(capsys.readouterr().out))

    assert [answer["token_ids"] for answer in answers] == [answers[0]["token_ids"]] * 5
    assert [answer["speculation"]["num_draft_tokens"] > 0 for answer in answers] == [
        False,
        *[True] * 4,
    ]


def test_a_seed_repeats_an_answer_and_is_told_when_it_was_drawn(
    config: WriteConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["generate", "hello", "--local", "--config", config(), "--json"]
    sampled = [*arguments, "--temperature", "1", "--max-tokens", "16"]

    main(sampled)
    drawn = json.loads(capsys.readouterr().out)
    main([*sampled, "--seed", str(drawn["seed"])])
    repeated = json.loads(capsys.readouterr().out)
    main([*sampled, "--seed", str(drawn["seed"] ^ 1)])
    other = json.loads(capsys.readouterr().out)

    assert repeated["token_ids"] == drawn["token_ids"]
    assert other["token_ids"] != drawn["token_ids"]


def test_an_answer_ends_exactly_at_the_end_of_the_context(
    config: WriteConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(
        drafter={"kind": "layer_skip", "num_layers": 3, "num_draft_tokens": 16},
        target={"max_context": 32},
    )
    prompt = "a" * 28

    main(["generate", prompt, "--raw", "--local", "--config", path, "--json"])

    answer = json.loads(capsys.readouterr().out)
    assert answer["usage"] == {"prompt_tokens": 28, "completion_tokens": 4}
    assert answer["finish_reason"] == "length"


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], []):
        assert main(arguments) == 0
        captured = capsys.readouterr()
        assert all(name in captured.out for name in ("serve", "generate", "demo"))
        assert captured.err == ""


def test_help_of_generate_names_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"--{name}" in out for name in ("local", "address", "drafter", "rule", "seed"))


@pytest.mark.parametrize("arguments", [["generate"], ["conjure"], ["serve", "a", "b"]])
def test_a_wrong_command_line_is_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert the_error(capsys)
