"""The target role: holds the KV of its sessions, verifies drafts, and answers with evidence.

One step is one ragged forward over every session that waits: chunks of long prefixes and whole drafts together, chosen by
``scheduling.plan_step``; then the sampler over all rows that were asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from specdec_core.errors import (
    InvalidArgumentError,
    OverloadedError,
    ProtocolError,
    SpecdecError,
    StaleMessageError,
)
from specdec_core.messages import Close, Extend, Failed, Open, Verified
from specdec_core.models.forward import Segment
from specdec_core.params import check_token_ids
from specdec_core.roles.session_table import SessionTable
from specdec_core.sampling.evidence import VerifyRequest, evidence
from specdec_core.sampling.logprobs import LogprobRequest, draft_logprobs, token_logprobs
from specdec_core.sampling.process import Row, process
from specdec_core.sampling.structure import structure_of
from specdec_core.scheduling.batching import Work, plan_step
from specdec_core.structured import NO_GRAMMARS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdec_core.messages import RoleReply, TargetMessage
    from specdec_core.models.forward import CausalModel, SequenceKv
    from specdec_core.sampling.structure import Structure
    from specdec_core.scheduling.batching import Chunk
    from specdec_core.structured import GrammarBackend
    from specdec_core.types import DraftBlock, DraftLogprobs, Evidence, TokenLogprobs


@dataclass(frozen=True, slots=True)
class _Session:
    opened: Open
    kv: SequenceKv
    structure: Structure | None
    tokens: list[int] = field(
        default_factory=list
    )  # the first kv.length of them have their KV written

    @property
    def num_waiting(self) -> int:
        return len(self.tokens) - self.kv.length

    def replace_from(self, length: int, tokens: Sequence[int]) -> None:
        """Roll back to the first ``length`` tokens and put others behind them."""
        self.kv.truncate(min(length, self.kv.length))
        if self.structure is not None:
            self.structure.truncate(length)
        self.tokens[length:] = tokens

    def masks(self, num_rows: int) -> Sequence[bytes | None]:
        """What the request's structure allows behind each of the last ``num_rows`` prefixes."""
        if self.structure is None:
            return [None] * num_rows
        return self.structure.masks(self.tokens, num_rows)


@dataclass(frozen=True, slots=True)
class _Job:
    """An ``Extend`` taken in: its tokens are the session's last, its draft the last of those."""

    session: _Session
    draft: DraftBlock
    num_told: int  # prompt tokens, all but the first to be told of; 0 if not asked for
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)  # grows chunk by chunk

    @property
    def num_rows(self) -> int:
        return self.draft.num_draft_tokens + 1


@dataclass(frozen=True, slots=True)
class _Read:
    """A chunk about to be forwarded."""

    job: _Job
    segment: Segment
    told: Sequence[int]  # prompt tokens that the first rows of logits tell of
    num_rows: int  # the last rows, for the draft; 0 before the last chunk


