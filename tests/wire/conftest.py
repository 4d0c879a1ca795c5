from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from grpc import aio

from deployments.transport.client import PeerStream
from deployments.transport.data_plane import TARGET
from deployments.transport.server import start_server
from tests.support.echo_role import EchoRole

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from deployments.transport.client import TargetStream
    from deployments.transport.server import TargetServer


@pytest.fixture
def role() -> Iterator[EchoRole]:
    role = EchoRole()
    yield role
    role.gate.set()


@pytest.fixture
async def server(role: EchoRole) -> AsyncIterator[TargetServer]:
    server = await start_server(TARGET, role, host="127.0.0.1")
    yield server
    role.gate.set()
    await server.close()


@pytest.fixture
async def stream(server: TargetServer) -> AsyncIterator[TargetStream]:
    stream = await PeerStream.connect(TARGET, server.address)
    yield stream
    await stream.close()


@pytest.fixture
async def channel(server: TargetServer) -> AsyncIterator[aio.Channel]:
    async with aio.insecure_channel(server.address) as channel:
        yield channel
