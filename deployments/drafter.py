"""The Drafter deployment: decode, propose, encode. Everything it guesses is in ``specdec_core.drafters``."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from deployments.assembly import load_drafter
from deployments.config import NoDrafterConfig, parse_config
from deployments.data_plane_replica import DataPlaneReplica
from deployments.ray_facade import node_address
from deployments.transport.data_plane import DRAFTER
from deployments.transport.server import start_server
from specdec_core.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

logger = logging.getLogger(__name__)


class Drafter:
    """One replica: a drafter with its sessions, and a data-plane server."""

    async def _start(self, config: Mapping[str, Any]) -> None:
        parsed = parse_config(config)
        if isinstance(parsed.drafter, NoDrafterConfig):
            raise InvalidArgumentError("drafter.kind", "is none; there is nothing to deploy")
        role = await asyncio.to_thread(load_drafter, parsed, parsed.drafter, logger.info)
        server = await start_server(DRAFTER, role, host=node_address())
        self._replica = DataPlaneReplica(server, {})

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