class TargetRole:
    """Verifies; the only role whose word counts."""

    def __init__(
        self,
        model: CausalModel,
        *,
        max_sessions: int,
        token_budget: int,
        grammars: GrammarBackend = NO_GRAMMARS,
    ) -> None:
        """Serve ``model`` to at most ``max_sessions`` sessions, about ``token_budget`` new tokens a step."""
        self._model = model
        self._grammars = grammars
        self._token_budget = token_budget
        self._sessions: SessionTable[_Session] = SessionTable(
            max_sessions, lambda held: held.kv.release()
        )
        self._jobs: dict[str, _Job] = {}  # by session, oldest first
        self._failures: list[RoleReply] = []

    @property
    def num_sessions(self) -> int:
        return len(self._sessions)

    @property
    def has_work(self) -> bool:
        return bool(self._jobs or self._failures)

    def submit(self, message: TargetMessage) -> None:
        try:
            match message:
                case Open():
                    self._sessions.open(message, lambda: self._new_session(message))
                    self._jobs.pop(message.session_id, None)
                case Extend():
                    self._extend(message)
                case Close():
                    self._close(message.session_id, message.epoch)
        except SpecdecError as error:
            self._fail(message.session_id, message.epoch, error)

    def step(self) -> list[RoleReply]:
        works = [
            Work(name, job.session.num_waiting, job.num_rows) for name, job in self._jobs.items()
        ]
        chunks = plan_step(works, self._token_budget)
        replies = self._forward(chunks) if chunks else []
        failures, self._failures = self._failures, []
        return [*failures, *replies]

    def _new_session(self, message: Open) -> _Session:
        structure = structure_of(message.params, message.prompt_len, self._grammars)
        return _Session(message, self._model.new_sequence(), structure)

    def _extend(self, message: Extend) -> None:
        held = self._sessions.get(message.session_id, message.epoch)
        self._check(message, held)
        held.replace_from(message.base_len, [*message.tokens, *message.draft.tokens])
        is_told = held.opened.params.prompt_logprobs is not None and message.base_len == 0
        num_told = min(held.opened.prompt_len, len(message.tokens)) if is_told else 0
        self._jobs[message.session_id] = _Job(held, message.draft, num_told)

    def _check(self, message: Extend, held: _Session) -> None:
        end = message.base_len + len(message.tokens)
        if message.base_len > len(held.tokens):
            raise StaleMessageError(
                f"base_len {message.base_len} is beyond the {len(held.tokens)} tokens held"
            )
        if not message.tokens or message.draft.base_len != end:
            raise ProtocolError(
                f"a draft at {message.draft.base_len} cannot follow {end} committed tokens"
            )
        if end + message.draft.num_draft_tokens > self._model.spec.max_context:
            raise InvalidArgumentError(
                "tokens", f"exceed the context of {self._model.spec.max_context}"
            )
        check_token_ids("tokens", message.tokens, self._model.spec.vocab_size)
        check_token_ids("draft.tokens", message.draft.tokens, self._model.spec.vocab_size)

    def _forward(self, chunks: Sequence[Chunk]) -> list[RoleReply]:
        reads = [self._read(chunk) for chunk in chunks]
        try:
            logits = self._model.forward([read.segment for read in reads])
        except OverloadedError as error:
            youngest = self._sessions.youngest({chunk.session_id for chunk in chunks}).opened
            self._fail(youngest.session_id, youngest.epoch, error)
            return []
        logits = _tell_prompts(reads, logits)
        done = [self._jobs.pop(chunk.session_id) for chunk in chunks if chunk.is_last]
        return self._answer(done, logits) if done else []

    def _read(self, chunk: Chunk) -> _Read:
        job = self._jobs[chunk.session_id]
        start, held = job.session.kv.length, job.session.tokens
        end = start + chunk.num_tokens
        told = held[start + 1 : min(end + 1, job.num_told)]
        num_rows = job.num_rows if chunk.is_last else 0
        num_logits = chunk.num_tokens if told else num_rows
        return _Read(job, Segment(job.session.kv, held[start:end], num_logits), told, num_rows)

    def _answer(self, jobs: Sequence[_Job], logits: torch.Tensor) -> list[RoleReply]:
        """Evidence for every session of a batch; where one breaks the sampler, it alone fails."""
        try:
            return _evidence(jobs, logits)
        except SpecdecError as error:
            if len(jobs) == 1:
                opened = jobs[0].session.opened
                self._fail(opened.session_id, opened.epoch, error)
                return []
        parts = torch.split(logits, [job.num_rows for job in jobs])
        return [
            reply
            for job, rows in zip(jobs, parts, strict=True)
            for reply in self._answer([job], rows)
        ]

    def _fail(self, session_id: str, epoch: int, error: SpecdecError) -> None:
        self._failures.append(Failed(session_id, epoch, 0, error))
        self._close(session_id, epoch)

    def _close(self, session_id: str, epoch: int) -> None:
        self._sessions.close(session_id, epoch)
        job = self._jobs.get(session_id)
        if job and job.session.opened.epoch <= epoch:
            del self._jobs[session_id]


def _tell_prompts(reads: Sequence[_Read], logits: torch.Tensor) -> torch.Tensor:
    """Read off the rows of prompts; returns the rows of drafts."""
    if not any(read.told for read in reads):
        return logits
    kept = []
    parts = torch.split(logits, [read.segment.num_logits for read in reads])
    for read, rows in zip(reads, parts, strict=True):
        num_top = read.job.session.opened.params.prompt_logprobs or 0
        told = token_logprobs(rows[: len(read.told)], read.told, num_top)
        read.job.prompt_logprobs.extend(told)
        kept.append(rows[len(rows) - read.num_rows :])
    return torch.cat(kept)


def _evidence(jobs: Sequence[_Job], logits: torch.Tensor) -> list[RoleReply]:
    rows, requests = [], []
    for job in jobs:
        opened, draft, tokens = job.session.opened, job.draft, job.session.tokens
        ends = range(draft.base_len, draft.base_len + job.num_rows)
        rows += [
            Row(tokens[:end], opened.prompt_len, opened.params, mask)
            for end, mask in zip(ends, job.session.masks(job.num_rows), strict=True)
        ]
        requests.append(VerifyRequest(draft, opened.rule, opened.noise))
    answers = evidence(process(logits, rows), requests)
    told = _logprobs(jobs, logits, answers)
    return [
        Verified(
            name,
            replace(
                answer,
                epoch=job.session.opened.epoch,
                logprobs=told.get(name),
                prompt_logprobs=tuple(job.prompt_logprobs),
            ),
        )
        for job, answer in zip(jobs, answers, strict=True)
        for name in [job.session.opened.session_id]
    ]


def _logprobs(
    jobs: Sequence[_Job], logits: torch.Tensor, answers: Sequence[Evidence]
) -> dict[str, DraftLogprobs]:
    """What the sessions that ask for log-probabilities are told, by session."""
    requests, end = {}, 0
    for job, answer in zip(jobs, answers, strict=True):
        start, end = end, end + job.num_rows
        opened = job.session.opened
        if opened.params.logprobs is not None:
            requests[opened.session_id] = LogprobRequest(
                range(start, end), job.draft.tokens, answer.outcome.tokens, opened.params.logprobs
            )
    return dict(zip(requests, draft_logprobs(logits, list(requests.values())), strict=True))
