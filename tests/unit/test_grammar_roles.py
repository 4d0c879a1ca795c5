"""Structure at the roles: refused when a session opens, rebuilt after a failure, and never a neighbour's trouble."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from specdec_core.drafters.base import DraftContext
from specdec_core.drafters.lm import LmDrafter
from specdec_core.errors import InvalidArgumentError, ProtocolError
from specdec_core.messages import Failed, Verified
from specdec_core.models.grammar import load_grammars
from specdec_core.params import GenerationParams, SamplingParams
from specdec_core.roles.target import TargetRole
from specdec_core.session.request import prepare
from specdec_core.structured import Choice, Regex
from specdec_core.types import AcceptanceRule, NoiseKey
from tests.support.generation import served
from tests.support.structures import EOS, tiny_bpe
from tests.support.table_model import TableModel
from tests.support.target_role import PROMPT, draws, extend, failure, opened

if TYPE_CHECKING:
    from specdec_core.messages import RoleReply

TOKENIZER = tiny_bpe()
GRAMMARS = load_grammars(TOKENIZER, (EOS,))
B, E, T, A = (TOKENIZER.encode(letter)[0] for letter in "beta")
BETA = SamplingParams(temperature=0.0, structured=Choice(("be", "beta")), stop_token_ids=(EOS,))
REFUSED = replace(BETA, structured=Regex("(a"))


def target() -> tuple[TargetRole, TableModel]:
    model = TableModel(3, vocab_size=TOKENIZER.vocab_size, eos=(EOS,))
    return TargetRole(model, max_sessions=8, token_budget=64, grammars=GRAMMARS), model


def test_every_row_of_a_draft_draws_what_its_prefix_allows() -> None:
    role, _ = target()
    role.submit(opened("s", params=BETA))
    role.submit(extend("s", 0, PROMPT, (B, E, T)))

    first, second, third, fourth = draws(role.step()[0])

    assert second == E
    assert third in {EOS, T}
    assert fourth == A
    assert TOKENIZER.decode([first]) in {"b"}


def test_a_reopened_session_answers_as_one_that_never_failed() -> None:
    steady, _ = target()
    steady.submit(opened("s", params=BETA))
    steady.submit(extend("s", 0, PROMPT, (B, T, A)))
    steady.step()
    steady.submit(extend("s", 3, (B, E), (T, T)))
    expected = draws(steady.step()[0])

    failed_over, _ = target()
    failed_over.submit(opened("s", epoch=2, params=BETA))
    failed_over.submit(extend("s", 0, (*PROMPT, B, E), (T, T), epoch=2))

    assert draws(failed_over.step()[0]) == expected


def test_a_repeated_extend_gives_the_same_answer() -> None:
    role, _ = target()
    role.submit(opened("s", params=BETA))
    role.submit(extend("s", 0, PROMPT, (B, E, T)))
    first = role.step()
    role.submit(extend("s", 0, PROMPT, (B, E, T)))
    assert role.step() == first


def test_a_demand_that_cannot_be_met_is_refused_and_holds_no_memory() -> None:
    role, model = target()
    role.submit(opened("s", params=REFUSED))
    error = failure(role.step())
    assert isinstance(error, InvalidArgumentError)
    assert error.field == "structured.regex"
    assert (role.num_sessions, model.live) == (0, set())


def test_committed_tokens_that_break_the_structure_fail_their_session_alone() -> None:
    role, _ = target()
    for name in ("good", "bad"):
        role.submit(opened(name, params=BETA))
    role.submit(extend("good", 0, (*PROMPT, B)))
    role.submit(extend("bad", 0, (*PROMPT, A)))

    replies: dict[str, RoleReply] = {}
    while role.has_work:
        replies |= {reply.session_id: reply for reply in role.step()}

    assert isinstance(replies["good"], Verified)
    assert isinstance(replies["bad"], Failed)
    assert isinstance(replies["bad"].error, ProtocolError)


def test_an_end_drafted_too_early_for_min_tokens_does_no_harm() -> None:
    role, _ = target()
    role.submit(opened("s", params=replace(BETA, min_tokens=4, max_tokens=8)))
    role.submit(extend("s", 0, PROMPT, (B, E, EOS, EOS)))
    assert draws(role.step()[0])[2] == T


def test_a_bad_demand_is_refused_before_a_session_begins() -> None:
    model = served(target()[1], grammars=GRAMMARS)
    for params, field in ((BETA, None), (REFUSED, "structured.regex")):
        wanted = GenerationParams(params)
        if field is None:
            assert prepare("s", PROMPT, wanted, model=model, noise=NoiseKey(1)).params == params
            continue
        with pytest.raises(InvalidArgumentError) as caught:
            prepare("s", PROMPT, wanted, model=model, noise=NoiseKey(1))
        assert caught.value.field == field


def context(params: SamplingParams, tokens: tuple[int, ...] = PROMPT) -> DraftContext:
    return DraftContext("s", tokens, len(PROMPT), 6, params, AcceptanceRule.COUPLED, NoiseKey(7))


def test_a_draft_keeps_to_the_structure_and_stops_at_its_end() -> None:
    drafter = LmDrafter(target()[1], vocab_size=TOKENIZER.vocab_size, grammars=GRAMMARS)
    for tokens in (PROMPT, (*PROMPT, B), PROMPT):  # the last rolls back
        (draft,) = drafter.propose([context(BETA, tokens)])
        *text, end = (*tokens[len(PROMPT) :], *draft.tokens)
        assert TOKENIZER.decode(text) in {"be", "beta"}
        assert end == EOS


def test_a_drafter_that_cannot_meet_the_demand_holds_no_memory() -> None:
    model = target()[1]
    drafter = LmDrafter(model, vocab_size=TOKENIZER.vocab_size, grammars=GRAMMARS)
    with pytest.raises(InvalidArgumentError):
        drafter.propose([context(REFUSED)])
    assert model.live == set()
