"""Hypothesis strategies for every record that crosses the wire."""

from __future__ import annotations

import json
import math
import struct
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from deployments.transport.api_records import (
    ChatMessage,
    ChatPrompt,
    Finished,
    GenerationCall,
    Produced,
    Prompted,
    Started,
    TextPrompt,
    TokenPrompt,
)
from specdec_core.errors import (
    CancelledError,
    DeadlineError,
    InvalidArgumentError,
    InvariantError,
    NotFoundError,
    OverloadedError,
    PeerUnavailableError,
    ProtocolError,
    SpecdecError,
    StaleMessageError,
    UnsupportedModelError,
)
from specdec_core.messages import Close, Extend, Failed, Open, Propose, Proposed, Verified
from specdec_core.params import GenerationParams, SamplingParams, SpeculationParams
from specdec_core.stats import FallbackReason, SpeculationStats
from specdec_core.structured import Choice, Grammar, JsonSchema, Regex
from specdec_core.types import (
    AcceptanceRule,
    BlockTest,
    CommittedToken,
    Coupled,
    DraftBlock,
    DraftLogprobs,
    Evidence,
    FinishReason,
    NoiseKey,
    OneHot,
    RatioTest,
    Sparse,
    TargetDraws,
    TokenKind,
    TokenLogprobs,
)

if TYPE_CHECKING:
    from specdec_core.messages import DrafterMessage, RoleReply, TargetMessage
    from specdec_core.structured import StructuredOutput
    from specdec_core.types import Outcome, Proposal

TEXT_ERRORS: list[type[SpecdecError]] = [
    UnsupportedModelError,
    NotFoundError,
    OverloadedError,
    PeerUnavailableError,
    DeadlineError,
    CancelledError,
    StaleMessageError,
    ProtocolError,
    InvariantError,
]

tokens = st.integers(0, 2**31 - 1)
lengths = st.integers(0, 2**30)
epochs = st.integers(0, 2**64 - 1)
counts = st.integers(0, 2**32 - 1)
session_ids = st.text(min_size=1, max_size=128)
texts = st.text(max_size=30)
one_liners = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=40)

token_tuples = st.lists(tokens, max_size=8).map(tuple)
noises = st.builds(NoiseKey, seed=st.integers(0, 2**64 - 1), sample_index=st.integers(0, 2**16 - 1))
rules = st.sampled_from(AcceptanceRule)


structures: st.SearchStrategy[StructuredOutput | None] = st.one_of(
    st.none(),
    st.dictionaries(st.text(max_size=8), st.integers(), max_size=2).map(
        lambda schema: JsonSchema(json.dumps(schema))
    ),
    st.builds(Regex, st.text(min_size=1, max_size=16)),
    st.builds(Grammar, st.text(min_size=1, max_size=16)),
    st.builds(Choice, st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=4).map(tuple)),
)


@st.composite
def sampling_params(draw: st.DrawFn) -> SamplingParams:
    max_tokens = draw(st.integers(1, 2**20))
    return SamplingParams(
        temperature=draw(st.floats(0, 10)),
        top_k=draw(st.integers(0, 2**20)),
        top_p=draw(st.floats(0, 1, exclude_min=True)),
        min_p=draw(st.floats(0, 1)),
        repetition_penalty=draw(st.floats(0, 10, exclude_min=True)),
        presence_penalty=draw(st.floats(-2, 2)),
        frequency_penalty=draw(st.floats(-2, 2)),
        logit_bias=tuple(draw(st.lists(st.tuples(tokens, st.floats(-100, 100)), max_size=4))),
        bad_words=tuple(
            draw(st.lists(st.lists(tokens, min_size=1, max_size=4).map(tuple), max_size=4))
        ),
        allowed_token_ids=draw(token_tuples),
        min_tokens=draw(st.integers(0, max_tokens)),
        max_tokens=max_tokens,
        stop=tuple(draw(st.lists(st.text(min_size=1, max_size=8), max_size=4))),
        include_stop_str_in_output=draw(st.booleans()),
        stop_token_ids=draw(token_tuples),
        ignore_eos=draw(st.booleans()),
        typical_p=draw(st.floats(0, 1, exclude_min=True)),
        skip_special_tokens=draw(st.booleans()),
        logprobs=draw(st.none() | st.integers(0, 20)),
        prompt_logprobs=draw(st.none() | st.integers(0, 20)),
        structured=draw(structures),
    )


