"""The ingress: ``GenerationService`` on a Serve replica. Decode, generate, encode; every error leaves as a status and one line."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
import uuid
from contextlib import aclosing, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol

from deployments.assembly import load_target_text
from deployments.config import NoDrafterConfig, parse_config
from deployments.coordinator.generations import Generations, Identifiers
from deployments.coordinator.peer_streams import PeerStreams
from deployments.coordinator.session_driver import Peers
from deployments.coordinator.shadow import ShadowCheck, ShadowCounters, ShadowSettings
from deployments.generation import prompt_tokens
from deployments.locator import NoLocator
from deployments.ray_facade import ServeLocator, counter
from deployments.transport.codec_request import (
    decode_detokenize_request,
    decode_generate_request,
    decode_tokenize_request,
)
from deployments.transport.codec_response import encode_event, encode_model_info
from deployments.transport.data_plane import DRAFTER, TARGET
from deployments.transport.status import to_status
from specdec_core.errors import SpecdecError
from specdec_proto.v1 import generation_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Mapping

    from grpc import StatusCode

    from deployments.config import Config
    from deployments.ray_facade import Handle

logger = logging.getLogger(__name__)


class CallContext(Protocol):
    """The part of Serve's gRPC context that is used."""

    def set_code(self, code: StatusCode) -> None: ...
    def set_details(self, details: str) -> None: ...


class Coordinator:
    """One replica. A generation lives in the replica that its stream reached."""

    async def _start(
        self,
        config: Mapping[str, Any],
        target: Handle,
        drafter: Handle | None,
    ) -> None:
        parsed = parse_config(config)
        text = await asyncio.to_thread(load_target_text, parsed, logger.info)
        targets = ServeLocator(target)
        deadline_s = (
            0.0 if isinstance(parsed.drafter, NoDrafterConfig) else parsed.drafter.deadline_s
        )
        peers = Peers(
            targets=targets,
            target_streams=PeerStreams(TARGET),
            drafters=NoLocator() if drafter is None else ServeLocator(drafter),
            drafter_streams=PeerStreams(DRAFTER),
            answer_timeout_s=parsed.target.answer_timeout_s,
            draft_deadline_s=deadline_s,
        )
        identifiers = Identifiers(lambda: uuid.uuid4().hex, secrets.randbits)
        self._generations = Generations(
            parsed,
            text,
            targets=targets,
            peers=peers,
            identifiers=identifiers,
            shadow=_shadow_check(parsed, peers, identifiers),
        )

    __init__ = _start  # Serve awaits it

    async def Generate(
        self, request: generation_pb2.GenerateRequest, grpc_context: CallContext
    ) -> AsyncGenerator[generation_pb2.GenerateResponse, None]:
        """Stream one generation."""
        with _answering(grpc_context):
            call = decode_generate_request(request, self._generations.default_speculation)
            async with aclosing(self._generations.generate(call)) as events:
                async for event in events:
                    yield encode_event(event)

    async def GetModel(
        self, _request: generation_pb2.GetModelRequest, grpc_context: CallContext
    ) -> generation_pb2.GetModelResponse:
        """Describe the model served."""
        with _answering(grpc_context):
            return encode_model_info(await self._generations.describe())

    async def Tokenize(
        self, request: generation_pb2.TokenizeRequest, grpc_context: CallContext
    ) -> generation_pb2.TokenizeResponse:
        """Turn text into the token ids the model would see."""
        with _answering(grpc_context):
            prompt = decode_tokenize_request(request)
            ids = await asyncio.to_thread(prompt_tokens, prompt, self._generations.tokenizer)
            return generation_pb2.TokenizeResponse(token_ids=ids)

    async def Detokenize(
        self, request: generation_pb2.DetokenizeRequest, grpc_context: CallContext
    ) -> generation_pb2.DetokenizeResponse:
        """Turn token ids into text."""
        with _answering(grpc_context):
            ids = decode_detokenize_request(request)
            tokenizer = self._generations.tokenizer
            text = await asyncio.to_thread(tokenizer.decode, ids, skip_special_tokens=False)
            return generation_pb2.DetokenizeResponse(text=text)

    async def __call__(self, _request: object) -> dict[str, Any]:
        """The model served, for HTTP; the OpenAI API is not part of this version."""
        return asdict(await self._generations.describe())


def _shadow_check(config: Config, peers: Peers, identifiers: Identifiers) -> ShadowCheck:
    settings = ShadowSettings(
        fraction=config.coordinator.shadow_fraction,
        max_sessions=config.target.max_sessions,
        new_session_id=identifiers.new_session_id,
        random_bits=identifiers.random_bits,
        clock=time.monotonic,
    )
    counters = ShadowCounters(
        checked=counter("specdec_shadow_checked_total", "Generations the target re-scored."),
        mismatch=counter("specdec_shadow_mismatch_total", "Of those, not what the target says."),
        skipped=counter("specdec_shadow_skipped_total", "Generations it could not re-score."),
    )
    return ShadowCheck(peers, settings, counters)


@contextmanager
def _answering(grpc_context: CallContext) -> Iterator[None]:
    """Give the client a status and one line for whatever goes wrong; a bug is logged with its trace."""
    try:
        yield
    except SpecdecError as error:
        _set_status(grpc_context, error)
        raise
    except Exception as error:
        logger.exception("a call failed")
        _set_status(grpc_context, error)
        raise


def _set_status(grpc_context: CallContext, error: Exception) -> None:
    code, text = to_status(error)
    grpc_context.set_code(code)
    grpc_context.set_details(text)
