"""``specdec verify-exactness`` as a user runs it: in process on tiny models, and against a server over gRPC."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from deployments.cli.main import main
from deployments.exactness.remote import RemoteServer
from deployments.transport.api_records import GenerationCall, TextPrompt
from deployments.transport.codec_request import decode_generate_request
from deployments.transport.codec_response import encode_event, encode_model_info
from specdec_core.errors import OverloadedError
from specdec_core.params import GenerationParams
from specdec_core.types import AcceptanceRule
from specdec_proto.v1 import generation_pb2, generation_pb2_grpc
from tests.support.chain_server import ChainServer, full_target
from tests.support.command_line import (
    ConfigWriter,
    build_models,
    signal_handlers_restored,
    the_error,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RULES = [rule.value for rule in AcceptanceRule]
QUICK = ("--samples", "60", "--tokens", "3", "--candidates", "8")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def config(models: Path, tmp_path: Path) -> ConfigWriter:
    return ConfigWriter(models, tmp_path)


@pytest.fixture(autouse=True)
def signal_handlers() -> Iterator[None]:
    with signal_handlers_restored():
        yield


class Servicer(generation_pb2_grpc.GenerationServiceServicer):
    """Serves a chain, and refuses the calls whose number is ``refused``."""

    def __init__(self, chain: ChainServer, refused: int | None = None) -> None:
        self._chain = chain
        self._refused = refused
        self._num_calls = 0

    def GetModel(
        self, request: generation_pb2.GetModelRequest, context: grpc.ServicerContext
    ) -> generation_pb2.GetModelResponse:
        del request, context
        return encode_model_info(self._chain.describe())

    def Generate(
        self, request: generation_pb2.GenerateRequest, context: grpc.ServicerContext
    ) -> Iterator[generation_pb2.GenerateResponse]:
        self._num_calls += 1
        if self._num_calls == self._refused:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no room")
        call = decode_generate_request(request, self._chain.describe().default_speculation)
        for event in self._chain.generate_many([call], at_once=1)[0]:
            yield encode_event(event)

    def Tokenize(
        self, request: generation_pb2.TokenizeRequest, context: grpc.ServicerContext
    ) -> generation_pb2.TokenizeResponse:
        raise NotImplementedError

    def Detokenize(
        self, request: generation_pb2.DetokenizeRequest, context: grpc.ServicerContext
    ) -> generation_pb2.DetokenizeResponse:
        raise NotImplementedError


@contextmanager
def served(chain: ChainServer, refused: int | None = None) -> Iterator[str]:
    """The address of a chain behind the public API."""
    server = grpc.server(ThreadPoolExecutor(4))
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(Servicer(chain, refused), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def report(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(capsys.readouterr().out)
    return parsed


def test_the_engine_in_process_passes_with_a_drafter_that_is_often_wrong(
    config: ConfigWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(
        drafter={"kind": "layer_skip", "num_layers": 2, "kv_tokens": 4096},
        target={"kv_tokens": 4096},
    )

    code = main(["verify-exactness", "--local", "--config", path, "--json", *QUICK])

    found = report(capsys)
    assert [check["detail"] for check in found["checks"] if not check["passed"]] == []
    assert (code, found["passed"]) == (0, True)
    keys = ["name", "rule", "statistic", "p_value", "n", "passed", "detail"]
    assert all(list(check) == keys for check in found["checks"])
    laws = [check for check in found["checks"] if check["p_value"] is not None]
    assert [check["rule"] for check in laws] == RULES
    assert all("level" in check["detail"] and "power" in check["detail"] for check in laws)


def test_a_sound_server_passes_over_grpc(capsys: pytest.CaptureFixture[str]) -> None:
    with served(ChainServer()) as address:
        code = main(["verify-exactness", "--address", address, "--json", *QUICK])

    assert (code, report(capsys)["passed"]) == (0, True)


def test_a_wrong_server_fails_over_grpc_with_a_table_that_says_where(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ["--samples", "1000", "--tokens", "4", "--candidates", "0", "--rule", "ratio"]
    with served(ChainServer(recover=full_target)) as address:
        code = main(["verify-exactness", "--address", address, *options])

    captured = capsys.readouterr()
    assert (code, captured.out) == (1, "")
    (line,) = [line for line in captured.err.splitlines() if "FAILED" in line]
    assert "first-token law" in line
    assert "3 of 4 passed" in captured.err


def test_the_answers_of_a_server_are_in_the_order_of_the_calls() -> None:
    calls = [GenerationCall(TextPrompt("x"), GenerationParams(seed=seed)) for seed in range(40)]

    with served(ChainServer()) as address:
        answers = RemoteServer(address).generate_many(calls, at_once=8)

    assert answers == ChainServer().generate_many(calls, at_once=1)


def test_a_refused_generation_ends_the_check_with_its_reason() -> None:
    calls = [GenerationCall(TextPrompt("x"), GenerationParams(seed=seed)) for seed in range(40)]

    with (
        served(ChainServer(), refused=5) as address,
        pytest.raises(OverloadedError, match="no room"),
    ):
        RemoteServer(address).generate_many(calls, at_once=3)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "--local: give either --local or --address"),
        (["--local", "--address", "127.0.0.1:1"], "--local: give either --local or --address"),
        (["--local", "--temperature", "0"], "temperature: must be above 0"),
        (["--local", "--temperature", "nan"], "temperature: must be in [0, 10]"),
        (["--local", "--top-p", "0"], "top_p: must be in (0, 1]"),
        (["--local", "--candidates", "1"], "candidates: must be 0, or at least 2"),
        (["--local", "--samples", "10"], "Invalid value for '--samples'"),
        (["--local", "--alpha", "0"], "Invalid value for '--alpha'"),
        (["--local", "--rule", "luck"], "Invalid value for '--rule'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    options: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["verify-exactness", *options])

    assert code == 2
    assert the_error(capsys).startswith(says)


def test_a_configuration_without_a_drafter_is_a_mistake(
    config: ConfigWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(drafter={"kind": "none"})

    code = main(["verify-exactness", "--local", "--config", path])

    assert code == 2
    assert the_error(capsys).endswith("without a drafter there is nothing to verify")
