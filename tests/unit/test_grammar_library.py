"""The grammar library behind its contract: what may follow, what was taken back, and what is refused."""

from __future__ import annotations

import random
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_core.errors import InvalidArgumentError, InvariantError
from specdec_core.models.grammar import load_grammars
from specdec_core.structured import Choice, Grammar, JsonSchema, Regex
from tests.support.structures import EOS, PAD, STRUCTURES, allowed_by, tiny_bpe

if TYPE_CHECKING:
    from specdec_core.structured import GrammarState, StructuredOutput

TOKENIZER = tiny_bpe()
GRAMMARS = load_grammars(TOKENIZER, (EOS,))


def state_behind(demand: StructuredOutput, tokens: list[int]) -> GrammarState:
    state = GRAMMARS.compile(demand)
    assert all(state.advance(token) for token in tokens)
    return state


@pytest.mark.parametrize("name", STRUCTURES)
def test_the_mask_is_what_brute_force_allows(name: str) -> None:
    structured, rng = STRUCTURES[name], random.Random(name)
    for _ in range(20):
        state, output = GRAMMARS.compile(structured.demand), list[int]()
        while EOS not in output:
            allowed = allowed_by(state.mask())
            assert allowed == structured.may_follow(TOKENIZER.decode(output), TOKENIZER)
            output.append(rng.choice(allowed))
            assert state.advance(output[-1])


@given(st.sampled_from(sorted(STRUCTURES)), st.data())
def test_what_is_rolled_back_leaves_no_trace(name: str, data: st.DataObject) -> None:
    demand = STRUCTURES[name].demand
    state = GRAMMARS.compile(demand)
    taken: list[int] = []
    for _ in range(data.draw(st.integers(0, 12))):
        is_rollback = bool(taken) and data.draw(st.booleans())
        if is_rollback:
            count = data.draw(st.integers(1, len(taken)))
            state.rollback(count)
            del taken[-count:]
        else:
            anything = st.integers(0, TOKENIZER.vocab_size + 10)
            token = data.draw(st.sampled_from(allowed_by(state.mask())) | anything)
            may_follow = token in allowed_by(state.mask())
            assert state.advance(token) is may_follow
            taken += [token] * may_follow
        assert state.mask() == state_behind(demand, taken).mask()


def test_more_than_was_taken_cannot_be_rolled_back() -> None:
    state = state_behind(Choice(("ab",)), list(TOKENIZER.encode("ab")))
    with pytest.raises(InvariantError):
        state.rollback(3)


def test_behind_the_end_only_the_end_may_follow() -> None:
    state = state_behind(Choice(("no", "nope")), [*TOKENIZER.encode("no"), EOS])
    assert allowed_by(state.mask()) == (EOS,)
    assert not state.advance(TOKENIZER.encode("p")[0])
    assert state.advance(EOS)


def test_special_tokens_and_ids_beyond_the_tokenizer_never_follow() -> None:
    state = GRAMMARS.compile(Regex("(.|\n)*"))
    for token in (PAD, TOKENIZER.vocab_size, 2**31 - 1):
        assert not state.advance(token)
    assert len(allowed_by(state.mask())) == TOKENIZER.vocab_size - 1


def test_states_of_one_demand_are_independent() -> None:
    demand = Choice(("ab", "ba"))
    first, second = GRAMMARS.compile(demand), GRAMMARS.compile(demand)
    before = second.mask()
    first.advance(TOKENIZER.encode("a")[0])
    assert second.mask() == before != first.mask()


@pytest.mark.parametrize(
    ("demand", "says"),
    [
        (JsonSchema('{"type": "objekt"}'), r"structured\.json_schema: is refused: .*objekt"),
        (JsonSchema("false"), r"structured\.json_schema: .*[Uu]nsatisfiable"),
        (JsonSchema('{"$ref": "http://example.com/s"}'), r"structured\.json_schema: .*retriev"),
        (JsonSchema('{"const": NaN}'), r"structured\.json_schema: .*JSON"),
        (Regex("(a"), r"structured\.regex: .*unclosed group"),
        (Regex("a(?=b)"), r"structured\.regex: .*look-around"),
        (Regex("\u00e9\U0001f600{100000}"), r"structured\.regex: is refused"),
        (Grammar('begin: "a"'), r"structured\.grammar: .*no start rule"),
        (Grammar("start: start"), r"structured\.grammar: is refused"),
    ],
)
def test_a_demand_the_library_refuses_is_named(demand: StructuredOutput, says: str) -> None:
    with pytest.raises(InvalidArgumentError, match=says) as caught:
        GRAMMARS.compile(demand)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "demand", [Regex("((a{1000}){1000}){1000}"), Regex("(a|b)*a(a|b){200}"), Regex("(a?){500}a")]
)
def test_a_hostile_demand_costs_little(demand: StructuredOutput) -> None:
    start = time.perf_counter()
    with suppress(InvalidArgumentError):
        state = GRAMMARS.compile(demand)
        for _ in range(20):
            state.advance(allowed_by(state.mask())[-1])
    assert time.perf_counter() - start < 5.0


def test_a_model_without_an_end_cannot_enforce_structure() -> None:
    with pytest.raises(InvalidArgumentError, match="no end-of-sequence token"):
        load_grammars(TOKENIZER, ()).compile(Regex("a"))
