"""Log-probabilities: of raw logits, in any batch, with ties to the lower id, and of a prompt however it was read."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
import torch

from specdec_core.errors import PeerUnavailableError, ProtocolError
from specdec_core.messages import Open, Verified
from specdec_core.params import SamplingParams
from specdec_core.sampling.logprobs import LogprobRequest, draft_logprobs, token_logprobs
from specdec_core.session.events import Emit, EmitPrompt, OpenTarget, TargetLost, TargetOpened
from specdec_core.types import (
    AcceptanceRule,
    CommittedToken,
    DraftLogprobs,
    Evidence,
    NoiseKey,
    RatioTest,
    TargetDraws,
    TokenKind,
    TokenLogprobs,
)
from tests.support.sessions import Script, first_round, spec_of
from tests.support.table_model import TableModel
from tests.support.target_role import extend, role_on

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdec_core.models.forward import Segment

LONG = tuple(random.Random(1).randrange(12) for _ in range(150))


def law_of(logits: torch.Tensor) -> list[list[float]]:
    return logits.to(torch.float64).log_softmax(dim=-1).tolist()


def random_logits(rows: int, vocab: int) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(3)) * 4


def test_a_token_is_told_with_the_likeliest_in_its_place() -> None:
    logits = random_logits(2, 50)
    law = law_of(logits)

    told = token_logprobs(logits, [7, 49], 3)

    for row, each, token in zip(law, told, (7, 49), strict=True):
        likeliest = sorted(range(50), key=lambda other: -row[other])[:3]
        assert each.logprob == pytest.approx(row[token], abs=1e-5)
        assert [other for other, _ in each.top] == likeliest
        assert [logprob for _, logprob in each.top] == pytest.approx(
            [row[other] for other in likeliest], abs=1e-5
        )


def test_a_token_among_the_likeliest_is_told_the_same_twice() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0]])

    (told,) = token_logprobs(logits, [2], 2)

    assert dict(told.top)[2] == told.logprob


def test_ties_go_to_the_lower_id_at_the_edge_and_inside() -> None:
    logits = torch.tensor([[1.0, 2.0, 1.0, 2.0, 1.0, 1.0]])

    (told,) = token_logprobs(logits, [5], 4)

    assert [token for token, _ in told.top] == [1, 3, 0, 2]


@pytest.mark.parametrize("num_top", [0, 20])
def test_no_alternatives_or_more_than_there_are_tokens(num_top: int) -> None:
    (told,) = token_logprobs(torch.tensor([[1.0, 3.0, 2.0]]), [0], num_top)

    assert [token for token, _ in told.top] == [1, 2, 0][:num_top]


def test_rows_beyond_one_slice_are_told_as_each_alone() -> None:
    logits = random_logits(150, 20)
    tokens = [row % 20 for row in range(150)]

    together = token_logprobs(logits, tokens, 2)

    alone = [
        token_logprobs(logits[row : row + 1], tokens[row : row + 1], 2)[0] for row in range(150)
    ]
    assert together == alone


def test_drafts_of_a_mixed_batch_are_told_as_each_alone() -> None:
    logits = random_logits(6, 20)
    requests = [
        LogprobRequest(range(1, 4), (5, 6), (7, 8, 9), 3),
        LogprobRequest(range(5, 6), (), (4,), 0),
    ]

    first, second = draft_logprobs(logits, requests)

    assert first.draft == tuple(each.logprob for each in token_logprobs(logits[1:3], [5, 6], 0))
    emitted = token_logprobs(logits[1:4], [7, 8, 9], 3)
    assert first.emitted == tuple(each.logprob for each in emitted)
    assert first.top == tuple(each.top for each in emitted)
    assert second == DraftLogprobs((), (token_logprobs(logits[5:], [4], 0)[0].logprob,), ((),))
    assert draft_logprobs(logits, []) == []


def opened(params: SamplingParams, prompt: tuple[int, ...] = LONG) -> Open:
    return Open("s", 1, len(prompt), params, AcceptanceRule.COUPLED, NoiseKey(7))


@pytest.mark.parametrize("token_budget", [1, 7, 64, 512])
def test_a_prompt_is_told_whole_however_it_was_cut(token_budget: int) -> None:
    model = TableModel(1)
    role = role_on(model, token_budget=token_budget)
    role.submit(opened(SamplingParams(temperature=0.0, prompt_logprobs=1)))
    role.submit(extend("s", 0, LONG))

    replies = []
    while role.has_work:
        replies += role.step()

    (reply,) = replies
    assert isinstance(reply, Verified)
    law = [law_of(torch.tensor([model.logits(LONG[:end])]))[0] for end in range(1, len(LONG))]
    told = reply.evidence.prompt_logprobs
    assert [each.logprob for each in told] == pytest.approx(
        [row[token] for row, token in zip(law, LONG[1:], strict=True)], abs=1e-4
    )
    assert [each.top[0][0] for each in told] == [row.index(max(row)) for row in law]


def test_a_step_gives_no_more_rows_for_a_prompt_than_its_budget() -> None:
    rows: list[int] = []

    class CountingModel(TableModel):
        def forward(self, segments: Sequence[Segment]) -> torch.Tensor:
            logits = super().forward(segments)
            rows.append(len(logits))
            return logits

    role = role_on(CountingModel(1), token_budget=16)
    role.submit(opened(SamplingParams(prompt_logprobs=0)))
    role.submit(extend("s", 0, LONG))

    while role.has_work:
        role.step()

    assert max(rows) == 16
    assert sum(rows) == len(LONG)


def test_a_prompt_of_one_token_has_nothing_to_tell() -> None:
    role = role_on(TableModel(1))
    role.submit(opened(SamplingParams(prompt_logprobs=2), (3,)))
    role.submit(extend("s", 0, (3,)))

    (reply,) = role.step()

    assert isinstance(reply, Verified)
    assert reply.evidence.prompt_logprobs == ()


def test_a_repeated_extend_tells_the_prompt_again_and_a_later_one_does_not() -> None:
    role = role_on(TableModel(1))
    role.submit(opened(SamplingParams(prompt_logprobs=2), (3, 1, 4)))
    answers = []
    for base_len, tokens in ((0, (3, 1, 4)), (0, (3, 1, 4)), (3, (9,))):
        role.submit(extend("s", base_len, tokens))
        answers += role.step()

    first, repeated, later = answers
    assert isinstance(first, Verified)
    assert first == repeated
    assert len(first.evidence.prompt_logprobs) == 2
    assert isinstance(later, Verified)
    assert later.evidence.prompt_logprobs == ()


def told(*logprobs: float) -> tuple[TokenLogprobs, ...]:
    return tuple(TokenLogprobs(each, ()) for each in logprobs)


def answer(script: Script, *draws: int, draft: tuple[float, ...] = ()) -> Verified:
    """Evidence that tells -10, -11, ... of the tokens it emits."""
    emitted = tuple(-10.0 - index for index in range(len(draws)))
    logprobs = DraftLogprobs(draft, emitted, ((),) * len(draws))
    evidence = Evidence(
        len(script.state.tokens), script.state.target.epoch, TargetDraws(draws), logprobs
    )
    return Verified("s", evidence)


def test_a_committed_token_carries_what_belongs_to_it() -> None:
    script = drafting_with_logprobs()
    script.propose(5, 6)

    emit = script.feed(answer(script, 5, 9, 7, draft=(-1.0, -2.0)))[0]

    assert isinstance(emit, Emit)
    assert emit.tokens == (
        CommittedToken(5, TokenKind.ACCEPTED, *told(-1.0)),
        CommittedToken(9, TokenKind.RECOVERED, *told(-11.0)),
    )


def test_a_cut_token_takes_its_logprobs_along() -> None:
    script = drafting_with_logprobs(SamplingParams(logprobs=0, stop_token_ids=(5,)))
    script.propose(5, 6)

    emit = script.feed(answer(script, 5, 6, 7, draft=(-1.0, -2.0)))[0]

    assert isinstance(emit, Emit)
    assert emit.tokens == (CommittedToken(5, TokenKind.ACCEPTED, *told(-1.0)),)


def drafting_with_logprobs(params: SamplingParams | None = None) -> Script:
    script = first_round(spec_of(params or SamplingParams(logprobs=0)))
    script.feed(answer(script, 4))
    return script


def test_evidence_without_the_logprobs_asked_for_is_refused() -> None:
    script = first_round(spec_of(SamplingParams(logprobs=0)))

    with pytest.raises(ProtocolError, match="lacks log-probabilities"):
        script.verify(4)


def test_logprobs_of_another_number_of_tokens_are_refused() -> None:
    script = drafting_with_logprobs()
    script.propose(5, 6)

    with pytest.raises(ProtocolError, match="does not fit a draft of 2"):
        script.feed(answer(script, 5, 6, 7, draft=(-1.0,)))


def prompt_answer(script: Script, draw: int, *logprobs: float) -> Verified:
    state = script.state
    outcome = TargetDraws((draw,))
    evidence = Evidence(
        len(state.tokens), state.target.epoch, outcome, prompt_logprobs=told(*logprobs)
    )
    return Verified("s", evidence)


def test_the_prompt_is_told_once_before_the_first_token() -> None:
    script = first_round(spec_of(SamplingParams(prompt_logprobs=0)))

    effects = script.feed(prompt_answer(script, 4, -1.0, -2.0))

    assert effects[0] == EmitPrompt(told(-1.0, -2.0))
    assert isinstance(effects[1], Emit)
    script.propose(5, 6)
    assert not any(isinstance(each, EmitPrompt) for each in script.verify(5, 6, 7))


def test_a_prompt_told_in_part_is_refused() -> None:
    script = first_round(spec_of(SamplingParams(prompt_logprobs=0)))

    with pytest.raises(ProtocolError, match="tells of 1 prompt tokens instead of 2"):
        script.feed(prompt_answer(script, 4, -1.0))


def test_a_target_that_replaces_another_is_asked_of_the_prompt_only_if_it_is_still_untold() -> None:
    params = SamplingParams(prompt_logprobs=0)
    early, late = first_round(spec_of(params)), first_round(spec_of(params))
    late.feed(prompt_answer(late, 4, -1.0, -2.0))

    asked = []
    for script in (early, late):
        (reopen,) = script.feed(TargetLost(1, PeerUnavailableError("gone")))
        assert isinstance(reopen, OpenTarget)
        asked.append(reopen.message.params.prompt_logprobs)
        script.feed(TargetOpened(2))

    assert asked == [0, None]


def test_the_tokens_of_ratio_evidence_are_its_residuals_and_its_bonus() -> None:
    assert RatioTest((-1.0,), (-1.0,), (5,), 6).tokens == (5, 6)
