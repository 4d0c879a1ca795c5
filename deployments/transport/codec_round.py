"""What a round exchanges ⇄ protobuf: draft blocks, evidence, failures."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, assert_never

from deployments.transport.codec_logprobs import (
    check_logprobs,
    decode_draft_logprobs,
    decode_token_logprobs,
    encode_draft_logprobs,
    encode_token_logprobs,
)
from deployments.transport.status import error_of, one_line
from deployments.transport.tensor_codec import (
    TensorLimits,
    float32_frame,
    float32_rows,
    int32_frame,
    int32_rows,
    pack,
    unpack,
)
from deployments.transport.wire_limits import (
    MAX_SUPPORT,
    MAX_TOKEN_ID,
    check_count,
    token_ids,
)
from specdec_core.errors import ErrorCode, InvalidArgumentError, ProtocolError, SpecdecError
from specdec_core.params import MAX_DRAFT_TOKENS, MAX_PROMPT_LOGPROBS
from specdec_core.types import (
    BlockTest,
    Coupled,
    DraftBlock,
    Evidence,
    OneHot,
    RatioTest,
    Sparse,
    TargetDraws,
)
from specdec_proto.v1 import types_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdec_core.types import Outcome, Proposal

SPARSE_LIMITS = TensorLimits(
    max_bytes=64 + 4 * MAX_DRAFT_TOKENS * MAX_SUPPORT,
    max_dims=2,
    max_dim=max(MAX_DRAFT_TOKENS, MAX_SUPPORT),
)
_SUM_TOLERANCE = 1e-3
_CODES = {
    ErrorCode.INVALID_ARGUMENT: types_pb2.ERROR_CODE_INVALID_ARGUMENT,
    ErrorCode.UNSUPPORTED: types_pb2.ERROR_CODE_UNSUPPORTED,
    ErrorCode.NOT_FOUND: types_pb2.ERROR_CODE_NOT_FOUND,
    ErrorCode.OVERLOADED: types_pb2.ERROR_CODE_OVERLOADED,
    ErrorCode.UNAVAILABLE: types_pb2.ERROR_CODE_UNAVAILABLE,
    ErrorCode.DEADLINE: types_pb2.ERROR_CODE_DEADLINE,
    ErrorCode.CANCELLED: types_pb2.ERROR_CODE_CANCELLED,
    ErrorCode.STALE: types_pb2.ERROR_CODE_STALE,
    ErrorCode.PROTOCOL: types_pb2.ERROR_CODE_PROTOCOL,
    ErrorCode.INTERNAL: types_pb2.ERROR_CODE_INTERNAL,
}
_CODES_BACK: dict[int, ErrorCode] = {number: code for code, number in _CODES.items()}


def encode_draft(block: DraftBlock) -> types_pb2.DraftBlock:
    """The block without its stamp; probabilities are rounded to float32."""
    message = types_pb2.DraftBlock(tokens=block.tokens)
    match block.proposal:
        case Coupled():
            message.coupled.SetInParent()
        case OneHot():
            message.one_hot.SetInParent()
        case Sparse() as sparse:
            message.sparse.CopyFrom(_encode_sparse(sparse))
        case _:
            assert_never(block.proposal)
    return message


def decode_draft(message: types_pb2.DraftBlock, base_len: int, epoch: int) -> DraftBlock:
    """The block behind the first ``base_len`` tokens.

    Raises:
        InvalidArgumentError: if a bound is exceeded or a law is none.
        ProtocolError: if the proposal is missing, or a token is not of the law it came from.
    """
    tokens = token_ids("draft.tokens", message.tokens, 0, MAX_DRAFT_TOKENS)
    return DraftBlock(base_len, epoch, tokens, _decode_proposal(message, tokens))


def encode_evidence(evidence: Evidence) -> types_pb2.Evidence:
    """The evidence without its stamp."""
    message = types_pb2.Evidence(prompt_logprobs=encode_token_logprobs(evidence.prompt_logprobs))
    if evidence.logprobs is not None:
        message.logprobs.CopyFrom(encode_draft_logprobs(evidence.logprobs))
    match evidence.outcome:
        case TargetDraws(tokens):
            message.target_draws.tokens.extend(tokens)
        case RatioTest() as test:
            message.ratio_test.CopyFrom(
                types_pb2.RatioTest(
                    target_logprobs=test.target_logprobs,
                    draft_logprobs=test.draft_logprobs,
                    residual_tokens=test.residual_tokens,
                    bonus_token=test.bonus_token,
                )
            )
        case BlockTest(accept_probs, tokens):
            message.block_test.accept_probs.extend(accept_probs)
            message.block_test.tokens.extend(tokens)
        case _:
            assert_never(evidence.outcome)
    return message


def decode_evidence(message: types_pb2.Evidence, base_len: int, epoch: int) -> Evidence:
    """The evidence on the draft behind the first ``base_len`` tokens.

    Raises:
        InvalidArgumentError: if a bound is exceeded, lists differ in length or a (log) probability is none.
        ProtocolError: if the outcome is missing.
    """
    told = message.logprobs if message.HasField("logprobs") else None
    return Evidence(
        base_len,
        epoch,
        _decode_outcome(message),
        told and decode_draft_logprobs(told),
        decode_token_logprobs(
            "evidence.prompt_logprobs", message.prompt_logprobs, MAX_PROMPT_LOGPROBS
        ),
    )


def encode_failure(error: SpecdecError) -> types_pb2.Failure:
    """Code and one line; the class of the error within its code is not kept."""
    return types_pb2.Failure(code=_CODES[error.code], message=one_line(str(error)))


def decode_failure(message: types_pb2.Failure) -> SpecdecError:
    """The error a peer reported; subclasses of one code come back as the class of the code.

    Raises:
        ProtocolError: if the code is unspecified or unknown.
    """
    code = _CODES_BACK.get(message.code)
    if code is None:
        raise ProtocolError(f"failure.code: unknown error code {message.code}")
    return error_of(code, message.message)


def _encode_sparse(sparse: Sparse) -> types_pb2.Sparse:
    width = max((len(row) for row in sparse.support), default=0)
    support = tuple(row + (0,) * (width - len(row)) for row in sparse.support)
    probs = tuple(row + (0.0,) * (width - len(row)) for row in sparse.probs)
    return types_pb2.Sparse(
        ids_frame=pack(int32_frame(support, width)),
        probs_frame=pack(float32_frame(probs, width)),
    )


def _decode_proposal(message: types_pb2.DraftBlock, tokens: tuple[int, ...]) -> Proposal:
    match message.WhichOneof("proposal"):
        case "coupled":
            return Coupled()
        case "one_hot":
            return OneHot()
        case "sparse":
            return _decode_sparse(message.sparse, tokens)
        case _:
            raise ProtocolError("draft.proposal: is missing")


def _decode_sparse(message: types_pb2.Sparse, tokens: tuple[int, ...]) -> Sparse:
    ids = int32_rows(unpack(message.ids_frame, SPARSE_LIMITS))
    probs = float32_rows(unpack(message.probs_frame, SPARSE_LIMITS))
    if not len(ids) == len(probs) == len(tokens):
        raise InvalidArgumentError(
            "draft.sparse", f"must have one row for each of {len(tokens)} draft tokens"
        )
    laws = [_decode_law(*row) for row in zip(ids, probs, tokens, strict=True)]
    return Sparse(tuple(support for support, _ in laws), tuple(law for _, law in laws))


def _decode_law(
    ids: tuple[int, ...], probs: tuple[float, ...], token: int
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """One row without its padding, known to be a law that could have given ``token``."""
    if len(ids) != len(probs):
        raise InvalidArgumentError("draft.sparse", "ids and probabilities differ in shape")
    size = len(probs) - probs.count(0.0)
    support, law = ids[:size], probs[:size]
    check_count("draft.sparse", size, 1, MAX_SUPPORT)
    if not (all(map(math.isfinite, probs)) and min(law) > 0 and _sums_to_one(law)):
        raise InvalidArgumentError("draft.sparse", "each row must be positive and sum to 1")
    if min(support) < 0 or max(support) > MAX_TOKEN_ID or len(set(support)) != size:
        raise InvalidArgumentError("draft.sparse", "token ids of a row must be valid and distinct")
    if token not in support:
        raise ProtocolError(f"draft.sparse: token {token} is not of the law it came from")
    return support, law


def _sums_to_one(law: Sequence[float]) -> bool:
    return abs(math.fsum(law) - 1.0) <= _SUM_TOLERANCE


def _decode_outcome(message: types_pb2.Evidence) -> Outcome:
    match message.WhichOneof("outcome"):
        case "target_draws":
            draws = message.target_draws.tokens
            return TargetDraws(token_ids("evidence.tokens", draws, 1, MAX_DRAFT_TOKENS + 1))
        case "ratio_test":
            return _decode_ratio_test(message.ratio_test)
        case "block_test":
            return _decode_block_test(message.block_test)
        case _:
            raise ProtocolError("evidence: has no outcome")


def _decode_ratio_test(message: types_pb2.RatioTest) -> RatioTest:
    residual = token_ids("evidence.residual_tokens", message.residual_tokens, 0, MAX_DRAFT_TOKENS)
    (bonus,) = token_ids("evidence.bonus_token", (message.bonus_token,), 1, 1)
    for field, logprobs in (
        ("evidence.target_logprobs", message.target_logprobs),
        ("evidence.draft_logprobs", message.draft_logprobs),
    ):
        check_count(field, len(logprobs), len(residual), len(residual))
        check_logprobs(field, logprobs)
    if not all(map(math.isfinite, message.draft_logprobs)):
        raise InvalidArgumentError("evidence.draft_logprobs", "each must be finite")
    return RatioTest(
        target_logprobs=tuple(message.target_logprobs),
        draft_logprobs=tuple(message.draft_logprobs),
        residual_tokens=residual,
        bonus_token=bonus,
    )


def _decode_block_test(message: types_pb2.BlockTest) -> BlockTest:
    tokens = token_ids("evidence.tokens", message.tokens, 1, MAX_DRAFT_TOKENS + 1)
    check_count(
        "evidence.accept_probs", len(message.accept_probs), len(tokens) - 1, len(tokens) - 1
    )
    if not all(0.0 <= prob <= 1.0 for prob in message.accept_probs):
        raise InvalidArgumentError("evidence.accept_probs", "each must be in [0, 1]")
    return BlockTest(tuple(message.accept_probs), tokens)
