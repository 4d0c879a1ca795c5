"""The language-model drafter: its cache is only a cache, its law is the one it sends, and trouble costs drafts at most.

Over 300 lines: every case is about the one cache.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from specdec_core import reference
from specdec_core.drafters.base import Draft, DraftContext
from specdec_core.drafters.lm import LmDrafter, common_length
from specdec_core.errors import OverloadedError
from specdec_core.params import SamplingParams
from specdec_core.types import AcceptanceRule, Coupled, NoiseKey, Sparse
from tests.support.table_model import TableKv, TableModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from specdec_core.models.forward import Segment

SAMPLED = SamplingParams(temperature=0.9, top_p=0.9)
PROMPT = (3, 1, 4, 1, 5)


class WatchedModel(TableModel):
    """Notes how many tokens each forward reads for each session, in a KV memory with room for ``pool`` tokens."""

    def __init__(self, seed: int, *, max_context: int = 256, pool: int = 10**6) -> None:
        super().__init__(seed, max_context=max_context)
        self.reads: list[list[int]] = []
        self._pool = pool
        self._sequences: list[TableKv] = []

    @property
    def num_held(self) -> int:
        return sum(kv.length for kv in self._sequences)

    def new_sequence(self) -> TableKv:
        self._sequences.append(super().new_sequence())
        return self._sequences[-1]

    def forward(self, segments: Sequence[Segment]) -> torch.Tensor:
        for segment in segments:
            assert id(segment.kv) in self.live, "used after release"
            assert segment.kv.length + len(segment.tokens) <= self.spec.max_context
        if self.num_held + sum(len(segment.tokens) for segment in segments) > self._pool:
            raise OverloadedError("the pool is full")
        self.reads.append([len(segment.tokens) for segment in segments])
        return super().forward(segments)


def wish(
    tokens: Sequence[int] = PROMPT,
    count: int = 3,
    *,
    name: str = "s",
    params: SamplingParams = SAMPLED,
    rule: AcceptanceRule = AcceptanceRule.COUPLED,
) -> DraftContext:
    return DraftContext(name, tokens, len(PROMPT), count, params, rule, NoiseKey(7))


def plain(model: TableModel, params: SamplingParams = SAMPLED, count: int = 3) -> tuple[int, ...]:
    """What the drafter's model itself would generate under this request's noise."""
    wanted = replace(params, max_tokens=count)
    return tuple(reference.plain(model.logits, PROMPT, wanted, NoiseKey(7), 10**6))


def on(model: TableModel) -> LmDrafter:
    return LmDrafter(model, vocab_size=12)


def test_a_coupled_draft_is_the_models_own_text_under_the_requests_noise() -> None:
    model = TableModel(1)

    assert on(model).propose([wish()]) == [Draft(plain(model), Coupled())]


def test_a_draft_reads_the_prompt_once_and_then_one_token_at_a_time() -> None:
    model = WatchedModel(1)

    on(model).propose([wish(count=3)])

    assert model.reads == [[4], [1], [1], [1]]


def test_accepted_tokens_are_not_read_again() -> None:
    model = WatchedModel(1)
    drafter = on(model)
    (draft,) = drafter.propose([wish(count=3)])
    model.reads.clear()

    drafter.propose([wish((*PROMPT, *draft.tokens[:2]), count=1)])

    assert model.reads == [[1]]  # the last committed token, whose logits are needed


def test_rejected_tokens_are_rolled_back_to_the_shared_prefix() -> None:
    model = WatchedModel(1)
    drafter = on(model)
    (draft,) = drafter.propose([wish(count=3)])
    recovered = (draft.tokens[1] + 1) % 12
    committed = (*PROMPT, draft.tokens[0], recovered, 6)
    model.reads.clear()

    again = drafter.propose([wish(committed, count=1)])

    assert model.reads == [[1], [1]]
    assert again == on(TableModel(1)).propose([wish(committed, count=1)])


def test_catching_up_reads_everything_and_drafts_nothing() -> None:
    model = WatchedModel(1)
    drafter = on(model)

    assert drafter.propose([wish(count=0)]) == [Draft((), Coupled())]
    assert model.reads == [[5]]
    assert drafter.propose([wish(count=3)])[0].tokens == plain(model)


def test_a_long_prompt_is_read_in_chunks() -> None:
    model = WatchedModel(1, max_context=2048)

    on(model).propose([wish([1] * 1100, count=0)])

    assert model.reads == [[512], [512], [76]]


def test_sessions_are_drafted_together_and_as_if_alone() -> None:
    model = TableModel(1)
    wishes = [
        wish(name="coupled", count=2),
        wish(name="ratio", count=3, rule=AcceptanceRule.RATIO),
        wish(name="greedy", count=1, params=SamplingParams(temperature=0.0)),
        wish(name="reading", count=0),
    ]

    together = on(model).propose(wishes)

    assert model.batch_sizes == [4, 3, 2, 1]  # one forward reads, the others guess
    assert together == [draft for each in wishes for draft in on(TableModel(1)).propose([each])]


def test_a_session_keeps_one_sequence_over_all_its_rounds() -> None:
    model = TableModel(1)
    drafter = on(model)

    for length in range(1, 6):
        drafter.propose([wish(PROMPT[:length])])

    assert len(model.live) == 1


def test_forgetting_frees_the_memory_and_changes_no_proposal() -> None:
    model = TableModel(1)
    drafter = on(model)
    first = drafter.propose([wish()])

    drafter.forget("s")
    drafter.forget("unknown")

    assert model.live == set()
    assert drafter.propose([wish()]) == first


def test_a_draft_stops_at_the_end_of_the_drafters_context() -> None:
    model = TableModel(1, max_context=7)

    (draft,) = on(model).propose([wish(count=5)])

    assert draft.tokens == plain(model, count=2)


@pytest.mark.parametrize("length", [7, 8, 20])
def test_a_session_that_outgrew_the_drafters_context_gets_no_draft(length: int) -> None:
    drafter = on(WatchedModel(1, max_context=7))
    drafter.propose([wish()])

    assert drafter.propose([wish([1] * length)]) == [Draft((), Coupled())]


def test_where_the_memory_is_full_idle_sessions_make_room() -> None:
    model = WatchedModel(1, pool=20)
    drafter = on(model)
    drafter.propose([wish(name="idle")])
    drafter.propose([wish(name="busy")])
    model.reads.clear()

    drafts = drafter.propose([wish(name="busy"), wish(name="new")])

    assert [draft.tokens for draft in drafts] == [plain(model)] * 2
    assert model.reads == [[4], *[[1, 1]] * 5]  # the busy one was not read again
    assert model.num_held == 14  # the idle session's seven are gone


def test_a_session_that_had_nothing_to_read_survives_when_another_needs_room() -> None:
    model = WatchedModel(1, pool=20)
    drafter = on(model)
    drafter.propose([wish(name="idle", count=2)])
    drafter.propose([wish(PROMPT[:4], name="ready", count=0)])

    drafts = drafter.propose([wish(name="ready"), wish(name="new")])

    assert [draft.tokens for draft in drafts] == [plain(model)] * 2


def test_a_batch_that_cannot_fit_gets_no_drafts_and_recovers_when_it_can() -> None:
    model = WatchedModel(1, pool=12)
    drafter = on(model)

    assert drafter.propose([wish(name="a"), wish(name="b")]) == [Draft((), Coupled())] * 2
    assert model.live == set()
    assert drafter.propose([wish(name="a")])[0].tokens == plain(model)


def test_a_ratio_draft_says_the_law_it_was_drawn_from() -> None:
    model = TableModel(1, scale=0.3)

    (draft,) = on(model).propose([wish(rule=AcceptanceRule.RATIO)])

    assert isinstance(draft.proposal, Sparse)
    prefix = list(PROMPT)
    laws = zip(draft.tokens, draft.proposal.support, draft.proposal.probs, strict=True)
    for token, support, probs in laws:
        law = reference.law(model.logits(prefix), prefix, len(PROMPT), SAMPLED)
        assert dict(zip(support, probs, strict=True)) == pytest.approx(
            {each: prob for each, prob in enumerate(law) if prob}, abs=1e-6
        )
        assert token in support
        assert math.fsum(probs) == pytest.approx(1.0, abs=1e-6)
        prefix.append(token)


def test_ratio_drafts_occur_as_often_as_they_say() -> None:
    """The first token's share over 2000 seeds, within five standard deviations (false-alarm rate 6e-7 a token)."""
    wishes = [
        replace(wish(count=1, name=str(seed), rule=AcceptanceRule.RATIO), noise=NoiseKey(seed))
        for seed in range(2000)
    ]

    drafts = on(TableModel(1, scale=0.3)).propose(wishes)

    (proposal,) = {draft.proposal for draft in drafts}
    assert isinstance(proposal, Sparse)
    assert len(proposal.support[0]) > 5
    for token, prob in zip(proposal.support[0], proposal.probs[0], strict=True):
        count = sum(draft.tokens == (token,) for draft in drafts)
        assert abs(count - 2000 * prob) < 5 * math.sqrt(2000 * prob * (1 - prob))


