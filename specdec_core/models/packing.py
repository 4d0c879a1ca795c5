"""A ragged batch as the tensors of one step, with its KV reserved."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from specdec_core.errors import InvariantError
from specdec_core.models.attention import Span
from specdec_core.models.paged_storage import PagedSequence
from specdec_core.models.storage import ContiguousSequence, append_all

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from specdec_core.models.attention import AttentionBackend, StepAttention
    from specdec_core.models.forward import Segment, SequenceKv
    from specdec_core.models.storage import KvStorage, StoredSequence


@dataclass(frozen=True, slots=True)
class PackedStep:
    """All new tokens of all segments, one row each, in the order of the segments."""

    tokens: torch.Tensor  # [total] int64
    positions: torch.Tensor  # [total] int64, each counted from the start of its own session
    logit_rows: torch.Tensor  # [num_logits] int64, rows whose logits are wanted
    attention: StepAttention

    def select(self, hidden: torch.Tensor) -> torch.Tensor:
        """The rows of [total, hidden_size] whose logits are wanted."""
        if self.logit_rows.shape[0] == hidden.shape[0]:
            return hidden
        return hidden.index_select(0, self.logit_rows)


@contextmanager
def packed_step(
    storage: KvStorage,
    segments: Sequence[Segment],
    *,
    max_context: int,
    device: torch.device,
    attention: AttentionBackend,
) -> Iterator[PackedStep]:
    """Grow the KV of every segment and lay the batch out; whatever fails inside takes the growth back.

    Raises:
        OverloadedError: if the pool cannot hold the new tokens; no KV has changed then.
        InvariantError: if a segment is malformed, or its KV belongs to another model; no KV has changed then.
    """
    sequences = [_stored(segment.kv, storage) for segment in segments]
    starts = [sequence.length for sequence in sequences]
    for segment, start in zip(segments, starts, strict=True):
        _check(segment, start, max_context)
    append_all(storage.pool, sequences, [len(segment.tokens) for segment in segments])
    try:
        yield _lay_out(segments, sequences, starts, device, attention)
    except BaseException:
        for sequence, start in zip(sequences, starts, strict=True):
            sequence.truncate(start)
        raise


def _lay_out(
    segments: Sequence[Segment],
    sequences: Sequence[StoredSequence],
    starts: Sequence[int],
    device: torch.device,
    attention: AttentionBackend,
) -> PackedStep:
    tokens: list[int] = []
    positions: list[int] = []
    logit_rows: list[int] = []
    spans: list[Span] = []
    for segment, sequence, start in zip(segments, sequences, starts, strict=True):
        begin = len(tokens)
        tokens.extend(segment.tokens)
        positions.extend(range(start, sequence.length))
        logit_rows.extend(range(len(tokens) - segment.num_logits, len(tokens)))
        spans.append(Span(sequence, begin, len(tokens)))
    return PackedStep(
        tokens=torch.tensor(tokens, dtype=torch.long, device=device),
        positions=torch.tensor(positions, dtype=torch.long, device=device),
        logit_rows=torch.tensor(logit_rows, dtype=torch.long, device=device),
        attention=attention(spans),
    )


def _check(segment: Segment, start: int, max_context: int) -> None:
    count = len(segment.tokens)
    if count < 1:
        raise InvariantError("a segment needs at least one token")
    if not 0 <= segment.num_logits <= count:
        raise InvariantError(f"{segment.num_logits} rows of logits wanted of {count} tokens")
    if start + count > max_context:
        raise InvariantError(f"{start + count} tokens do not fit a context of {max_context}")


def _stored(kv: SequenceKv, storage: KvStorage) -> StoredSequence:
    if isinstance(kv, ContiguousSequence | PagedSequence) and kv.table.pool is storage.pool:
        return kv
    raise InvariantError("a segment's KV was not made by this model")
