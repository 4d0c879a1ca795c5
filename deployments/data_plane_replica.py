"""What a target replica and a drafter replica have in common: a role behind a data-plane server, found by leases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deployments.ray_facade import DATA_ADDRESS
from specdec_core.errors import InvariantError
from specdec_core.messages import Close, Extend, Open, Verified
from specdec_core.params import SamplingParams
from specdec_core.types import AcceptanceRule, DraftBlock, NoiseKey, OneHot

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deployments.transport.server import DataPlaneServer
    from specdec_core.messages import TargetMessage
    from specdec_core.roles.role import Role

_CHECK_SESSION = "warm-up"


class DataPlaneReplica:
    """A running data-plane server and what is told of it."""

    def __init__(self, server: DataPlaneServer[Any, Any, Any], facts: Mapping[str, Any]) -> None:
        self._server = server
        self._metadata = {DATA_ADDRESS: server.address, **facts}

    @property
    def metadata(self) -> dict[str, Any]:
        """Address and facts; JSON values only."""
        return dict(self._metadata)

    def check_health(self) -> None:
        """Raise InvariantError when the step thread is gone."""
        if not self._server.is_stepping:
            raise InvariantError("the step thread has ended")


def check_decode(role: Role[TargetMessage]) -> None:
    """Decode one real token, so that a replica is ready only when it works.

    Raises:
        InvariantError: if no evidence comes back.
    """
    greedy = SamplingParams(temperature=0.0)
    role.submit(Open(_CHECK_SESSION, 1, 1, greedy, AcceptanceRule.COUPLED, NoiseKey(0)))
    role.submit(Extend(_CHECK_SESSION, 1, 0, (0,), DraftBlock(1, 0, (), OneHot())))
    replies = role.step()
    role.submit(Close(_CHECK_SESSION, 1))
    if not any(isinstance(reply, Verified) for reply in replies):
        raise InvariantError(f"the target decoded no token: {replies}")
