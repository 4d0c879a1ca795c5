"""Parameters: every bound of every field, refused with the field's name."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest

from specdec_core.errors import ErrorCode, InvalidArgumentError
from specdec_core.params import (
    GenerationParams,
    SamplingParams,
    SpeculationParams,
    check_prompt,
    check_token_ids,
)

if TYPE_CHECKING:
    from collections.abc import Callable

NAN, INF = math.nan, math.inf

REFUSED: list[tuple[str, list[object]]] = [
    ("temperature", [-0.1, 10.1, NAN, INF, -INF, True, "1", None, 10**400]),
    ("top_k", [-1, 65536 * 16 + 1, 1.0, NAN, True]),
    ("top_p", [0.0, -0.5, 1.01, NAN, INF, True]),
    ("min_p", [-0.01, 1.01, NAN, INF, False]),
    ("typical_p", [0.0, -0.5, 1.01, NAN, INF, True]),
    ("logprobs", [-1, 21, 1.0, NAN, True]),
    ("prompt_logprobs", [-1, 21, 1.0, NAN, True]),
    ("repetition_penalty", [0.0, -1.0, 10.1, NAN, INF, True]),
    ("presence_penalty", [-2.1, 2.1, NAN, INF, True]),
    ("frequency_penalty", [-2.1, 2.1, NAN, -INF, True]),
    ("max_tokens", [0, -1, 2**20 + 1, 1.5, True]),
    ("min_tokens", [-1, 257, 1.5, True]),
    ("logit_bias", [((0, 100.1),), ((0, -100.1),), ((0, NAN),), ((0, INF),), ((0, True),)]),
    ("logit_bias", [((-1, 1.0),), ((2**31, 1.0),), ((1.0, 1.0),), ((True, 1.0),)]),
    ("logit_bias", [((0, 1.0),) * 1025]),
    ("bad_words", [((),), ((1,) * 65,), ((-1,),), ((2**31,),), ((1.0,),), ((1,),) * 257]),
    ("allowed_token_ids", [(-1,), (2**31,), (1.0,), (True,), (1,) * 65537]),
    ("stop_token_ids", [(-1,), (2**31,), (1.0,), (True,), (1,) * 65537]),
    ("stop", [("",), ("x" * 257,), ("x",) * 17]),
]
ALLOWED: list[tuple[str, list[object]]] = [
    ("temperature", [0, 0.0, 1e-9, 1, 10.0]),
    ("top_k", [0, 1, 65536 * 16]),
    ("top_p", [1e-9, 1, 1.0]),
    ("min_p", [0.0, 1.0]),
    ("typical_p", [1e-9, 1, 1.0]),
    ("logprobs", [None, 0, 20]),
    ("prompt_logprobs", [None, 0, 20]),
    ("repetition_penalty", [1e-9, 1.0, 10.0]),
    ("presence_penalty", [-2.0, 0, 2.0]),
    ("frequency_penalty", [-2.0, 0, 2.0]),
    ("max_tokens", [1, 2**20]),
    ("min_tokens", [0, 256]),
    ("logit_bias", [(), ((0, -100.0), (2**31 - 1, 100)), ((0, 1.0),) * 1024]),
    ("bad_words", [(), ((1,),), ((1,) * 64,), ((1,),) * 256]),
    ("allowed_token_ids", [(), (0, 2**31 - 1), (1,) * 65536]),
    ("stop_token_ids", [(), (0, 2**31 - 1), (1,) * 65536]),
    ("stop", [(), ("x",), ("x" * 256,), ("x",) * 16]),
]


def cases(table: list[tuple[str, list[object]]]) -> list[tuple[str, object]]:
    return [(name, value) for name, values in table for value in values]


def sampling(name: str, value: object) -> SamplingParams:
    make: Callable[..., SamplingParams] = SamplingParams
    return make(
        **({"max_tokens": 1, "min_tokens": 0} if name == "max_tokens" else {}) | {name: value}
    )


@pytest.mark.parametrize(("name", "value"), cases(REFUSED))
def test_a_value_out_of_bounds_is_refused_by_the_name_of_its_field(
    name: str, value: object
) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        sampling(name, value)

    assert (raised.value.field, raised.value.code) == (name, ErrorCode.INVALID_ARGUMENT)
    assert str(raised.value).startswith(f"{name}: ")


@pytest.mark.parametrize(("name", "value"), cases(ALLOWED))
def test_a_value_at_its_bound_is_kept(name: str, value: object) -> None:
    params = sampling(name, value)

    assert asdict(params)[name] == value


def test_every_field_that_has_bounds_is_tested_on_both_sides() -> None:
    unbounded = {"include_stop_str_in_output", "ignore_eos", "skip_special_tokens"}
    bounded_by_its_records = {"structured"}  # see test_grammar_records.py
    fields = set(SamplingParams.__dataclass_fields__) - unbounded - bounded_by_its_records
    assert {name for name, _ in REFUSED} == {name for name, _ in ALLOWED} == fields


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SamplingParams(top_p=0.0), "top_p: must be in (0, 1], got 0.0"),
        (lambda: SamplingParams(min_p=2.0), "min_p: must be in [0, 1], got 2.0"),
        (lambda: SamplingParams(top_k=-1), "top_k: must be an integer in [0, 1048576], got -1"),
        (lambda: SamplingParams(stop=("x",) * 17), "stop: takes at most 16 entries, got 17"),
        (lambda: SamplingParams(stop=("",)), "stop: each must be 1 to 256 characters, got 0"),
        (lambda: SamplingParams(bad_words=((),)), "bad_words: each must be 1 to 64 tokens, got 0"),
        (
            lambda: SamplingParams(min_tokens=9, max_tokens=8),
            "min_tokens: must be an integer in [0, 8], got 9",
        ),
    ],
)
def test_the_message_says_what_is_allowed(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        make()

    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("temperature", "is_greedy"), [(0.0, True), (9.9e-6, True), (1e-5, False), (1.0, False)]
)
def test_a_temperature_close_to_zero_is_greedy(temperature: float, is_greedy: bool) -> None:
    assert SamplingParams(temperature=temperature).is_greedy is is_greedy


def test_the_models_end_of_sequence_joins_the_stop_tokens_in_order() -> None:
    params = SamplingParams(stop_token_ids=(9, 3))

    assert params.with_eos((5, 3)).stop_token_ids == (3, 5, 9)


def test_an_ignored_end_of_sequence_stops_nothing() -> None:
    params = SamplingParams(stop_token_ids=(9,), ignore_eos=True)

    assert params.with_eos((5,)) is params


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("logit_bias", ((3, 1.0), (12, 1.0))),
        ("bad_words", ((3, 12), (4,))),
        ("allowed_token_ids", (3, 12)),
        ("stop_token_ids", (12,)),
    ],
)
def test_token_ids_the_target_lacks_are_refused_by_field(name: str, value: object) -> None:
    params = sampling(name, value)

    params.check_vocabulary(13)
    with pytest.raises(InvalidArgumentError, match=f"{name}: token id 12 is outside .* of 12"):
        params.check_vocabulary(12)


@pytest.mark.parametrize("value", [-1, 33, 1.0, True])
def test_the_draft_length_is_bounded(value: int) -> None:
    with pytest.raises(InvalidArgumentError, match=r"max_draft_tokens: must be .* in \[0, 32\]"):
        SpeculationParams(max_draft_tokens=value)


def test_a_draft_length_at_its_bounds_is_kept() -> None:
    assert [SpeculationParams(count).max_draft_tokens for count in (0, 32)] == [0, 32]


@pytest.mark.parametrize("value", [-1, 2**64, 1.0, True])
def test_the_seed_is_an_unsigned_word(value: int) -> None:
    with pytest.raises(InvalidArgumentError, match="seed: must be an integer"):
        GenerationParams(seed=value)


@pytest.mark.parametrize("seed", [None, 0, 2**64 - 1])
def test_a_seed_at_its_bounds_is_kept(seed: int | None) -> None:
    assert GenerationParams(seed=seed).seed == seed


def test_a_prompt_must_leave_room_for_a_token() -> None:
    check_prompt((1,) * 7, vocab_size=12, max_context=8)
    with pytest.raises(InvalidArgumentError, match="prompt: has 8 tokens; at most 7 fit"):
        check_prompt((1,) * 8, vocab_size=12, max_context=8)


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="prompt: is empty"):
        check_prompt((), vocab_size=12, max_context=8)


@pytest.mark.parametrize("token", [-1, 12])
def test_a_prompt_outside_the_vocabulary_is_refused(token: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"prompt: token id {token} is outside"):
        check_prompt((1, token), vocab_size=12, max_context=8)


def test_token_ids_within_the_vocabulary_pass() -> None:
    check_token_ids("tokens", (0, 11), 12)
