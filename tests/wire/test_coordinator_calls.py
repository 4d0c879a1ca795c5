"""The coordinator's methods as Serve calls them: what they stream, and that every error leaves as a status and one line."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from grpc import StatusCode

from deployments.assembly import TargetText
from deployments.config import parse_config
from deployments.coordinator.generations import Generations, Identifiers
from deployments.coordinator.service import Coordinator
from deployments.coordinator.shadow import ShadowCheck, ShadowCounters, ShadowSettings
from deployments.locator import TargetFacts
from specdec_core.errors import OverloadedError, PeerUnavailableError, SpecdecError
from specdec_core.models.tokenizer import Tokenizer, load_tokenizer
from specdec_core.structured import NO_GRAMMARS
from specdec_proto.v1 import generation_pb2, types_pb2
from tests.support.echo_role import eventually
from tests.support.listening import good_drafter
from tests.support.table_model import TableModel
from tests.support.tiny_models import save_tiny_tokenizer
from tests.support.wire_cluster import WireCluster, drafter_role, target_role, wire_cluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

VOCAB_SIZE = 52
EOS = 1


@dataclass
class FakeContext:
    """What Serve's call context keeps."""

    code: StatusCode | None = None
    details: str | None = None

    def set_code(self, code: StatusCode) -> None:
        self.code = code

    def set_details(self, details: str) -> None:
        self.details = details


class Count:
    def inc(self) -> None:
        raise AssertionError("nothing is checked here")