def as_float32(value: float) -> float:
    (rounded,) = struct.unpack("<f", struct.pack("<f", value))
    return float(rounded)


@st.composite
def draft_blocks(draw: st.DrawFn, base_len: int, epoch: int) -> DraftBlock:
    if draw(st.booleans()):
        proposal: Proposal = Coupled() if draw(st.booleans()) else OneHot()
        drafted = st.lists(tokens, max_size=32).map(tuple)
        return DraftBlock(base_len, epoch, draw(drafted), proposal)
    support = draw(
        st.lists(
            st.lists(tokens, min_size=1, max_size=64, unique=True).map(tuple), max_size=32
        ).map(tuple)
    )
    laws = []
    for row in support:
        weights = [draw(st.floats(0.01, 1)) for _ in row]
        laws.append(tuple(as_float32(weight / math.fsum(weights)) for weight in weights))
    drafted_tokens = tuple(draw(st.sampled_from(row)) for row in support)
    return DraftBlock(base_len, epoch, drafted_tokens, Sparse(support, tuple(laws)))


float32_logprobs = st.floats(max_value=0, allow_nan=False, width=32)
tops = st.lists(st.tuples(tokens, float32_logprobs), max_size=20).map(tuple)
token_logprobs = st.builds(TokenLogprobs, float32_logprobs, tops)
prompt_logprobs = st.lists(token_logprobs, max_size=3).map(tuple)


@st.composite
def draft_logprobs(draw: st.DrawFn) -> DraftLogprobs:
    size = draw(st.integers(0, 3))
    return DraftLogprobs(
        draft=tuple(draw(st.lists(float32_logprobs, min_size=size, max_size=size))),
        emitted=tuple(draw(st.lists(float32_logprobs, min_size=size + 1, max_size=size + 1))),
        top=tuple(draw(st.lists(tops, min_size=size + 1, max_size=size + 1))),
    )


@st.composite
def evidences(draw: st.DrawFn) -> Evidence:
    return Evidence(
        base_len=draw(lengths),
        epoch=draw(epochs),
        outcome=draw(outcomes()),
        logprobs=draw(st.none() | draft_logprobs()),
        prompt_logprobs=draw(prompt_logprobs),
    )


@st.composite
def outcomes(draw: st.DrawFn) -> Outcome:
    if draw(st.booleans()):
        return TargetDraws(draw(st.lists(tokens, min_size=1, max_size=33).map(tuple)))
    size = draw(st.integers(0, 32))
    if draw(st.booleans()):
        probs = st.lists(st.floats(0, 1), min_size=size, max_size=size).map(tuple)
        emitted = st.lists(tokens, min_size=size + 1, max_size=size + 1).map(tuple)
        return BlockTest(draw(probs), draw(emitted))
    logprobs = st.floats(max_value=0, allow_nan=False)
    finite = st.floats(max_value=0, allow_nan=False, allow_infinity=False)
    return RatioTest(
        target_logprobs=tuple(draw(st.lists(logprobs, min_size=size, max_size=size))),
        draft_logprobs=tuple(draw(st.lists(finite, min_size=size, max_size=size))),
        residual_tokens=tuple(draw(st.lists(tokens, min_size=size, max_size=size))),
        bonus_token=draw(tokens),
    )


