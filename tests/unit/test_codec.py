"""The data plane's codec, record by record. Over 300 lines: one literal case for each record and each bound of the wire."""

from __future__ import annotations

import math

import pytest

from deployments.transport import codec_drafter, codec_target
from deployments.transport.codec_round import decode_draft, decode_evidence, decode_failure
from deployments.transport.tensor_codec import float32_frame, int32_frame, pack
from specdec_core.errors import InvalidArgumentError, InvariantError, ProtocolError
from specdec_core.messages import Close, Extend, Failed, Open, Propose, Proposed, Verified
from specdec_core.params import SamplingParams
from specdec_core.types import (
    AcceptanceRule,
    Coupled,
    DraftBlock,
    Evidence,
    NoiseKey,
    OneHot,
    Sparse,
    TargetDraws,
)
from specdec_proto.v1 import drafter_pb2, target_pb2, types_pb2

OPEN = Open("s", 1, 3, SamplingParams(), AcceptanceRule.RATIO, NoiseKey(2**64 - 1, 65535))
EXTEND = Extend("s", 1, 4, (7, 8), DraftBlock(6, 1, (9,), Coupled()))
PROPOSE = Propose("s", 1, 4, (7, 8), 5)


def sparse(
    ids: tuple[tuple[int, ...], ...], probs: tuple[tuple[float, ...], ...]
) -> types_pb2.Sparse:
    return types_pb2.Sparse(
        ids_frame=pack(int32_frame(ids, len(ids[0]))),
        probs_frame=pack(float32_frame(probs, len(probs[0]))),
    )


def target_failure(item: target_pb2.TargetItem) -> Failed:
    (record,) = codec_target.decode_request(target_pb2.ExtendRequest(items=[item]))
    assert isinstance(record, Failed)
    return record


def drafter_failure(item: drafter_pb2.DrafterItem) -> Failed:
    (record,) = codec_drafter.decode_request(drafter_pb2.ProposeRequest(items=[item]))
    assert isinstance(record, Failed)
    return record


def extend_item() -> target_pb2.TargetItem:
    return codec_target.encode_request(EXTEND).items[0]


def open_item() -> target_pb2.TargetItem:
    return codec_target.encode_request(OPEN).items[0]


def propose_item() -> drafter_pb2.DrafterItem:
    return codec_drafter.encode_request(PROPOSE).items[0]


def test_an_extend_on_the_wire_is_these_bytes() -> None:
    assert codec_target.encode_request(EXTEND).SerializeToString() == (
        b"\x0a\x14"  # items[0]
        b"\x0a\x01s"  # session_id
        b"\x10\x01"  # epoch
        b"\x18\x04"  # base_len
        b"\x2a\x0b"  # extend
        b"\x0a\x02\x07\x08"  # tokens
        b"\x12\x05\x0a\x01\x09\x12\x00"  # draft: tokens, coupled
    )


def test_rows_of_a_sparse_proposal_may_differ_in_size() -> None:
    law = Sparse(((1, 2, 3), (4,)), ((0.5, 0.25, 0.25), (1.0,)))
    block = DraftBlock(5, 2, (3, 4), law)

    frame = codec_drafter.encode_response([Proposed("s", block)])

    assert codec_drafter.decode_response(frame) == [Proposed("s", block)]


def test_an_extend_whose_draft_follows_something_else_is_not_sent() -> None:
    with pytest.raises(ProtocolError, match="draft: follows 5 tokens, not 6"):
        codec_target.encode_request(Extend("s", 1, 4, (7, 8), DraftBlock(5, 1, (), Coupled())))


def test_a_draft_of_a_drafter_that_was_opened_more_often_than_the_target_is_sent() -> None:
    message = Extend("s", 1, 4, (7, 8), DraftBlock(6, 9, (3,), Coupled()))

    (received,) = codec_target.decode_request(codec_target.encode_request(message))

    assert received == Extend("s", 1, 4, (7, 8), DraftBlock(6, 1, (3,), Coupled()))


def test_each_role_sends_its_own_answers_only() -> None:
    verified = Verified("s", Evidence(1, 1, TargetDraws((5,))))
    proposed = Proposed("s", DraftBlock(1, 1, (), OneHot()))

    with pytest.raises(InvariantError):
        codec_target.encode_response([proposed])
    with pytest.raises(InvariantError):
        codec_drafter.encode_response([verified])


def test_one_malformed_item_leaves_its_neighbours_alone() -> None:
    frame = codec_target.encode_request(EXTEND)
    frame.items.add(session_id="bad", epoch=3, base_len=9)
    frame.MergeFrom(codec_target.encode_request(Close("s", 1)))

    first, second, third = codec_target.decode_request(frame)

    assert (first, third) == (EXTEND, Close("s", 1))
    assert isinstance(second, Failed)
    assert (second.session_id, second.epoch, second.base_len) == ("bad", 3, 9)
    assert str(second.error) == "body: is missing"


