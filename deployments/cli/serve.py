"""``specdec serve``: the deployments on a local Ray or an existing cluster."""

import json
import os
import threading
from pathlib import Path
from typing import Annotated

import typer

from deployments.cli.serving import serving
from deployments.cli.terminal import console, progress
from deployments.config import load_config


def serve(
    config: Annotated[
        Path | None, typer.Argument(help="YAML file; the embedded default without one.")
    ] = None,
    ready_file: Annotated[
        Path | None, typer.Option(help="Written with the addresses once requests are answered.")
    ] = None,
    ray_address: Annotated[
        str | None, typer.Option(help="Cluster to join; a local one is started without it.")
    ] = None,
) -> None:
    """Serve until Ctrl-C."""
    loaded = load_config(config, os.environ)
    try:
        with progress("starting") as tell, serving(loaded, ray_address, tell) as server:
            addresses = {
                "grpc": f"{server.host}:{server.grpc_port}",
                "http": f"{server.host}:{server.http_port}",
            }
            if ready_file:
                _write(ready_file, json.dumps(addresses))
            tell(f"gRPC on {addresses['grpc']}, HTTP on {addresses['http']}; Ctrl-C stops")
            threading.Event().wait()
    except KeyboardInterrupt:
        pass
    console.print("stopped")


def _write(path: Path, text: str) -> None:
    """All of the file or nothing of it."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
