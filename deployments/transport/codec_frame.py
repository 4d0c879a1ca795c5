"""What target and drafter frames share: the stamp of an item, and sessions beginning.

A frame that cannot be attributed to sessions raises; an item that can, but is wrong, becomes a ``Failed`` of its own session,
so that no session pays for another's mistake.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from deployments.transport.codec_params import (
    decode_noise,
    decode_rule,
    decode_sampling,
    encode_noise,
    encode_rule,
    encode_sampling,
)
from deployments.transport.wire_limits import (
    MAX_ITEMS,
    MAX_SESSION_ID_CHARS,
    check_chars,
    check_count,
    check_length,
)
from specdec_core.errors import ProtocolError, SpecdecError
from specdec_core.messages import Failed, Open
from specdec_proto.v1 import types_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Stamp(NamedTuple):
    """Which session, which of its opens, and how many tokens both sides agree on."""

    session_id: str
    epoch: int
    base_len: int


class _Stamped(Protocol):
    @property
    def session_id(self) -> str: ...
    @property
    def epoch(self) -> int: ...
    @property
    def base_len(self) -> int: ...


Item = TypeVar("Item", bound=_Stamped)
Record = TypeVar("Record")


def decode_frame(
    items: Sequence[Item], decode: Callable[[Item, Stamp], Record]
) -> list[Record | Failed]:
    """The records in order; an item that ``decode`` refuses as the ``Failed`` of its session.

    Raises:
        InvalidArgumentError: if there are too many items, or one names no valid session.
    """
    check_count("items", len(items), 0, MAX_ITEMS)
    records: list[Record | Failed] = []
    for item in items:
        check_chars("session_id", item.session_id, 1, MAX_SESSION_ID_CHARS)
        stamp = Stamp(item.session_id, item.epoch, item.base_len)
        try:
            check_length("base_len", stamp.base_len)
            records.append(decode(item, stamp))
        except SpecdecError as error:
            records.append(Failed(*stamp, error))
    return records


def encode_open(message: Open) -> types_pb2.Open:
    """The message without its stamp."""
    return types_pb2.Open(
        prompt_len=message.prompt_len,
        params=encode_sampling(message.params),
        rule=encode_rule(message.rule),
        noise=encode_noise(message.noise),
    )


def decode_open(message: types_pb2.Open, stamp: Stamp) -> Open:
    """The message under ``stamp``.

    Raises:
        InvalidArgumentError: naming the field and what is allowed.
        ProtocolError: if params, noise or the rule are missing.
    """
    if not (message.HasField("params") and message.HasField("noise")):
        raise ProtocolError("open: needs params and noise")
    return Open(
        session_id=stamp.session_id,
        epoch=stamp.epoch,
        prompt_len=check_length("open.prompt_len", message.prompt_len, low=1),
        params=decode_sampling(message.params),
        rule=decode_rule(message.rule),
        noise=decode_noise(message.noise),
    )
