"""The two data planes, as one strategy each: which method, which codec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import grpc
from google.protobuf.message import Message

from deployments.transport import codec_drafter, codec_target
from specdec_core.messages import (
    Close,
    DrafterMessage,
    Extend,
    Failed,
    Open,
    Propose,
    TargetMessage,
)
from specdec_proto.v1 import drafter_pb2, target_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from grpc import aio

    from specdec_core.messages import RoleReply

MessageT = TypeVar("MessageT", bound=Open | Extend | Propose | Close)
RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


@dataclass(frozen=True, slots=True)
class DataPlane(Generic[MessageT, RequestT, ResponseT]):
    """How coordinators talk to one kind of peer: a bidirectional stream of frames."""

    name: str
    service: str  # full name of the gRPC service
    method: str
    request_type: type[RequestT]
    response_type: type[ResponseT]
    encode_request: Callable[
        [MessageT | Close], RequestT
    ]  # one message; frames join with MergeFrom
    decode_request: Callable[[RequestT], Sequence[MessageT | Failed]]
    encode_response: Callable[[Sequence[RoleReply]], ResponseT]
    decode_response: Callable[[ResponseT], Sequence[RoleReply]]

    def call(self, channel: aio.Channel) -> aio.StreamStreamCall[RequestT, ResponseT]:
        """Open the stream on a channel."""
        serialize: Callable[[RequestT], bytes] = self.request_type.SerializeToString
        method = channel.stream_stream(
            f"/{self.service}/{self.method}",
            request_serializer=serialize,
            response_deserializer=self.response_type.FromString,
        )
        return method()

    def add_to_server(
        self,
        serve: Callable[
            [AsyncIterator[RequestT], aio.ServicerContext[RequestT, ResponseT]], Awaitable[None]
        ],
        server: aio.Server,
    ) -> None:
        """Have ``serve``, a coroutine function, answer each stream of this kind."""
        handler = grpc.stream_stream_rpc_method_handler(
            serve,
            request_deserializer=self.request_type.FromString,
            response_serializer=self.response_type.SerializeToString,
        )
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(self.service, {self.method: handler}),)
        )


TARGET: DataPlane[TargetMessage, target_pb2.ExtendRequest, target_pb2.ExtendResponse] = DataPlane(
    name="target",
    service="specdec_proto.v1.TargetService",
    method="Extend",
    request_type=target_pb2.ExtendRequest,
    response_type=target_pb2.ExtendResponse,
    encode_request=codec_target.encode_request,
    decode_request=codec_target.decode_request,
    encode_response=codec_target.encode_response,
    decode_response=codec_target.decode_response,
)

DRAFTER: DataPlane[DrafterMessage, drafter_pb2.ProposeRequest, drafter_pb2.ProposeResponse] = (
    DataPlane(
        name="drafter",
        service="specdec_proto.v1.DrafterService",
        method="Propose",
        request_type=drafter_pb2.ProposeRequest,
        response_type=drafter_pb2.ProposeResponse,
        encode_request=codec_drafter.encode_request,
        decode_request=codec_drafter.decode_request,
        encode_response=codec_drafter.encode_response,
        decode_response=codec_drafter.decode_response,
    )
)
