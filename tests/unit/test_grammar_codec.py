"""Structured output on the wire: what comes in is what went out, and what no record allows is refused by name."""

from __future__ import annotations

import pytest

from deployments.transport.codec_params import decode_sampling, encode_sampling
from specdec_core.errors import InvalidArgumentError
from specdec_core.params import SamplingParams
from specdec_core.structured import Choice, Grammar, JsonSchema, Regex, StructuredOutput
from specdec_proto.v1 import types_pb2


@pytest.mark.parametrize(
    "demand",
    [JsonSchema('{"type": "null"}'), Regex("a|b"), Grammar('start: "a"'), Choice(("a", "b")), None],
)
def test_a_demand_survives_the_wire(demand: StructuredOutput | None) -> None:
    params = SamplingParams(structured=demand)
    assert decode_sampling(encode_sampling(params)) == params


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (types_pb2.SamplingParams(json_schema="{"), "structured.json_schema"),
        (types_pb2.SamplingParams(regex=""), "structured.regex"),
        (types_pb2.SamplingParams(grammar="a" * 65537), "structured.grammar"),
        (types_pb2.SamplingParams(choice=types_pb2.Choice()), "structured.choice"),
    ],
)
def test_a_demand_out_of_bounds_is_refused(message: types_pb2.SamplingParams, field: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        decode_sampling(message)
    assert caught.value.field == field
