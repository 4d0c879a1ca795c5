"""Brings the deployments up on Ray and takes them down again, whatever happens in between."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

from deployments import ray_facade
from deployments.app import application
from deployments.assembly import target_folder
from deployments.config import NoDrafterConfig
from deployments.transport.generation_client import GenerationClient
from specdec_core.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from deployments.config import Config, ServerConfig

_CONNECT_TIMEOUT_S = 30.0


@contextmanager
def serving(
    config: Config, ray_address: str | None, progress: Callable[[str], None]
) -> Iterator[ServerConfig]:
    """Serve ``config`` until the block ends; yields where clients connect.

    Raises:
        InvalidArgumentError: if a port is taken.
        PeerUnavailableError: if a deployment does not come up.
    """
    server = config.server.model_copy(
        update={
            "grpc_port": _usable_port("server.grpc_port", config.server.grpc_port),
            "http_port": _usable_port("server.http_port", config.server.http_port),
        }
    )
    target_folder(config, progress)
    try:
        progress("starting Ray Serve")
        ray_facade.start(server, ray_address)
        drafter = (
            "no drafter"
            if isinstance(config.drafter, NoDrafterConfig)
            else f"{config.drafter.kind} drafter"
        )
        progress(f"deploying coordinator, target and {drafter}")
        ray_facade.run(application(config))
        client = GenerationClient(f"{server.host}:{server.grpc_port}")
        client.wait_until_connected(_CONNECT_TIMEOUT_S)
        client.describe()
        client.close()
        yield server
    finally:
        ray_facade.stop()


def _usable_port(field: str, port: int) -> int:
    """The port, or a free one for 0."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise InvalidArgumentError(field, f"{port} is in use on this machine") from error
        return int(probe.getsockname()[1])
