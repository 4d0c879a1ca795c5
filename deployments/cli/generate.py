"""``specdec generate``: one prompt, in this process or at a server."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer

from deployments.cli.report import Report
from deployments.cli.structure import StructureOptions
from deployments.cli.terminal import console, progress, write
from deployments.config import load_config
from deployments.generation import default_speculation
from deployments.local import LocalServer
from deployments.transport.api_records import (
    ChatMessage,
    ChatPrompt,
    GenerationCall,
    GenerationEvent,
    TextPrompt,
)
from deployments.transport.generation_client import GenerationClient
from specdec_core.errors import InvalidArgumentError
from specdec_core.params import GenerationParams, SamplingParams, SpeculationParams
from specdec_core.types import AcceptanceRule


class DrafterKind(StrEnum):
    """What ``--drafter`` takes."""

    NGRAM = "ngram"
    LM = "lm"
    LAYER_SKIP = "layer_skip"
    QUANTIZED = "quantized"
    NONE = "none"


class Server(Protocol):
    """Anything that generates."""

    def generate(self, call: GenerationCall) -> Iterator[GenerationEvent]: ...


@dataclass(frozen=True, slots=True)
class _Drafting:
    """The drafter that the command line asks for, if it does."""

    kind: DrafterKind | None
    model: str | None
    num_layers: int | None

    @property
    def overrides(self) -> dict[str, Any]:
        named = {
            "kind": self.kind and self.kind.value,
            "model": self.model,
            "num_layers": self.num_layers,
        }
        return {key: value for key, value in named.items() if value is not None}


def generate(  # noqa: PLR0913
    prompt: Annotated[str, typer.Argument(help="What to answer or continue.")],
    *,
    local: Annotated[bool, typer.Option("--local", help="Generate in this process.")] = False,
    address: Annotated[str | None, typer.Option(help="HOST:PORT of a server.")] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file for --local.")] = None,
    drafter: Annotated[
        DrafterKind | None, typer.Option(help="With --address, none or the one deployed.")
    ] = None,
    drafter_model: Annotated[str | None, typer.Option(help="Model of the lm drafter.")] = None,
    drafter_layers: Annotated[
        int | None, typer.Option(help="Layers of the layer_skip drafter.")
    ] = None,
    rule: Annotated[AcceptanceRule | None, typer.Option(help="How drafts are tested.")] = None,
    max_draft_tokens: Annotated[
        int | None, typer.Option(help="Tokens drafted per round; 0 decodes plainly.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="The most tokens to generate.")] = 256,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Nucleus; 1 keeps every token.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="0 keeps every token.")] = 0,
    typical_p: Annotated[
        float, typer.Option(help="Locally typical tokens; 1 keeps every token.")
    ] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Repeats an answer; random without it.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="Ends the answer; may be given more than once.")
    ] = None,
    logprobs: Annotated[
        int | None, typer.Option(help="With --json, log-probabilities and so many alternatives.")
    ] = None,
    json_schema: Annotated[
        Path | None, typer.Option(help="File with a JSON schema for the answer.")
    ] = None,
    regex: Annotated[
        str | None, typer.Option(help="Regular expression that the whole answer matches.")
    ] = None,
    grammar: Annotated[
        Path | None, typer.Option(help="File with a Lark grammar for the answer.")
    ] = None,
    choice: Annotated[
        list[str] | None,
        typer.Option(help="A possible answer; given once for each."),
    ] = None,
    chat: Annotated[
        bool,
        typer.Option("--chat/--raw", help="Use the model's chat template, or the prompt as it is."),
    ] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of the text.")
    ] = False,
) -> None:
    """Generate an answer to PROMPT."""
    sampling = SamplingParams(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        typical_p=typical_p,
        logprobs=logprobs,
        max_tokens=max_tokens,
        stop=tuple(stop or ()),
        structured=StructureOptions(json_schema, regex, grammar, tuple(choice or ())).resolve(),
    )
    drafting = _Drafting(drafter, drafter_model, drafter_layers)
    with _server(drafting, local=local, address=address, config=config) as (server, default):
        speculation = replace(
            default,
            rule=rule or default.rule,
            max_draft_tokens=default.max_draft_tokens
            if max_draft_tokens is None
            else max_draft_tokens,
        )
        if drafter is DrafterKind.NONE:
            speculation = replace(speculation, max_draft_tokens=0)
        text = ChatPrompt((ChatMessage("user", prompt),)) if chat else TextPrompt(prompt)
        call = GenerationCall(text, GenerationParams(sampling, speculation, seed))
        _print(Report(time.perf_counter), server.generate(call), as_json=as_json)


def _print(report: Report, events: Iterator[GenerationEvent], *, as_json: bool) -> None:
    for piece in report.follow(events):
        if not as_json:
            write(piece)
    if as_json:
        write(json.dumps(report.as_json()) + "\n")
    else:
        write("\n")
        console.print(report.as_line())


@contextmanager
def _server(
    drafting: _Drafting, *, local: bool, address: str | None, config: Path | None
) -> Iterator[tuple[Server, SpeculationParams]]:
    """What generates, and how it speculates unless told otherwise."""
    if local == (address is not None):
        raise InvalidArgumentError("--local", "give either --local or --address HOST:PORT")
    if address is None:
        loaded = load_config(
            config, os.environ, {"drafter": drafting.overrides} if drafting.overrides else {}
        )
        with progress("loading") as tell:
            server = LocalServer(loaded, tell)
        yield server, default_speculation(loaded)
        return
    if config or drafting.model or drafting.num_layers:
        raise InvalidArgumentError(
            "--address",
            "the server has its own configuration; --config, --drafter-model and --drafter-layers go with --local",
        )
    client = GenerationClient(address)
    try:
        info = client.describe()
        if drafting.kind not in {None, DrafterKind.NONE, info.drafter}:
            raise InvalidArgumentError(
                "--drafter", f"the server drafts with {info.drafter}; ask for that or for none"
            )
        yield client, info.default_speculation
    finally:
        client.close()
