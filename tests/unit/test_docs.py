"""The documents are true where a machine can tell: paths, names, tables, snippets and command lines."""

from __future__ import annotations

import ast
import importlib
import json
import re
import shlex
import tomllib
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments.cli.report import Report
from deployments.config import Config, parse_config
from deployments.transport.api_records import Finished
from specdec_core.session.phases import NEXT_PHASES, TRANSITIONS, Action, Phase
from specdec_core.stats import SpeculationStats
from specdec_core.types import FinishReason

ROOT = Path(__file__).parents[2]
DOCUMENTS = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/exactness.md",
    "docs/structured-output.md",
)
NAMED = re.compile(
    r"(?<![\w/~.-])((?:[\w-][\w.-]*/)*[\w-][\w.-]*\.(?:py|proto|yaml|toml|md))"
    r"(?:::([\w.]+))?"
)
FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINKED = re.compile(r"\]\((?!https?:)([^)#]+)\)")


def text_of(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    found = [match for name in DOCUMENTS for match in FENCED.findall(text_of(name))]
    return [body for kind, body in found if kind == language]


def commands(program: str) -> list[list[str]]:
    """The arguments of every command line of ``program``; variables before it are left out."""
    lines = [line[2:] for block in blocks("console") for line in block.splitlines()]
    words = [shlex.split(re.sub(r"^(\w+=\S+ )+", "", line)) for line in lines]
    return [line[1:] for line in words if line[0] == program]


@cache
def names_in(path: Path) -> frozenset[str]:
    """Functions, classes and constants of a module, and the methods of its classes as ``Class.method``."""
    module = ast.parse(path.read_text(encoding="utf-8"))
    scopes: list[tuple[str, ast.Module | ast.ClassDef]] = [("", module)]
    scopes += [(f"{node.name}.", node) for node in module.body if isinstance(node, ast.ClassDef)]
    found = set()
    for prefix, scope in scopes:
        for node in scope.body:
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    found.add(prefix + name)
                case ast.ClassDef(name=name):
                    found.add(prefix + name)
                case (
                    ast.AnnAssign(target=ast.Name(id=name))
                    | ast.Assign(targets=[ast.Name(id=name)])
                ):
                    found.add(prefix + name)
    return frozenset(found)


def missing(text: str, root: Path) -> list[str]:
    """What a text names, as ``path`` or ``path::Name``, that is not there."""
    return [
        f"{path}::{name}" if name else path
        for path, name in NAMED.findall(text)
        if not (root / path).is_file() or (name and name not in names_in(root / path))
    ]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_file_and_every_name_in_a_file_exists(document: str) -> None:
    assert missing(text_of(document), ROOT) == []


def test_a_name_that_does_not_exist_would_be_noticed(tmp_path: Path) -> None:
    (tmp_path / "some.py").write_text("def one(): ...\nclass Two:\n    def three(self): ...\n")
    text = "`some.py::one`, `some.py::Two.three`; `some.py::three` (`a/b.py`) some.py"
    assert missing(text, tmp_path) == ["some.py::three", "a/b.py"]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_inside_the_repository_leads_somewhere(document: str) -> None:
    assert [link for link in LINKED.findall(text_of(document)) if not (ROOT / link).exists()] == []


def test_the_transition_table_is_the_codes() -> None:
    kinds = dict.fromkeys(kind for _, kind in TRANSITIONS)
    rows = [
        f"| `{kind.__name__}` | "
        + " | ".join(TRANSITIONS[phase, kind].value for phase in Phase)
        + " |"
        for kind in kinds
    ]
    header = (
        "| input | " + " | ".join(phase.value for phase in Phase) + " |\n|---|---|---|---|---|\n"
    )
    assert header + "\n".join(rows) + "\n\n" in text_of("ARCHITECTURE.md")


def test_the_table_of_actions_is_the_codes() -> None:
    for action in Action:
        phases = ", ".join(phase.value for phase in Phase if phase in NEXT_PHASES[action])
        assert f"\n| {action.value} | {phases or '—'} | " in text_of("ARCHITECTURE.md")


def test_the_layer_tables_are_the_contracts_of_import_linter() -> None:
    contracts = tomllib.loads(text_of("pyproject.toml"))["tool"]["importlinter"]["contracts"]
    (core,) = [each for each in contracts if each["id"] == "core-layers"]
    layers = [
        f"\n| {number} | {layer.replace(' | ', ', ')} | "
        for number, layer in enumerate(core["layers"], start=1)
    ]
    wanted = [*(f"\n| `{each['id']}` | " for each in contracts), *layers]
    assert [row for row in wanted if row not in text_of("ARCHITECTURE.md")] == []


def test_every_yaml_block_is_a_configuration() -> None:
    configs = [parse_config(yaml.safe_load(block)) for block in blocks("yaml")]
    assert len(configs) > 0
    assert Config() not in configs


def test_the_json_shown_has_the_keys_that_are_printed() -> None:
    report = Report(clock=lambda: 0.0)
    report.finished = Finished(FinishReason.STOP, 1, 0, SpeculationStats())
    printed = report.as_json()
    (shown,) = [json.loads(block) for block in blocks("json")]
    assert keys_of(shown) == keys_of(printed)


def keys_of(value: object) -> object:
    """A value's keys, all the way down; ``fallbacks`` has those that occurred."""
    if not isinstance(value, dict):
        return None
    return {key: keys_of(inner) for key, inner in value.items() if key != "fallbacks"}


def test_every_make_target_exists() -> None:
    targets = {target for arguments in commands("make") for target in arguments}
    targets |= {
        name for document in DOCUMENTS for name in re.findall(r"`make (\w+)`", text_of(document))
    }
    assert targets >= {"demo", "test", "check"}
    assert targets <= set(re.findall(r"^(\w+):", text_of("Makefile"), re.MULTILINE))


def test_every_command_line_is_one_that_specdec_takes() -> None:
    inline = re.findall(r"`specdec (\w[^`]*)`", " ".join(map(text_of, DOCUMENTS)))
    lines = [*commands("specdec"), *map(shlex.split, inline)]
    subcommands = specdec_commands()
    assert len(lines) > 5
    for name, *arguments in lines:
        subcommands[name].make_context(name, arguments)


def test_an_option_that_does_not_exist_would_be_noticed() -> None:
    with pytest.raises(Exception, match="No such option"):
        specdec_commands()["generate"].make_context("generate", ["hi", "--surprise"])


def specdec_commands() -> dict[str, Any]:
    """Parsers by subcommand. Ray's own modules warn while they are imported, and warnings are errors here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        app = importlib.import_module("deployments.cli.main").app
    commands: dict[str, Any] = importlib.import_module("typer.main").get_command(app).commands
    return commands
