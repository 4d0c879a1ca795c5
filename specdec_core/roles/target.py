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
from specdec_core.sampling.process import Row, process
from specdec_core.scheduling.batching import Work, plan_step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdec_core.messages import RoleReply, TargetMessage
    from specdec_core.models.forward import CausalModel, SequenceKv
    from specdec_core.scheduling.batching import Chunk
    from specdec_core.types import DraftBlock


@dataclass(frozen=True, slots=True)
class _Session:
    opened: Open
    kv: SequenceKv
    tokens: list[int] = field(
        default_factory=list
    )  # the first kv.length of them have their KV written

    @property
    def num_waiting(self) -> int:
        return len(self.tokens) - self.kv.length


@dataclass(frozen=True, slots=True)
class _Job:
    """An ``Extend`` taken in: its tokens are the session's last, its draft the last of those."""

    session: _Session
    draft: DraftBlock

    @property
    def num_rows(self) -> int:
        return self.draft.num_draft_tokens + 1


class TargetRole:
    """Verifies; the only role whose word counts."""

    def __init__(self, model: CausalModel, *, max_sessions: int, token_budget: int) -> None:
        """Serve ``model`` to at most ``max_sessions`` sessions, about ``token_budget`` new tokens a step."""
        self._model = model
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
                    self._sessions.open(
                        message, lambda: _Session(message, self._model.new_sequence())
                    )
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

    def _extend(self, message: Extend) -> None:
        held = self._sessions.get(message.session_id, message.epoch)
        self._check(message, held)
        held.kv.truncate(min(message.base_len, held.kv.length))
        held.tokens[message.base_len :] = [*message.tokens, *message.draft.tokens]
        self._jobs[message.session_id] = _Job(held, message.draft)

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
        try:
            logits = self._model.forward([self._segment(chunk) for chunk in chunks])
        except OverloadedError as error:
            youngest = self._sessions.youngest({chunk.session_id for chunk in chunks}).opened
            self._fail(youngest.session_id, youngest.epoch, error)
            return []
        done = [self._jobs.pop(chunk.session_id) for chunk in chunks if chunk.is_last]
        return self._answer(done, logits) if done else []

    def _segment(self, chunk: Chunk) -> Segment:
        job = self._jobs[chunk.session_id]
        start = job.session.kv.length
        tokens = job.session.tokens[start : start + chunk.num_tokens]
        return Segment(job.session.kv, tokens, job.num_rows if chunk.is_last else 0)

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


def _evidence(jobs: Sequence[_Job], logits: torch.Tensor) -> list[RoleReply]:
    rows, requests = [], []
    for job in jobs:
        opened, draft, tokens = job.session.opened, job.draft, job.session.tokens
        ends = range(draft.base_len, draft.base_len + job.num_rows)
        rows += [Row(tokens[:end], opened.prompt_len, opened.params) for end in ends]
        requests.append(VerifyRequest(draft, opened.rule, opened.noise))
    answers = evidence(process(logits, rows), requests)
    return [
        Verified(job.session.opened.session_id, replace(answer, epoch=job.session.opened.epoch))
        for job, answer in zip(jobs, answers, strict=True)
    ]
