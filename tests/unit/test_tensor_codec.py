from __future__ import annotations

import math
import struct

import msgpack
import pytest

from deployments.transport.tensor_codec import (
    Dtype,
    TensorFrame,
    TensorLimits,
    float32_frame,
    float32_rows,
    int32_frame,
    int32_rows,
    pack,
    unpack,
)
from specdec_core.errors import InvalidArgumentError, ProtocolError

LIMITS = TensorLimits(max_bytes=256, max_dims=2, max_dim=8)


def packed(*fields: object) -> bytes:
    data: bytes = msgpack.packb(fields)
    return data


def test_a_frame_is_a_msgpack_array_of_dtype_shape_and_little_endian_bytes() -> None:
    frame = int32_frame(((1, 258), (3, 4)), width=2)

    assert msgpack.unpackb(pack(frame)) == [
        2,
        [2, 2],
        b"\x01\0\0\0\x02\x01\0\0\x03\0\0\0\x04\0\0\0",
    ]


@pytest.mark.parametrize("dtype", Dtype)
def test_every_dtype_survives_the_round_trip(dtype: Dtype) -> None:
    frame = TensorFrame(dtype, (2, 3), bytes(range(6 * dtype.itemsize)))

    assert unpack(pack(frame), LIMITS) == frame


def test_itemsizes_are_those_of_the_element_types() -> None:
    assert {dtype.name: dtype.itemsize for dtype in Dtype} == {
        "FLOAT32": 4,
        "INT32": 4,
        "FLOAT16": 2,
        "BFLOAT16": 2,
        "INT64": 8,
        "UINT8": 1,
    }


def test_rows_come_back_as_they_went() -> None:
    ids = ((0, 2**31 - 1, -(2**31)), (1, 2, 3))
    probs = ((0.5, 0.25), (1.0, 0.0))

    assert int32_rows(unpack(pack(int32_frame(ids, 3)), LIMITS)) == ids
    assert float32_rows(unpack(pack(float32_frame(probs, 2)), LIMITS)) == probs


def test_doubles_are_rounded_to_float32() -> None:
    (row,) = float32_rows(float32_frame(((0.1,),), 1))

    assert row == struct.unpack("<f", struct.pack("<f", 0.1))
    assert row[0] != 0.1
    assert math.isclose(row[0], 0.1, rel_tol=1e-7)


def test_no_rows_are_a_frame_too() -> None:
    frame = int32_frame((), 0)

    assert frame.shape == (0, 0)
    assert int32_rows(unpack(pack(frame), LIMITS)) == ()


@pytest.mark.parametrize(
    ("frame", "field"),
    [
        (packed(1, [2, 2], bytes(15)), "data"),
        (packed(1, [2, 2], bytes(17)), "data"),
        (packed(1, [9, 1], bytes(36)), "shape"),
        (packed(1, [-1, 1], b""), "shape"),
        (packed(1, [True, 1], bytes(4)), "shape"),
        (packed(1, [1.0, 1], bytes(4)), "shape"),
        (packed(1, [1, 1, 1], bytes(4)), "shape"),
        (packed(6, [8, 8], bytes(300)), "tensor"),
    ],
    ids=[
        "short data",
        "long data",
        "large dimension",
        "negative dimension",
        "bool dimension",
        "float dimension",
        "too many dimensions",
        "too many bytes",
    ],
)
def test_a_frame_out_of_bounds_is_an_invalid_argument(frame: bytes, field: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        unpack(frame, LIMITS)

    assert caught.value.field == field


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        packed(1, [1, 1]),
        packed(1, [1, 1], bytes(4), 0),
        packed(1, [1, 1], bytes(4)) + b"\0",
        packed(0, [1, 1], bytes(4)),
        packed(7, [1, 1], bytes(4)),
        packed(True, [1, 1], bytes(4)),
        packed(1.0, [1, 1], bytes(4)),
        packed([], [1, 1], bytes(4)),
        packed(1, 1, bytes(4)),
        packed(1, [1, 1], "text"),
        packed(1, {"a": 1}, bytes(4)),
        packed(1, [1, 1], msgpack.ExtType(5, bytes(4))),
        packed(1, [1, 1], msgpack.Timestamp(5)),
        b"\x91" * 200,
        b"\xdd\xff\xff\xff\xff",
        b"\x93\x01\x92\x01\x01\xc6\xff\xff\xff\xff",
    ],
    ids=[
        "nothing",
        "reserved byte",
        "two fields",
        "four fields",
        "trailing byte",
        "dtype 0",
        "unknown dtype",
        "bool dtype",
        "float dtype",
        "list dtype",
        "scalar shape",
        "text data",
        "map shape",
        "extension",
        "timestamp",
        "deep nesting",
        "array of 4 billion",
        "data of 4 GiB",
    ],
)
def test_what_is_no_frame_breaks_the_protocol(frame: bytes) -> None:
    with pytest.raises(ProtocolError):
        unpack(frame, LIMITS)


@pytest.mark.parametrize(
    "frame",
    [
        TensorFrame(Dtype.FLOAT32, (1, 1), bytes(4)),
        TensorFrame(Dtype.INT32, (1,), bytes(4)),
        TensorFrame(Dtype.INT32, (1, 1, 1), bytes(4)),
    ],
)
def test_only_an_int32_matrix_has_int32_rows(frame: TensorFrame) -> None:
    with pytest.raises(InvalidArgumentError, match="must be a matrix of int32"):
        int32_rows(frame)


def test_a_frame_whose_data_does_not_fit_its_shape_cannot_be_made() -> None:
    with pytest.raises(InvalidArgumentError, match="must be 8 bytes, got 4"):
        TensorFrame(Dtype.INT64, (1,), bytes(4))
    with pytest.raises(InvalidArgumentError, match="negative dimension"):
        TensorFrame(Dtype.UINT8, (-1, -1), bytes(1))
