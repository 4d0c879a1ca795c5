"""A server at an address, asked for several generations at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import TYPE_CHECKING

from deployments.transport.generation_client import GenerationClient

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deployments.transport.api_records import GenerationCall, GenerationEvent, ModelInfo


class RemoteServer:
    """Opens a client for each generation under way; they share one connection."""

    def __init__(self, address: str) -> None:
        self._address = address

    def describe(self) -> ModelInfo:
        """The model served and how it is speculated on."""
        client = GenerationClient(self._address)
        try:
            return client.describe()
        finally:
            client.close()

    def generate_many(
        self, calls: Sequence[GenerationCall], *, at_once: int
    ) -> list[list[GenerationEvent]]:
        """The events of each call, in order of the calls.

        Raises:
            SpecdecError: the first that the server refuses a call for, or that breaks a stream.
        """
        clients = [GenerationClient(self._address) for _ in range(min(at_once, len(calls)))]
        idle: SimpleQueue[GenerationClient] = SimpleQueue()
        for client in clients:
            idle.put(client)

        def generate(call: GenerationCall) -> list[GenerationEvent]:
            client = idle.get()
            try:
                return list(client.generate(call))
            finally:
                idle.put(client)

        pool = ThreadPoolExecutor(len(clients) or 1)
        try:
            return list(pool.map(generate, calls))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for client in clients:
                client.close()  # breaks the streams that an error left open
