"""From a call to its samples and back: ``n``, ``echo``, prompt log-probabilities, special tokens."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from deployments.config import parse_config
from deployments.local import LocalServer
from deployments.transport.api_records import (
    Finished,
    GenerationCall,
    Produced,
    Prompted,
    Started,
    TextPrompt,
    TokenPrompt,
)
from specdec_core.errors import InvalidArgumentError
from specdec_core.params import (
    GenerationParams,
    SamplingParams,
    SpeculationParams,
    check_prompt_logprobs,
)
from specdec_core.types import AcceptanceRule
from tests.support.tiny_models import SPECIAL_TOKENS, build_tiny_model

if TYPE_CHECKING:
    from collections.abc import Iterable

    from deployments.transport.api_records import GenerationEvent

SAMPLED = SamplingParams(temperature=0.9, max_tokens=12, ignore_eos=True)
GREEDY = replace(SAMPLED, temperature=0.0)
HELLO = TextPrompt("hello there, hello")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> LocalServer:
    folder = tmp_path_factory.mktemp("models") / "target"
    build_tiny_model("llama", folder)
    config = {"target": {"model": str(folder), "kv_tokens": 2048}, "drafter": {"kind": "ngram"}}
    return LocalServer(parse_config(config), lambda _: None)


def call(sampling: SamplingParams = SAMPLED, *, n: int = 1, echo: bool = False) -> GenerationCall:
    speculation = SpeculationParams(3, AcceptanceRule.COUPLED)
    return GenerationCall(HELLO, GenerationParams(sampling, speculation, 5, n, echo))


def produced(events: Iterable[GenerationEvent], index: int = 0) -> tuple[tuple[int, ...], str]:
    """Ids and text of one sample, whose pieces must be in order."""
    ids: list[int] = []
    text = ""
    for event in events:
        if isinstance(event, Produced) and event.sample_index == index:
            assert event.first_index == len(ids)
            ids += [each.token for each in event.tokens]
            text += event.text
    return tuple(ids), text


def test_each_sample_finishes_once_under_its_index_and_started_is_told_once(
    server: LocalServer,
) -> None:
    events = list(server.generate(call(n=4)))

    assert [isinstance(event, Started) for event in events] == [True] + [False] * (len(events) - 1)
    finished = [event for event in events if isinstance(event, Finished)]
    assert sorted(each.sample_index for each in finished) == [0, 1, 2, 3]
    for each in finished:
        assert each.completion_tokens == len(produced(events, each.sample_index)[0]) == 12


def test_a_sample_does_not_depend_on_how_many_are_drawn(server: LocalServer) -> None:
    many = list(server.generate(call(n=8)))
    few = list(server.generate(call(n=3)))
    one = list(server.generate(call()))

    assert len({produced(many, index)[0] for index in range(8)}) == 8
    assert [produced(few, index) for index in range(3)] == [
        produced(many, index) for index in range(3)
    ]
    assert produced(one) == produced(many)


def test_greedy_samples_are_equal(server: LocalServer) -> None:
    events = list(server.generate(call(GREEDY, n=4)))

    assert len({produced(events, index) for index in range(4)}) == 1


def test_leaving_early_frees_every_sample(server: LocalServer) -> None:
    events = server.generate(call(n=16))
    assert isinstance(events, Generator)
    for _ in range(4):
        next(events)
    events.close()

    later = list(server.generate(call(GREEDY)))
    assert len(produced(later)[0]) == 12
    assert {event.sample_index for event in later if isinstance(event, Finished)} == {0}


def test_many_calls_of_many_samples_run_together(server: LocalServer) -> None:
    calls = [call(n=3), call(GREEDY), call(n=2)]

    together = server.generate_many(calls, at_once=4)

    for events, each in zip(together, calls, strict=True):
        alone = list(server.generate(each))
        for index in range(each.params.n):
            assert produced(events, index) == produced(alone, index)


def test_an_echo_comes_before_the_answer(server: LocalServer) -> None:
    started, prompted, *others = server.generate(call(echo=True))

    assert isinstance(started, Started)
    assert isinstance(prompted, Prompted)
    assert prompted.text == HELLO.text
    assert (len(prompted.token_ids), prompted.logprobs) == (started.prompt_tokens, ())
    assert produced(others) == produced(server.generate(call()))


def test_an_echo_carries_the_prompt_logprobs_if_both_are_asked_for(server: LocalServer) -> None:
    params = replace(SAMPLED, prompt_logprobs=2)
    events = list(server.generate(call(params, echo=True, n=3)))

    (prompted,) = [event for event in events if isinstance(event, Prompted)]
    assert prompted.text == HELLO.text
    assert len(prompted.logprobs) == len(prompted.token_ids) - 1
    assert {len(each.top) for each in prompted.logprobs} == {2}
    of_first = [each for each in events if isinstance(each, Produced) and each.sample_index == 0]
    assert events.index(prompted) < events.index(of_first[0])


def test_prompt_logprobs_without_an_echo_name_no_tokens(server: LocalServer) -> None:
    events = server.generate(call(replace(SAMPLED, prompt_logprobs=0)))

    (prompted,) = [event for event in events if isinstance(event, Prompted)]
    assert (prompted.token_ids, prompted.text) == ((), "")
    assert all(each.top == () and each.logprob <= 0 for each in prompted.logprobs)


def test_special_tokens_are_text_where_they_are_not_left_out(server: LocalServer) -> None:
    special = SPECIAL_TOKENS.index("<user>")
    params = replace(GREEDY, logit_bias=((special, 100.0),), max_tokens=3)
    shown = replace(params, skip_special_tokens=False)
    stopped = replace(shown, stop=("r><us",))

    texts = [produced(server.generate(call(each)))[1] for each in (params, shown, stopped)]

    assert texts == ["", "<user><user><user>", "<use"]


def test_an_echo_shows_special_tokens_as_the_answer_does(server: LocalServer) -> None:
    special = SPECIAL_TOKENS.index("<user>")
    prompt = TokenPrompt((special, 10))
    shown = replace(GREEDY, skip_special_tokens=False)
    calls = [replace(call(each, echo=True), prompt=prompt) for each in (GREEDY, shown)]

    texts = [
        event.text
        for each in calls
        for event in server.generate(each)
        if isinstance(event, Prompted)
    ]

    assert texts[1] == f"<user>{texts[0]}"


def test_more_prompt_logprobs_than_a_message_holds_are_refused() -> None:
    check_prompt_logprobs((1,) * 6241, SamplingParams(prompt_logprobs=20))
    with pytest.raises(InvalidArgumentError, match="at most 19 with a prompt of 6242 tokens"):
        check_prompt_logprobs((1,) * 6242, SamplingParams(prompt_logprobs=20))
    with pytest.raises(InvalidArgumentError, match="not to be had with a prompt of 131073"):
        check_prompt_logprobs((1,) * (2**17 + 1), SamplingParams(prompt_logprobs=0))


@pytest.mark.parametrize("rule", AcceptanceRule)
def test_a_transformer_tells_the_same_logprobs_plainly_and_in_drafts(
    rule: AcceptanceRule, server: LocalServer
) -> None:
    sampling = replace(GREEDY, max_tokens=24, logprobs=3)
    told = []
    for gamma in (0, 1, 5):
        params = GenerationParams(sampling, SpeculationParams(gamma, rule), seed=5)
        events = server.generate(GenerationCall(HELLO, params))
        pieces = [event.tokens for event in events if isinstance(event, Produced)]
        told.append([token.logprobs for piece in pieces for token in piece])

    plain, *drafted = told
    for logprobs in drafted:
        for ours, theirs in zip(logprobs, plain, strict=True):
            assert ours is not None
            assert theirs is not None
            assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)
            assert dict(ours.top) == pytest.approx(dict(theirs.top), abs=1e-4)
