"""``specdec verify-exactness``: whether the output of a server is the target's, shown on the server itself."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from deployments.cli.terminal import console, progress, write
from deployments.config import load_config
from deployments.exactness.checks import Check
from deployments.exactness.remote import RemoteServer
from deployments.exactness.runs import Subject
from deployments.exactness.verify import Plan, verify
from deployments.local import LocalServer
from specdec_core.errors import InvalidArgumentError
from specdec_core.params import MAX_SEED
from specdec_core.types import AcceptanceRule

_DEFAULT = Plan()


def verify_exactness(  # noqa: PLR0913
    *,
    local: Annotated[
        bool, typer.Option("--local", help="Check the engine in this process.")
    ] = False,
    address: Annotated[str | None, typer.Option(help="HOST:PORT of a server.")] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file for --local.")] = None,
    rule: Annotated[
        list[AcceptanceRule] | None,
        typer.Option(help="Check this rule; may be given more than once. All without it."),
    ] = None,
    temperature: Annotated[
        float, typer.Option(help="Of the sampled generations.")
    ] = _DEFAULT.temperature,
    top_p: Annotated[float, typer.Option(help="Nucleus of the sampled ones.")] = _DEFAULT.top_p,
    samples: Annotated[
        int, typer.Option(min=50, help="Generations in each sample of a law.")
    ] = _DEFAULT.num_samples,
    tokens: Annotated[
        int, typer.Option(min=2, max=64, help="First tokens whose joint law is tested.")
    ] = _DEFAULT.num_law_tokens,
    candidates: Annotated[
        int,
        typer.Option(min=0, max=1024, help="Likeliest tokens the law is restricted to; 0: all."),
    ] = _DEFAULT.num_candidates,
    max_draft_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens drafted per round; the server's default.")
    ] = None,
    alpha: Annotated[
        float,
        typer.Option(
            min=1e-12, max=0.5, help="Probability that a sound server fails, over all laws."
        ),
    ] = _DEFAULT.alpha,
    seed: Annotated[
        int, typer.Option(min=0, max=MAX_SEED, help="Gives the seed of every generation.")
    ] = _DEFAULT.seed,
    concurrency: Annotated[
        int, typer.Option(min=1, max=256, help="Generations under way together.")
    ] = _DEFAULT.at_once,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check that speculation changes nothing but speed: same tokens, same law, sound counters. Exit code 1 if a check fails."""
    plan = Plan(
        rules=tuple(rule or AcceptanceRule),
        temperature=temperature,
        top_p=top_p,
        num_samples=samples,
        num_law_tokens=tokens,
        num_candidates=candidates,
        max_draft_tokens=max_draft_tokens,
        alpha=alpha,
        seed=seed,
        at_once=concurrency,
    )
    with progress("verifying") as tell:
        checks = verify(_subject(address, config, local=local), plan, tell)
    _show(checks, plan)
    passed = all(check.passed for check in checks)
    if as_json:
        report = {"passed": passed, "checks": [asdict(check) for check in checks]}
        write(json.dumps(report) + "\n")
    if not passed:
        raise typer.Exit(1)


def _subject(address: str | None, config: Path | None, *, local: bool) -> Subject:
    if local == (address is not None):
        raise InvalidArgumentError("--local", "give either --local or --address HOST:PORT")
    if address is not None:
        return RemoteServer(address)
    with progress("loading") as tell:
        return LocalServer(load_config(config, os.environ), tell)


def _show(checks: list[Check], plan: Plan) -> None:
    table = Table()
    for name in ("check", "rule", "n", "statistic", "p", ""):
        table.add_column(name, no_wrap=True)
    table.add_column("detail")
    for check in checks:
        table.add_row(
            check.name,
            check.rule,
            str(check.n),
            f"{check.statistic:.4g}",
            "" if check.p_value is None else f"{check.p_value:.3g}",
            "passed" if check.passed else "FAILED",
            check.detail,
        )
    console.print(table, soft_wrap=False)
    num_failed = sum(not check.passed for check in checks)
    console.print(
        f"{len(checks) - num_failed} of {len(checks)} passed; temperature {plan.temperature:g}, top-p {plan.top_p:g}, "
        f"seed {plan.seed}; a sound server fails a law with probability {plan.alpha:g} in all"
    )