@dataclass
class Served:
    cluster: WireCluster
    coordinator: Coordinator
    generations: Generations
    context: FakeContext = field(default_factory=FakeContext)

    async def generate(
        self, request: generation_pb2.GenerateRequest
    ) -> list[generation_pb2.GenerateResponse]:
        return [each async for each in self.coordinator.Generate(request, self.context)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    save_tiny_tokenizer(folder)
    return load_tokenizer(folder)


@pytest.fixture
async def served(tokenizer: Tokenizer) -> AsyncIterator[Served]:
    model = TableModel(1, vocab_size=VOCAB_SIZE, max_context=64)
    async with wire_cluster(target_role(model), drafter_role(good_drafter())) as cluster:
        cluster.targets.facts = TargetFacts("table", VOCAB_SIZE, 64, (EOS,))
        config = parse_config(
            {
                "coordinator": {"max_sessions": 2},
                "drafter": {"kind": "ngram", "max_draft_tokens": 8},
            }
        )
        identifiers = Identifiers(iter("abcdefgh").__next__, lambda bits: 2**bits - 1)
        settings = ShadowSettings(
            0.0, 1, identifiers.new_session_id, identifiers.random_bits, float
        )
        generations = Generations(
            config,
            TargetText(tokenizer, NO_GRAMMARS),
            targets=cluster.targets,
            peers=cluster.peers,
            identifiers=identifiers,
            shadow=ShadowCheck(cluster.peers, settings, ShadowCounters(Count(), Count(), Count())),
        )
        coordinator = Coordinator.__new__(Coordinator)
        coordinator._generations = generations
        yield Served(cluster, coordinator, generations)


def request(text: str = "hello", **options: float) -> generation_pb2.GenerateRequest:
    sampling = types_pb2.SamplingParams(max_tokens=12, ignore_eos=True)
    for name, value in options.items():
        setattr(sampling, name, value)
    return generation_pb2.GenerateRequest(text=text, seed=7, sampling=sampling)


async def test_a_generation_is_told_in_order_with_text_tokens_and_usage(
    served: Served, tokenizer: Tokenizer
) -> None:
    responses = await served.generate(request())

    kinds = [each.WhichOneof("event") for each in responses]
    ids = [token for each in responses for token in each.tokens.token_ids]
    firsts = [each.tokens.first_index for each in responses[1:-1]]
    assert kinds == ["started", *["tokens"] * (len(kinds) - 2), "finished"]
    assert (responses[0].started.session_id, responses[0].started.seed) == ("a", 7)
    assert firsts[0] == 0
    assert firsts == sorted(firsts)
    assert "".join(each.tokens.text for each in responses) == tokenizer.decode(ids)
    usage = responses[-1].finished.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (5, 12)
    assert (served.context.code, served.generations.num_sessions) == (None, 0)
    await eventually(served.cluster.is_idle)


async def test_a_request_without_a_seed_is_told_the_one_that_was_drawn(served: Served) -> None:
    unseeded = request()
    unseeded.ClearField("seed")

    responses = await served.generate(unseeded)
    unseeded.seed = 2**64 - 1
    repeated = await served.generate(unseeded)

    assert responses[0].started.seed == 2**64 - 1
    assert responses[1:-1] == repeated[1:-1]


@pytest.mark.parametrize(
    ("bad", "begins"),
    [
        (request(""), "prompt: must be 1 to 4194304 characters"),
        (generation_pb2.GenerateRequest(), "prompt: is missing"),
        (request("a" * 64), "prompt: has 64 tokens; at most 63 fit a context of 64"),
        (request(max_tokens=0), "max_tokens: must be an integer in [1, 1048576]"),
        (request(temperature=float("nan")), "temperature: must be in [0, 10], got nan"),
        (request(top_p=0.0), "top_p: must be in (0, 1]"),
        (generation_pb2.GenerateRequest(text="a", max_draft_tokens=9), "max_draft_tokens: "),
        (generation_pb2.GenerateRequest(text="a", max_draft_tokens=33), "max_draft_tokens: "),
        (
            generation_pb2.GenerateRequest(token_ids=types_pb2.TokenIds(ids=[52])),
            "prompt: token id 52 is outside the vocabulary of 52",
        ),
        (
            generation_pb2.GenerateRequest(text="a", bad_words_text=[""]),
            "bad_words_text: must be 1 to 256 characters",
        ),
    ],
)
async def test_a_bad_request_is_refused_by_the_name_of_its_field(
    bad: generation_pb2.GenerateRequest, begins: str, served: Served
) -> None:
    with pytest.raises(SpecdecError):
        await served.generate(bad)

    assert served.context.code is StatusCode.INVALID_ARGUMENT
    assert served.context.details is not None
    assert served.context.details.startswith(begins)
    assert "\n" not in served.context.details
    assert served.generations.num_sessions == 0


async def test_more_generations_than_allowed_are_refused_until_one_is_over(served: Served) -> None:
    async with (
        aclosing(served.coordinator.Generate(request(), FakeContext())) as first,
        aclosing(served.coordinator.Generate(request(), FakeContext())) as second,
    ):
        await anext(first)
        await anext(second)
        with pytest.raises(OverloadedError):
            await served.generate(request())
        refused = (served.context.code, served.context.details)

    await served.generate(request())

    assert refused == (StatusCode.RESOURCE_EXHAUSTED, "2 of 2 sessions are open")


async def test_a_client_that_goes_away_frees_its_session(served: Served) -> None:
    stream = served.coordinator.Generate(request(max_tokens=50), served.context)
    await anext(stream)
    await anext(stream)
    assert served.generations.num_sessions == 1

    await stream.aclose()

    assert served.generations.num_sessions == 0
    await eventually(served.cluster.is_idle)


async def test_without_a_target_the_client_may_try_again(served: Served) -> None:
    served.cluster.targets.address = None

    with pytest.raises(PeerUnavailableError):
        await served.generate(request())

    assert (served.context.code, served.context.details) == (
        StatusCode.UNAVAILABLE,
        "there is no replica",
    )


async def test_a_bug_is_logged_and_tells_the_client_its_kind_alone(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_self: Tokenizer, _text: str) -> None:
        raise RuntimeError("a secret\nof two lines")

    monkeypatch.setattr(Tokenizer, "encode", broken)

    with pytest.raises(RuntimeError):
        await served.generate(request())

    assert (served.context.code, served.context.details) == (
        StatusCode.INTERNAL,
        "internal error (RuntimeError)",
    )
    assert "a secret" in caplog.text


async def test_text_survives_tokenizing_and_back(served: Served) -> None:
    tokenized = await served.coordinator.Tokenize(
        generation_pb2.TokenizeRequest(text="hello, world!"), served.context
    )
    back = await served.coordinator.Detokenize(
        generation_pb2.DetokenizeRequest(token_ids=tokenized.token_ids), served.context
    )

    assert len(tokenized.token_ids) == 13
    assert back.text == "hello, world!"


async def test_a_chat_is_tokenized_with_the_models_template(served: Served) -> None:
    chat = generation_pb2.Chat(messages=[generation_pb2.ChatMessage(role="user", content="hi")])

    tokenized = await served.coordinator.Tokenize(
        generation_pb2.TokenizeRequest(chat=chat), served.context
    )
    back = await served.coordinator.Detokenize(
        generation_pb2.DetokenizeRequest(token_ids=tokenized.token_ids), served.context
    )

    assert back.text == "<user>hi\n<assistant>"


async def test_the_model_is_described(served: Served) -> None:
    info = await served.coordinator.GetModel(generation_pb2.GetModelRequest(), served.context)

    assert (info.name, info.vocab_size, info.max_context) == ("table", 52, 64)
    assert (info.drafter, info.max_draft_tokens, info.default_draft_tokens) == ("ngram", 8, 3)
    assert info.has_chat_template
