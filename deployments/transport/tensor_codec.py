"""Tensors on the wire: a msgpack array [dtype, shape, data], little-endian, row-major.

Nothing is trusted: every bound is checked before anything larger than the received bytes is allocated, and nothing is unpickled.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeGuard, TypeVar

import msgpack

from specdec_core.errors import InvalidArgumentError, ProtocolError

Value = TypeVar("Value", int, float)


class Dtype(IntEnum):
    """Element types; the numbers are the wire's and never change meaning."""

    FLOAT32 = 1
    INT32 = 2
    FLOAT16 = 3
    BFLOAT16 = 4
    INT64 = 5
    UINT8 = 6

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _ITEMSIZE[self]


_ITEMSIZE = {
    Dtype.FLOAT32: 4,
    Dtype.INT32: 4,
    Dtype.FLOAT16: 2,
    Dtype.BFLOAT16: 2,
    Dtype.INT64: 8,
    Dtype.UINT8: 1,
}


@dataclass(frozen=True, slots=True)
class TensorLimits:
    """What a receiver is willing to take."""

    max_bytes: int  # of the packed frame
    max_dims: int
    max_dim: int  # of each dimension


@dataclass(frozen=True, slots=True)
class TensorFrame:
    """A dense tensor as bytes.

    Raises:
        InvalidArgumentError: on construction, if ``data`` is not as long as ``dtype`` and ``shape`` say.
    """

    dtype: Dtype
    shape: tuple[int, ...]
    data: bytes

    def __post_init__(self) -> None:
        if any(size < 0 for size in self.shape):
            raise InvalidArgumentError("shape", f"has a negative dimension: {self.shape}")
        expected = math.prod(self.shape) * self.dtype.itemsize
        if len(self.data) != expected:
            raise InvalidArgumentError("data", f"must be {expected} bytes, got {len(self.data)}")


def pack(frame: TensorFrame) -> bytes:
    """The frame as msgpack."""
    packed: bytes = msgpack.packb((int(frame.dtype), frame.shape, frame.data))
    return packed


def unpack(data: bytes, limits: TensorLimits) -> TensorFrame:
    """The frame in ``data``.

    Raises:
        InvalidArgumentError: if a bound of ``limits`` is exceeded, or the data does not fit the shape.
        ProtocolError: if ``data`` is not a frame at all.
    """
    if len(data) > limits.max_bytes:
        raise InvalidArgumentError(
            "tensor", f"takes at most {limits.max_bytes} bytes, got {len(data)}"
        )
    dtype, shape, payload = _fields(data, limits)
    return TensorFrame(dtype, _checked_shape(shape, limits), payload)


def int32_frame(rows: tuple[tuple[int, ...], ...], width: int) -> TensorFrame:
    """An int32 tensor [len(rows), width]; every row must be ``width`` long and hold int32 values."""
    flat = [value for row in rows for value in row]
    return TensorFrame(Dtype.INT32, (len(rows), width), struct.pack(f"<{len(flat)}i", *flat))


def float32_frame(rows: tuple[tuple[float, ...], ...], width: int) -> TensorFrame:
    """A float32 tensor [len(rows), width]; values are rounded to float32."""
    flat = [value for row in rows for value in row]
    return TensorFrame(Dtype.FLOAT32, (len(rows), width), struct.pack(f"<{len(flat)}f", *flat))


def int32_rows(frame: TensorFrame) -> tuple[tuple[int, ...], ...]:
    """The rows of an int32 matrix.

    Raises:
        InvalidArgumentError: if the frame is no int32 matrix.
    """
    _check_matrix(frame, Dtype.INT32)
    return _rows(frame, struct.unpack(f"<{math.prod(frame.shape)}i", frame.data))


def float32_rows(frame: TensorFrame) -> tuple[tuple[float, ...], ...]:
    """The rows of a float32 matrix.

    Raises:
        InvalidArgumentError: if the frame is no float32 matrix.
    """
    _check_matrix(frame, Dtype.FLOAT32)
    return _rows(frame, struct.unpack(f"<{math.prod(frame.shape)}f", frame.data))


def _fields(data: bytes, limits: TensorLimits) -> tuple[Dtype, tuple[object, ...], bytes]:
    try:
        fields = msgpack.unpackb(
            data,
            use_list=False,
            max_array_len=max(3, limits.max_dims),
            max_bin_len=limits.max_bytes,
            max_str_len=0,
            max_map_len=0,
            max_ext_len=0,
        )
    except (ValueError, msgpack.UnpackException) as error:
        raise ProtocolError("tensor: not a msgpack frame within its bounds") from error
    match fields:
        case (number, tuple(shape), bytes(payload)) if _is_integer(number) and number in _ITEMSIZE:
            return Dtype(number), shape, payload
        case _:
            raise ProtocolError("tensor: must be [dtype, shape, data] of a known dtype")


def _checked_shape(shape: tuple[object, ...], limits: TensorLimits) -> tuple[int, ...]:
    if len(shape) > limits.max_dims:
        raise InvalidArgumentError("shape", f"takes at most {limits.max_dims} dimensions")
    sizes: list[int] = []
    for size in shape:
        if not _is_integer(size) or not 0 <= size <= limits.max_dim:
            raise InvalidArgumentError("shape", f"each must be an integer in [0, {limits.max_dim}]")
        sizes.append(size)
    return tuple(sizes)


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_matrix(frame: TensorFrame, dtype: Dtype) -> None:
    if frame.dtype is not dtype or len(frame.shape) != 2:
        raise InvalidArgumentError(
            "tensor",
            f"must be a matrix of {dtype.name.lower()}, got {frame.dtype.name.lower()} of {len(frame.shape)} dimensions",
        )


def _rows(frame: TensorFrame, flat: tuple[Value, ...]) -> tuple[tuple[Value, ...], ...]:
    height, width = frame.shape
    return tuple(flat[row * width : (row + 1) * width] for row in range(height))
