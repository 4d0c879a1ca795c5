"""The distributed path is the in-process one, token for token, and answers whatever it refuses."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any

import pytest

from deployments.config import parse_config
from deployments.transport.api_records import (
    Finished,
    GenerationCall,
    Produced,
    Started,
    TextPrompt,
    TokenPrompt,
)
from specdec_core.errors import InvalidArgumentError
from specdec_core.params import GenerationParams, SamplingParams, SpeculationParams
from specdec_core.stats import FallbackReason
from specdec_core.types import AcceptanceRule

if TYPE_CHECKING:
    from collections.abc import Iterable

    from deployments.transport.api_records import GenerationEvent
    from tests.ray.conftest import Cluster

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]

OPTIONS = (
    SamplingParams(temperature=0.0, max_tokens=24),
    SamplingParams(temperature=0.9, top_p=0.9, max_tokens=24, ignore_eos=True),
    SamplingParams(
        temperature=0.8, top_k=12, repetition_penalty=1.3, presence_penalty=0.5, max_tokens=20
    ),
    SamplingParams(
        temperature=1.0,
        min_p=0.02,
        logit_bias=((7, 2.0),),
        bad_words=((9,), (10, 11)),
        max_tokens=20,
    ),
)


def calls() -> list[GenerationCall]:
    """Sixteen requests, each with options of its own."""
    return [
        GenerationCall(
            TextPrompt("the quick brown fox"[: 4 + number]),
            GenerationParams(
                OPTIONS[number % 4],
                SpeculationParams(number % 5, list(AcceptanceRule)[number // 4 % 3]),
                number,
            ),
        )
        for number in range(16)
    ]


def told(events: Iterable[GenerationEvent]) -> tuple[list[int], str, Finished]:
    tokens: list[int] = []
    text = ""
    finished: Finished | None = None
    for event in events:
        match event:
            case Produced():
                assert event.first_index == len(tokens)
                tokens += [each.token for each in event.tokens]
                text += event.text
            case Finished():
                finished = event
            case Started():
                assert not tokens
    assert finished is not None
    return tokens, text, finished


@pytest.fixture(scope="module")
def in_process(tiny_config: dict[str, Any]) -> list[tuple[list[int], str, Finished]]:
    from deployments.local import LocalServer  # noqa: PLC0415 - next to the cluster, not at collection

    server = LocalServer(parse_config(tiny_config), lambda _line: None)
    return [told(server.generate(call)) for call in calls()]


def depends_on_timing(call: GenerationCall) -> bool:
    """Whether the tokens, though never their law, depend on when the drafter was open: the other rules promise the same text."""
    speculation = call.params.speculation
    return (
        speculation.rule.tests_draft_law
        and speculation.max_draft_tokens > 0
        and not call.params.sampling.is_greedy
    )


def generated(cluster: Cluster, call: GenerationCall) -> tuple[list[int], str, Finished]:
    """The generation; one that depends on timing is begun again until its drafter was open from the first round on."""
    for _ in range(30):
        outcome = told(cluster.client.generate(call))
        if not (depends_on_timing(call) and outcome[2].speculation.fallbacks):
            return outcome
    raise AssertionError("the drafter was late 30 times")


def test_the_cluster_generates_what_one_process_does(
    cluster: Cluster, in_process: list[tuple[list[int], str, Finished]]
) -> None:
    for call, (tokens, text, finished) in zip(calls(), in_process, strict=True):
        got_tokens, got_text, got_finished = generated(cluster, call)
        assert (got_tokens, got_text, got_finished.finish_reason) == (
            tokens,
            text,
            finished.finish_reason,
        )
        assert got_finished.completion_tokens == finished.completion_tokens == len(tokens)


def test_sixteen_generations_at_once_are_each_as_if_alone(
    cluster: Cluster, in_process: list[tuple[list[int], str, Finished]]
) -> None:
    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(lambda call: generated(cluster, call), calls()))
    assert [tokens for tokens, _, _ in together] == [tokens for tokens, _, _ in in_process]


def test_the_drafter_is_really_used(cluster: Cluster) -> None:
    params = GenerationParams(OPTIONS[0], SpeculationParams(3), 1)
    _, _, finished = told(
        cluster.client.generate(GenerationCall(TextPrompt("hello there"), params))
    )
    assert finished.speculation.num_draft_tokens > 0
    # The first rounds may pass while the drafter is being opened.
    assert dict(finished.speculation.fallbacks).keys() <= {FallbackReason.DRAFTER_UNAVAILABLE}


def test_a_client_that_goes_away_leaves_room_for_others(cluster: Cluster) -> None:
    """Far more generations are begun and dropped than a target has sessions; each still gets a place."""
    long = GenerationParams(SamplingParams(max_tokens=60, ignore_eos=True))
    for _ in range(cluster.config.target.max_sessions + 16):
        events = cluster.client.generate(GenerationCall(TextPrompt("hi"), long))
        assert isinstance(next(iter(events)), Started)
        events.close()
    tokens, _, _ = told(cluster.client.generate(calls()[0]))
    assert tokens


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (GenerationCall(TextPrompt("x" * 200), GenerationParams()), "prompt"),
        (GenerationCall(TokenPrompt((1, 64)), GenerationParams()), "prompt"),
        (
            GenerationCall(TextPrompt("x"), GenerationParams(speculation=SpeculationParams(17))),
            "max_draft_tokens",
        ),
        (
            GenerationCall(TextPrompt("x"), GenerationParams(SamplingParams(stop_token_ids=(99,)))),
            "stop_token_ids",
        ),
    ],
)
def test_a_refused_request_is_told_which_field_is_wrong(
    cluster: Cluster, call: GenerationCall, field: str
) -> None:
    began = time.monotonic()
    with pytest.raises(InvalidArgumentError) as refusal:
        told(cluster.client.generate(call))
    assert refusal.value.field == field
    assert "Traceback" not in str(refusal.value)
    assert time.monotonic() - began < 30


def test_the_model_is_described_over_grpc_and_http(cluster: Cluster) -> None:
    info = cluster.client.describe()
    assert (info.vocab_size, info.max_context, info.drafter) == (64, 96, "layer_skip")
    assert json.loads(fetched(cluster, "/"))["vocab_size"] == 64
    assert fetched(cluster, "/-/healthz") == "success"


def fetched(cluster: Cluster, path: str) -> str:
    connection = HTTPConnection(cluster.http, timeout=30)
    connection.request("GET", path)
    body = connection.getresponse().read().decode()
    connection.close()
    return body
