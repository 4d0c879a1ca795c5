"""The commands, and how errors leave the process."""

from __future__ import annotations

import typer

from deployments.cli.demo import demo
from deployments.cli.generate import generate
from deployments.cli.serve import serve
from deployments.cli.terminal import console
from deployments.cli.verify_exactness import verify_exactness
from specdec_core.errors import ErrorCode, SpecdecError

app = typer.Typer(
    name="specdec",
    help="Distributed speculative decoding on Ray Serve.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(serve)
app.command()(generate)
app.command()(demo)
app.command()(verify_exactness)

_USAGE_CODES = frozenset({ErrorCode.INVALID_ARGUMENT, ErrorCode.UNSUPPORTED, ErrorCode.NOT_FOUND})


def main(arguments: list[str]) -> int:
    """The exit code of a command line: 0, 1 for a failure, 2 for a mistake, 130 when interrupted."""
    try:
        code = app(arguments or ["--help"], prog_name=app.info.name, standalone_mode=False)
    except typer.TyperException as error:
        _say(error.format_message())
        return error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return 130
    except SpecdecError as error:
        _say(str(error))
        return 2 if error.code in _USAGE_CODES else 1
    return code if isinstance(code, int) else 0


def _say(text: str) -> None:
    line = " ".join(text.split())
    console.print(f"error: {line}")