@pytest.mark.parametrize("session_id", ["", "x" * 129])
def test_an_item_of_no_valid_session_spoils_its_frame(session_id: str) -> None:
    with pytest.raises(InvalidArgumentError, match="session_id: must be 1 to 128 characters"):
        codec_target.decode_request(
            target_pb2.ExtendRequest(items=[target_pb2.TargetItem(session_id=session_id)])
        )


def test_a_frame_of_too_many_items_is_refused() -> None:
    frame = drafter_pb2.ProposeRequest(items=[propose_item()] * 1025)

    with pytest.raises(InvalidArgumentError, match="items: takes 0 to 1024 entries, got 1025"):
        codec_drafter.decode_request(frame)


def test_bad_fields_of_an_extend_are_named() -> None:
    no_tokens, big_token, far, many, no_proposal = (extend_item() for _ in range(5))
    del no_tokens.extend.tokens[:]
    big_token.extend.tokens[0] = 2**31
    far.base_len = 2**31
    many.extend.draft.tokens.extend([1] * 32)
    no_proposal.extend.draft.ClearField("coupled")

    assert [
        str(target_failure(item).error) for item in (no_tokens, big_token, far, many, no_proposal)
    ] == [
        "extend.tokens: takes 1 to 1048576 entries, got 0",
        "extend.tokens: each must be in [0, 2147483647]",
        "base_len: must be in [0, 2147483647], got 2147483648",
        "draft.tokens: takes 0 to 32 entries, got 33",
        "draft.proposal: is missing",
    ]


def test_bad_fields_of_a_propose_are_named() -> None:
    big_token, many, no_body = (propose_item() for _ in range(3))
    big_token.propose.tokens[1] = 2**32 - 1
    many.propose.num_draft_tokens = 33
    no_body.ClearField("propose")

    assert [str(drafter_failure(item).error) for item in (big_token, many, no_body)] == [
        "propose.tokens: each must be in [0, 2147483647]",
        "propose.num_draft_tokens: must be in [0, 32], got 33",
        "body: is missing",
    ]


def test_bad_fields_of_an_open_are_named() -> None:
    no_prompt, no_rule, new_rule, sample, no_params, no_noise, hot, words = (
        open_item() for _ in range(8)
    )
    no_prompt.open.prompt_len = 0
    no_rule.open.ClearField("rule")
    new_rule.open.MergeFromString(b"\x18\x09")
    sample.open.noise.sample_index = 65536
    no_params.open.ClearField("params")
    no_noise.open.ClearField("noise")
    hot.open.params.temperature = math.nan
    words.open.params.bad_words.add()

    items = (no_prompt, no_rule, new_rule, sample, no_params, no_noise, hot, words)
    assert [str(target_failure(item).error) for item in items] == [
        "open.prompt_len: must be in [1, 2147483647], got 0",
        "rule: unknown acceptance rule 0",
        "rule: unknown acceptance rule 9",
        "noise.sample_index: must be in [0, 65535]",
        "open: needs params and noise",
        "open: needs params and noise",
        "temperature: must be in [0, 10], got nan",
        "bad_words: takes 1 to 64 entries, got 0",
    ]


def test_an_open_reads_the_same_at_a_drafter() -> None:
    assert codec_drafter.decode_request(codec_drafter.encode_request(OPEN)) == [OPEN]
    assert codec_target.decode_request(codec_target.encode_request(OPEN)) == [OPEN]


@pytest.mark.parametrize(
    ("ids", "probs", "problem"),
    [
        (((1, 2),), ((0.5, 0.4),), "sum to 1"),
        (((1, 2),), ((1.5, -0.5),), "sum to 1"),
        (((1, 2),), ((math.nan, 1.0),), "sum to 1"),
        (((1, 2),), ((math.inf, 1.0),), "sum to 1"),
        (((2, 1),), ((0.0, 1.0),), "sum to 1"),
        (((1, 2),), ((0.0, 0.0),), "takes 1 to 64 entries, got 0"),
        (((1, 1),), ((0.5, 0.5),), "distinct"),
        (((1, -1),), ((0.5, 0.5),), "valid"),
        (((1, 2),), ((1.0,),), "differ in shape"),
        (((1,), (1,)), ((1.0,),), "one row for each of 1 draft tokens"),
        (((1,), (1,)), ((1.0,), (1.0,)), "one row for each of 1 draft tokens"),
        (((2, 3),), ((0.5, 0.5),), "token 1 is not of the law it came from"),
    ],
)
def test_what_is_no_law_of_its_draft_is_refused(
    ids: tuple[tuple[int, ...], ...], probs: tuple[tuple[float, ...], ...], problem: str
) -> None:
    message = types_pb2.DraftBlock(tokens=[1], sparse=sparse(ids, probs))

    with pytest.raises((InvalidArgumentError, ProtocolError), match=f"draft.sparse.*{problem}"):
        decode_draft(message, 0, 1)


