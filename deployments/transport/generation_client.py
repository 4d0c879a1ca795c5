"""A client of the public ``GenerationService``."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import grpc

from deployments.transport.channel_options import API_CLIENT_OPTIONS
from deployments.transport.codec_request import encode_generate_request
from deployments.transport.codec_response import decode_event, decode_model_info
from deployments.transport.status import from_rpc_error
from specdec_core.errors import PeerUnavailableError
from specdec_proto.v1 import generation_pb2, generation_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from deployments.transport.api_records import GenerationCall, GenerationEvent, ModelInfo


class GenerationClient:
    """One connection to a server, used from one thread."""

    def __init__(self, address: str, *, application: str = "specdec") -> None:
        """Connect to ``address`` (host:port) on first use; ``application`` routes within a Serve cluster."""
        self._address = address
        self._channel = grpc.insecure_channel(address, options=API_CLIENT_OPTIONS)
        self._stub = generation_pb2_grpc.GenerationServiceStub(self._channel)
        self._metadata = (("application", application),)

    def wait_until_connected(self, timeout_s: float) -> None:
        """Block until the server takes connections.

        Raises:
            PeerUnavailableError: if it does not within ``timeout_s``.
        """
        try:
            grpc.channel_ready_future(self._channel).result(timeout=timeout_s)
        except grpc.FutureTimeoutError as error:
            raise PeerUnavailableError(f"no server answers at {self._address}") from error

    def describe(self, timeout_s: float = 30.0) -> ModelInfo:
        """The model served."""
        with _errors():
            response = self._stub.GetModel(
                generation_pb2.GetModelRequest(), timeout=timeout_s, metadata=self._metadata
            )
        return decode_model_info(response)

    def generate(self, call: GenerationCall) -> Generator[GenerationEvent, None, None]:
        """Stream one generation; closing the iterator cancels it.

        Raises:
            SpecdecError: what the server refused it for, or what broke the stream.
        """
        stream = self._stub.Generate(encode_generate_request(call), metadata=self._metadata)
        try:
            with _errors():
                for response in stream:
                    yield decode_event(response)
        finally:
            stream.cancel()

    def close(self) -> None:
        """End the connection."""
        self._channel.close()


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except grpc.RpcError as error:
        raise from_rpc_error(error) from error
