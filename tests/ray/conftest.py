"""One Ray cluster for all tests here: the three deployments over a tiny random Llama, on free ports."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.processes import children
from tests.support.tiny_models import build_tiny_model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deployments.config import Config
    from deployments.transport.generation_client import GenerationClient

DRAFTER = {"kind": "layer_skip", "num_layers": 2, "num_draft_tokens": 3}


@pytest.fixture(autouse=True)
def no_ray() -> None:
    """Ray is what these tests are about."""


@dataclass(frozen=True)
class Cluster:
    config: Config
    client: GenerationClient
    grpc: str
    http: str


@pytest.fixture(scope="session")
def tiny_config(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A configuration that loads in a moment."""
    folder = tmp_path_factory.mktemp("tiny") / "llama"
    build_tiny_model("llama", folder, seed=3)
    return {
        "target": {"model": str(folder), "kv_tokens": 8192},
        "drafter": DRAFTER,
        "server": {"grpc_port": 0, "http_port": 0},
    }


@pytest.fixture(scope="session")
def cluster(tiny_config: dict[str, Any]) -> Iterator[Cluster]:
    """Started once; no process of it is left afterwards."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own
        from deployments import ray_facade  # noqa: PLC0415 - importing Ray takes seconds that other tests need not pay
        from deployments.app import application  # noqa: PLC0415
        from deployments.cli.serving import with_ports  # noqa: PLC0415
        from deployments.config import parse_config  # noqa: PLC0415
        from deployments.transport.generation_client import GenerationClient  # noqa: PLC0415

        config = parse_config(tiny_config)
        server = with_ports(config.server)
        before = children()
        with ray_facade.local_cluster(server, math.ceil(config.num_cpus)):
            ray_facade.deploy(application(config), timeout_s=180, poll_s=0.2)
            address = f"{server.host}:{server.grpc_port}"
            client = GenerationClient(address)
            client.wait_until_connected(30)
            yield Cluster(config, client, address, f"{server.host}:{server.http_port}")
            client.close()
        assert children() <= before