def test_ratio_and_coupled_draw_with_different_noise() -> None:
    model = TableModel(1, scale=0.3)

    drafts = on(model).propose(
        [wish(name="a", count=8), wish(name="b", count=8, rule=AcceptanceRule.RATIO)]
    )

    assert drafts[0].tokens != drafts[1].tokens


@pytest.mark.parametrize(
    ("tokens", "params"),
    [
        ((3, 13), SAMPLED),
        (PROMPT, SamplingParams(logit_bias=((12, 1.0),))),
        (PROMPT, SamplingParams(allowed_token_ids=(3, 14))),
    ],
)
def test_a_drafter_with_a_smaller_vocabulary_passes_on_ids_it_lacks(
    tokens: tuple[int, ...], params: SamplingParams
) -> None:
    model = TableModel(1)
    drafter = LmDrafter(model, vocab_size=15)

    drafts = drafter.propose([wish(tokens, name="wide", params=params), wish(name="plain")])

    assert drafts == [Draft((), Coupled()), Draft(plain(model), Coupled())]


def test_a_drafter_with_a_larger_vocabulary_proposes_the_targets_ids_only() -> None:
    model = TableModel(1)
    flat = SamplingParams(temperature=10.0)

    drafts = LmDrafter(model, vocab_size=4).propose([wish((3, 1), count=30, params=flat)])

    assert set(drafts[0].tokens) <= {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("left", "right", "length"),
    [
        ((), (1,), 0),
        ((1,), (1,), 1),
        ((1, 2, 3), (1, 2, 3, 4), 3),
        ((1, 2, 3, 4), (1, 2, 9, 4), 2),
        ((9, 2), (1, 2), 0),
        ((1, 2, 3, 4, 5, 6, 7), (1, 2, 3, 4, 5, 6, 8), 6),
    ],
)
def test_common_length_counts_equal_tokens_up_to_the_first_difference(
    left: tuple[int, ...], right: tuple[int, ...], length: int
) -> None:
    assert common_length(list(left), list(right)) == length
    assert common_length(list(right), list(left)) == length
