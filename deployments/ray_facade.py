"""Every bare Ray call. The rest of the package sees locators, addresses and plain classes."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.config import HTTPOptions, ProxyLocation, gRPCOptions
from ray.serve.exceptions import RayServeException
from ray.serve.schema import LoggingConfig

from deployments.locator import Lease, TargetFacts
from specdec_core.errors import OverloadedError, PeerUnavailableError

if TYPE_CHECKING:
    from ray.serve import Application
    from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator

    from deployments.config import ServerConfig

APP_NAME = "specdec"
DATA_ADDRESS = "data_address"
GENERATION_SERVICER = "specdec_proto.v1.generation_pb2_grpc.add_GenerationServiceServicer_to_server"
_ACQUIRE_TIMEOUT_S = 60.0
_DESCRIBE_TIMEOUT_S = 10.0


def node_address() -> str:
    """The address of this node that other nodes of the cluster reach."""
    return str(ray.util.get_node_ip_address())


@dataclass(frozen=True, slots=True)
class ServeLocator:
    """Finds replicas of a Serve deployment.

    A lease is a streaming call that stays open: Serve counts it for draining and autoscaling, and ends it when its holder dies, which
    it does only for calls that do not go through the object store (``_by_reference=False``).
    """

    handle: DeploymentHandle[Any]

    async def acquire(self, session_id: str) -> Lease:
        options = self.handle.options(
            session_id=session_id, method_name="lease", stream=True, _by_reference=False
        )
        stream = cast("DeploymentResponseGenerator[Any]", options.remote(session_id))
        try:
            metadata = await asyncio.wait_for(anext(stream), _ACQUIRE_TIMEOUT_S)
        except (RayError, RayServeException, StopAsyncIteration, TimeoutError) as error:
            stream.cancel()
            raise _unavailable(error) from error
        except asyncio.CancelledError:
            stream.cancel()
            raise
        return Lease(metadata[DATA_ADDRESS], stream.cancel)

    async def describe(self) -> TargetFacts:
        """What a replica tells of itself, taken from the metadata that the router already has."""
        try:
            async with asyncio.timeout(_DESCRIBE_TIMEOUT_S), self.handle.choose_replica() as chosen:
                facts = dict(chosen.replica_metadata)
        except (RayError, RayServeException, TimeoutError) as error:
            raise _unavailable(error) from error
        facts.pop(DATA_ADDRESS)
        return TargetFacts(**{**facts, "eos_token_ids": tuple(facts["eos_token_ids"])})


def _unavailable(error: Exception) -> OverloadedError | PeerUnavailableError:
    kind = type(error).__name__
    if kind == "BackPressureError":
        return OverloadedError("every replica is at its limit of sessions; retry later")
    return PeerUnavailableError(f"no replica can be had ({kind})")


def start(server: ServerConfig, address: str | None) -> None:
    """Join the cluster at ``address``, or start one on this machine, and open the proxies."""
    ray.init(
        address=address or "local",
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        configure_logging=True,
    )
    serve.start(
        proxy_location=ProxyLocation.HeadOnly if address is None else ProxyLocation.EveryNode,
        http_options=HTTPOptions(host=server.host, port=server.http_port),
        grpc_options=gRPCOptions(
            port=server.grpc_port, grpc_servicer_functions=[GENERATION_SERVICER]
        ),
        logging_config=LoggingConfig(log_level="WARNING"),
    )


def run(application: Application) -> None:
    """Deploy and wait until every replica is ready.

    Raises:
        PeerUnavailableError: if the deployment fails.
    """
    try:
        serve.run(
            application,
            name=APP_NAME,
            route_prefix="/",
            logging_config=LoggingConfig(log_level="WARNING"),
        )
    except RuntimeError as error:
        raise PeerUnavailableError(f"the deployment failed: {_reason()}") from error


def _reason() -> str:
    """The last line of the first replica's failure."""
    application = serve.status().applications.get(APP_NAME)
    messages = (
        [each.message for each in application.deployments.values() if each.message]
        if application
        else []
    )
    lines = (
        [line for line in messages[0].splitlines() if line.strip()]
        if messages
        else ["see the Serve logs"]
    )
    return lines[-1].strip()


def stop() -> None:
    """Stop the application and, if this process started it, the cluster."""
    serve.shutdown()
    ray.shutdown()