opens = st.builds(
    Open,
    session_id=session_ids,
    epoch=epochs,
    prompt_len=st.integers(1, 2**31 - 1),
    params=sampling_params(),
    rule=rules,
    noise=noises,
)
closes = st.builds(Close, session_id=session_ids, epoch=epochs)
proposes = st.builds(
    Propose,
    session_id=session_ids,
    epoch=epochs,
    base_len=lengths,
    tokens=token_tuples,
    num_draft_tokens=st.integers(0, 32),
)


@st.composite
def extends(draw: st.DrawFn) -> Extend:
    base_len, epoch = draw(lengths), draw(epochs)
    committed = tuple(draw(st.lists(tokens, min_size=1, max_size=8)))
    draft = draw(draft_blocks(base_len + len(committed), epoch))
    return Extend(draw(session_ids), epoch, base_len, committed, draft)


@st.composite
def proposeds(draw: st.DrawFn) -> Proposed:
    return Proposed(draw(session_ids), draw(draft_blocks(draw(lengths), draw(epochs))))


errors: st.SearchStrategy[SpecdecError] = st.one_of(
    st.builds(InvalidArgumentError, one_liners.filter(lambda text: ":" not in text), one_liners),
    st.tuples(st.sampled_from(TEXT_ERRORS), one_liners).map(lambda pair: pair[0](pair[1])),
)
faileds = st.builds(Failed, session_id=session_ids, epoch=epochs, base_len=lengths, error=errors)
verifieds = st.builds(Verified, session_id=session_ids, evidence=evidences())

target_messages: st.SearchStrategy[TargetMessage] = st.one_of(opens, extends(), closes)
drafter_messages: st.SearchStrategy[DrafterMessage] = st.one_of(opens, proposes, closes)
target_replies: st.SearchStrategy[RoleReply] = st.one_of(verifieds, faileds)
drafter_replies: st.SearchStrategy[RoleReply] = st.one_of(proposeds(), faileds)

chats = st.builds(
    ChatPrompt,
    st.lists(
        st.builds(ChatMessage, st.text(min_size=1, max_size=32), texts), min_size=1, max_size=4
    ).map(tuple),
)
text_prompts = st.builds(TextPrompt, st.text(min_size=1, max_size=30))
calls = st.builds(
    GenerationCall,
    prompt=st.one_of(
        text_prompts,
        chats,
        st.builds(TokenPrompt, st.lists(tokens, min_size=1, max_size=8).map(tuple)),
    ),
    params=st.builds(
        GenerationParams,
        sampling=sampling_params(),
        speculation=st.builds(SpeculationParams, max_draft_tokens=st.integers(0, 32), rule=rules),
        seed=st.none() | st.integers(0, 2**64 - 1),
        n=st.integers(1, 16),
        echo=st.booleans(),
    ),
    bad_words_text=st.lists(st.text(min_size=1, max_size=8), max_size=4).map(tuple),
)

stats = st.builds(
    SpeculationStats,
    num_rounds=counts,
    num_drafts=counts,
    num_draft_tokens=counts,
    num_accepted_tokens=counts,
    num_accepted_tokens_per_pos=st.lists(counts, max_size=32).map(tuple),
    num_committed_tokens=counts,
    fallbacks=st.dictionaries(st.sampled_from(FallbackReason), st.integers(1, 2**32)).map(
        lambda by_reason: tuple(sorted(by_reason.items()))
    ),
    num_stale_messages=counts,
)
committed = st.builds(CommittedToken, tokens, st.sampled_from(TokenKind))
told = st.builds(CommittedToken, tokens, st.sampled_from(TokenKind), token_logprobs)
indices = st.integers(0, 15)
events = st.one_of(
    st.builds(Started, session_ids, st.integers(0, 2**64 - 1), counts),
    st.builds(Prompted, token_tuples, texts, prompt_logprobs),
    st.builds(
        Produced,
        counts,
        (st.lists(committed, max_size=8) | st.lists(told, max_size=4)).map(tuple),
        texts,
        indices,
    ),
    st.builds(Finished, st.sampled_from(FinishReason), counts, counts, stats, indices),
)
