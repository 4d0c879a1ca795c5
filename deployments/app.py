"""Wires the three deployments together; ``serve run deployments.app:build`` and ``serve deploy`` start here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ray import serve

from deployments.config import Config, NoDrafterConfig, parse_config
from deployments.coordinator.service import Coordinator
from deployments.drafter import Drafter
from deployments.target import Target

if TYPE_CHECKING:
    from ray.serve import Application

    from deployments.config import ReplicaConfig

_SPARE_REQUESTS = 16  # calls beside sessions: descriptions, tokenizing, refusals


def build(args: dict[str, Any]) -> Application:
    """The application of a configuration given as a mapping, as Serve passes ``args`` on.

    Raises:
        InvalidArgumentError: naming the key that is wrong.
    """
    return application(parse_config(args))


def application(config: Config) -> Application:
    """The application of a validated configuration."""
    values = config.model_dump(mode="json")
    target = _deployment(Target, config.target.replicas, config.target.max_sessions).bind(values)
    drafter = None
    if not isinstance(config.drafter, NoDrafterConfig):
        drafter = _deployment(Drafter, config.drafter.replicas, config.drafter.max_sessions).bind(
            values
        )
    coordinator = _deployment(
        Coordinator, config.coordinator.replicas, config.coordinator.max_sessions
    )
    return coordinator.bind(values, target, drafter)


def _deployment(cls: type, replicas: ReplicaConfig, max_sessions: int) -> serve.Deployment:
    deploy = serve.deployment(
        num_replicas=replicas.num_replicas,
        max_ongoing_requests=max_sessions + _SPARE_REQUESTS,
        ray_actor_options={"num_cpus": replicas.num_cpus, "num_gpus": replicas.num_gpus},
    )
    return deploy(cls)
