"""Every bare Ray call. The rest of the package sees locators, addresses and plain classes."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.config import HTTPOptions, gRPCOptions
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator
from ray.serve.schema import ApplicationStatus, LoggingConfig
from ray.util import metrics

from deployments.locator import Lease, TargetFacts
from deployments.orphans import no_orphans
from specdec_core.errors import OverloadedError, PeerUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ray.serve import Application
    from ray.serve.schema import ApplicationStatusOverview

    from deployments.config import ServerConfig

Handle = DeploymentHandle[Any]

APP_NAME = "specdec"
DATA_ADDRESS = "data_address"
GENERATION_SERVICER = "specdec_proto.v1.generation_pb2_grpc.add_GenerationServiceServicer_to_server"
_QUIET = LoggingConfig(log_level="WARNING", enable_access_log=False)
_ACQUIRE_TIMEOUT_S = 60.0
_DESCRIBE_TIMEOUT_S = 10.0


def node_address() -> str:
    """The address of this node that other nodes of the cluster reach."""
    return str(ray.util.get_node_ip_address())


def counter(name: str, description: str) -> metrics.Counter:
    """A count that Ray exports to Prometheus, for each replica that makes it."""
    return metrics.Counter(name, description)


@dataclass(frozen=True, slots=True)
class ServeLocator:
    """Finds replicas of a Serve deployment.

    A lease is a streaming call that stays open: Serve counts it for draining and autoscaling, and ends it when its holder dies, which
    it does only for calls that do not go through the object store (``_by_reference=False``).
    """

    handle: Handle

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
    if isinstance(error, BackPressureError):
        return OverloadedError("every replica is at its limit of sessions; retry later")
    if isinstance(error, TimeoutError):
        return OverloadedError("no replica had room in time; retry later")
    return PeerUnavailableError(f"no replica can be had ({type(error).__name__})")


@contextmanager
def local_cluster(server: ServerConfig, num_cpus: int) -> Iterator[None]:
    """Ray and Serve on this machine, as processes that end with the block."""
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    with no_orphans():
        try:
            ray.init(
                address="local",
                num_cpus=num_cpus,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
            _start_serve(server)
            yield
        finally:
            ray.shutdown()  # Serve goes with its cluster; shutting it down first would wait for every replica in turn


@contextmanager
def joined_cluster(server: ServerConfig, address: str) -> Iterator[None]:
    """The Ray cluster at ``address``; the application is deleted with the block and nothing else."""
    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    try:
        _start_serve(server)
        yield
    finally:
        serve.delete(APP_NAME)
        ray.shutdown()


def _start_serve(server: ServerConfig) -> None:
    serve.start(
        http_options=HTTPOptions(host=server.host, port=server.http_port),
        grpc_options=gRPCOptions(
            port=server.grpc_port, grpc_servicer_functions=[GENERATION_SERVICER]
        ),
        logging_config=_QUIET,
    )


def deploy(application: Application, *, timeout_s: float, poll_s: float) -> None:
    """Deploy and wait until every replica is ready.

    Raises:
        PeerUnavailableError: if a replica fails for good, giving its last line, or the time runs out, saying what it waits for.
    """
    target = serve.RunTarget(application, name=APP_NAME, route_prefix="/", logging_config=_QUIET)
    serve.run_many(
        [target], wait_for_ingress_deployment_creation=False, wait_for_applications_running=False
    )
    deadline = time.monotonic() + timeout_s
    while (status := serve.status().applications[APP_NAME]).status is not ApplicationStatus.RUNNING:
        if status.status is ApplicationStatus.DEPLOY_FAILED:
            raise PeerUnavailableError(f"the deployment failed: {_blame(status)}")
        if time.monotonic() > deadline:
            raise PeerUnavailableError(f"not ready after {timeout_s:g} s: {_blame(status)}")
        time.sleep(poll_s)


def _blame(status: ApplicationStatusOverview) -> str:
    """The last line that the first unready deployment says, which in a stack trace is the error."""
    waiting = {
        name: each.message.strip().splitlines()
        for name, each in status.deployments.items()
        if each.status.value != "HEALTHY"
    }
    name, lines = next(iter(waiting.items()), ("application", status.message.strip().splitlines()))
    return f"{name}: {lines[-1].strip() if lines else 'no replica is ready'}"
