"""Brings the deployments up on Ray and takes them down again, whatever happens in between."""

from __future__ import annotations

import math
import os
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

from deployments import ray_facade
from deployments.app import application
from deployments.assembly import target_folder
from deployments.cli.interrupts import ignore_signals, unwind_on_signals
from deployments.transport.generation_client import GenerationClient
from specdec_core.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from deployments.config import Config, ServerConfig

_CONNECT_TIMEOUT_S = 30.0
_DEPLOY_TIMEOUT_S = 1800.0  # a large model may have to be fetched first
_POLL_S = 0.2


@contextmanager
def serving(
    config: Config, ray_address: str | None, progress: Callable[[str], None]
) -> Iterator[ServerConfig]:
    """Serve ``config`` until the block ends; yields where clients connect.

    Raises:
        InvalidArgumentError: if a port is taken.
        PeerUnavailableError: if a deployment does not come up.
    """
    server = with_ports(config.server)
    target_folder(config, progress)
    progress("starting Ray Serve")
    with _cluster(server, ray_address, config):
        unwind_on_signals()  # Ray has just installed handlers that exit at once
        try:
            progress(f"deploying coordinator, target and {config.drafter.kind} drafter")
            ray_facade.deploy(application(config), timeout_s=_DEPLOY_TIMEOUT_S, poll_s=_POLL_S)
            _check(server)
            yield server
        finally:
            ignore_signals()


def _cluster(
    server: ServerConfig, ray_address: str | None, config: Config
) -> AbstractContextManager[None]:
    """A local cluster counts as many CPUs as the deployments ask for, even where the machine has fewer."""
    if ray_address:
        return ray_facade.joined_cluster(server, ray_address)
    return ray_facade.local_cluster(server, max(os.cpu_count() or 1, math.ceil(config.num_cpus)))


def _check(server: ServerConfig) -> None:
    """Have the server answer a client before anyone is told that it is there."""
    client = GenerationClient(f"{server.host}:{server.grpc_port}")
    try:
        client.wait_until_connected(_CONNECT_TIMEOUT_S)
        client.describe()
    finally:
        client.close()


def with_ports(server: ServerConfig) -> ServerConfig:
    """The same with a free port in place of each 0.

    Raises:
        InvalidArgumentError: if a port that was named is taken.
    """
    return server.model_copy(
        update={
            "grpc_port": _usable_port("server.grpc_port", server.grpc_port),
            "http_port": _usable_port("server.http_port", server.http_port),
        }
    )


def _usable_port(field: str, port: int) -> int:
    """The port, or a free one for 0."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise InvalidArgumentError(field, f"{port} is in use on this machine") from error
        return int(probe.getsockname()[1])
