"""The command line in process: answers on stdout, everything else on stderr."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from deployments.cli.main import main
from specdec_core.types import AcceptanceRule
from tests.support.command_line import ConfigWriter, build_models, signal_handlers_restored

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
    config: ConfigWriter, capsys: pytest.CaptureFixture[str]
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


def test_logprobs_are_told_for_each_token_if_asked_for(
    config: ConfigWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["generate", "hello", "--local", "--config", config(), "--json", "--max-tokens=9"]

    assert main([*arguments, "--logprobs", "2", "--typical-p", "0.5"]) == 0

    answer = json.loads(capsys.readouterr().out)
    assert len(answer["logprobs"]) == len(answer["token_ids"])
    for told, token in zip(answer["logprobs"], answer["token_ids"], strict=True):
        assert told["top"][0] == [token, told["logprob"]]  # greedy takes the likeliest
        assert len(told["top"]) == 2


def test_people_get_the_text_alone_on_stdout(
    config: ConfigWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["generate", "hello", "--local", "--config", config(), "--max-tokens", "9"]

    main([*arguments, "--json"])
    text = json.loads(capsys.readouterr().out)["text"]
    code = main(arguments)

    captured = capsys.readouterr()
    assert code == 0
    assert captured.out == text + "\n"
    assert captured.err.splitlines()[-1].startswith("9 tokens, ")


@pytest.mark.parametrize("rule", [rule.value for rule in AcceptanceRule])
def test_no_drafter_changes_a_greedy_answer(
    rule: str, models: Path, config: ConfigWriter, capsys: pytest.CaptureFixture[str]
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
    config: ConfigWriter, capsys: pytest.CaptureFixture[str]
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
    config: ConfigWriter, capsys: pytest.CaptureFixture[str]
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