def test_a_law_may_miss_one_by_a_thousandth() -> None:
    ids, probs = ((1, 2),), ((0.5, 0.5009),)

    block = decode_draft(types_pb2.DraftBlock(tokens=[1], sparse=sparse(ids, probs)), 0, 1)

    assert isinstance(block.proposal, Sparse)


def test_a_law_of_65_tokens_is_refused() -> None:
    ids = (tuple(range(65)),)
    message = types_pb2.DraftBlock(tokens=[1], sparse=sparse(ids, ((1 / 65,) * 65,)))

    with pytest.raises(InvalidArgumentError, match=r"shape: each must be an integer in \[0, 64\]"):
        decode_draft(message, 0, 1)


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (types_pb2.Evidence(), "evidence: has no outcome"),
        (
            types_pb2.Evidence(target_draws=types_pb2.TargetDraws()),
            "evidence.tokens: takes 1 to 33 entries, got 0",
        ),
        (
            types_pb2.Evidence(target_draws=types_pb2.TargetDraws(tokens=[1] * 34)),
            "evidence.tokens: takes 1 to 33 entries, got 34",
        ),
        (
            types_pb2.Evidence(ratio_test=types_pb2.RatioTest(bonus_token=2**31)),
            "evidence.bonus_token: each must be in",
        ),
        (
            types_pb2.Evidence(
                ratio_test=types_pb2.RatioTest(target_logprobs=[-1], residual_tokens=[1])
            ),
            "evidence.draft_logprobs: takes 1 to 1 entries, got 0",
        ),
        (
            types_pb2.Evidence(
                ratio_test=types_pb2.RatioTest(
                    target_logprobs=[math.nan], draft_logprobs=[-1], residual_tokens=[1]
                )
            ),
            "evidence.target_logprobs: each must be a log probability",
        ),
        (
            types_pb2.Evidence(
                ratio_test=types_pb2.RatioTest(
                    target_logprobs=[-1], draft_logprobs=[0.1], residual_tokens=[1]
                )
            ),
            "evidence.draft_logprobs: each must be a log probability",
        ),
        (
            types_pb2.Evidence(
                ratio_test=types_pb2.RatioTest(
                    target_logprobs=[-math.inf], draft_logprobs=[-math.inf], residual_tokens=[1]
                )
            ),
            "evidence.draft_logprobs: each must be finite",
        ),
        (
            types_pb2.Evidence(block_test=types_pb2.BlockTest()),
            "evidence.tokens: takes 1 to 33 entries, got 0",
        ),
        (
            types_pb2.Evidence(block_test=types_pb2.BlockTest(accept_probs=[0.5], tokens=[1])),
            "evidence.accept_probs: takes 0 to 0 entries, got 1",
        ),
        (
            types_pb2.Evidence(block_test=types_pb2.BlockTest(tokens=[1, 2])),
            "evidence.accept_probs: takes 1 to 1 entries, got 0",
        ),
        *(
            (
                types_pb2.Evidence(
                    block_test=types_pb2.BlockTest(accept_probs=[prob], tokens=[1, 2])
                ),
                "evidence.accept_probs: each must be in [0, 1]",
            )
            for prob in (1.1, -0.1, math.nan, math.inf)
        ),
    ],
)
def test_evidence_that_proves_nothing_is_refused(message: types_pb2.Evidence, problem: str) -> None:
    with pytest.raises((InvalidArgumentError, ProtocolError)) as caught:
        decode_evidence(message, 0, 1)

    assert str(caught.value).startswith(problem)


def test_a_failure_of_an_unknown_code_breaks_the_protocol() -> None:
    with pytest.raises(ProtocolError, match="unknown error code 0"):
        decode_failure(types_pb2.Failure(message="?"))


def test_a_malformed_answer_is_a_failure_of_its_session() -> None:
    result = target_pb2.TargetResult(session_id="s", epoch=2, base_len=5)
    (answer,) = codec_target.decode_response(target_pb2.ExtendResponse(results=[result]))
    proposal = drafter_pb2.DrafterResult(session_id="s", epoch=2, base_len=5)
    (other,) = codec_drafter.decode_response(drafter_pb2.ProposeResponse(results=[proposal]))

    for failed in (answer, other):
        assert isinstance(failed, Failed)
        assert (failed.session_id, failed.epoch, failed.base_len) == ("s", 2, 5)
        assert isinstance(failed.error, ProtocolError)
