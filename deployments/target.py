"""The Target deployment: decode, verify, encode. Everything it decides is in ``specdec_core.roles.target``."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from deployments.assembly import load_target
from deployments.config import parse_config
from deployments.data_plane_replica import DataPlaneReplica, check_decode
from deployments.ray_facade import node_address
from deployments.transport.data_plane import TARGET
from deployments.transport.server import start_server

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

logger = logging.getLogger(__name__)


class Target:
    """One replica: a model, its sessions' KV, and a data-plane server. Ready once it has decoded a token."""

    async def _start(self, config: Mapping[str, Any]) -> None:
        loaded = await asyncio.to_thread(load_target, parse_config(config), logger.info)
        await asyncio.to_thread(check_decode, loaded.role)
        server = await start_server(TARGET, loaded.role, host=node_address())
        self._replica = DataPlaneReplica(server, asdict(loaded.facts))

    __init__ = _start  # Serve awaits it

    def record_replica_metadata(self) -> dict[str, Any]:
        return self._replica.metadata

    async def lease(self, session_id: str) -> AsyncGenerator[dict[str, Any], None]:
        """Say where the replica is, then hold its place for the session until the caller lets go or dies."""
        del session_id
        yield self._replica.metadata
        await asyncio.Event().wait()

    def check_health(self) -> None:
        self._replica.check_health()
