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

_SPARE_CALLS = 16  # beside sessions: descriptions, tokenizing, refusals


def build(args: dict[str, Any]) -> Application:
    """The application of a configuration given as a mapping, as Serve passes ``args`` on.

    Raises:
        InvalidArgumentError: naming the key that is wrong.
    """
    return application(parse_config(args))


def application(config: Config) -> Application:
    """The application of a validated configuration."""
    values = config.model_dump(mode="json")
    target = _deployment(Target, config.target.replicas, num_calls=config.target.max_sessions).bind(
        values
    )
    drafter = None
    if not isinstance(config.drafter, NoDrafterConfig):
        num_calls = config.drafter.max_sessions
        drafter = _deployment(Drafter, config.drafter.replicas, num_calls=num_calls).bind(values)
    coordinator = _deployment(
        Coordinator,
        config.coordinator.replicas,
        num_calls=config.coordinator.max_sessions + _SPARE_CALLS,
    )
    return coordinator.bind(values, target, drafter)


def _deployment(cls: type, replicas: ReplicaConfig, *, num_calls: int) -> serve.Deployment:
    """One deployment whose replicas take ``num_calls`` calls each; as many again may wait, and more are refused at once."""
    deploy = serve.deployment(
        num_replicas=replicas.num_replicas,
        max_ongoing_requests=num_calls,
        max_queued_requests=num_calls,
        ray_actor_options={"num_cpus": replicas.num_cpus, "num_gpus": replicas.num_gpus},
    )
    return deploy(cls)
