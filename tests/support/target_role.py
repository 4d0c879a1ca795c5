"""Messages to a target role on a tiny model, and what its answers should be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec_core import reference
from specdec_core.messages import Extend, Failed, Open, Verified
from specdec_core.params import SamplingParams
from specdec_core.roles.target import TargetRole
from specdec_core.types import AcceptanceRule, Coupled, DraftBlock, NoiseKey, TargetDraws

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdec_core.errors import SpecdecError
    from specdec_core.messages import RoleReply
    from tests.support.table_model import TableModel

GREEDY = SamplingParams(temperature=0.0)
PROMPT = (3, 1, 4)


def role_on(model: TableModel, *, max_sessions: int = 8, token_budget: int = 64) -> TargetRole:
    return TargetRole(model, max_sessions=max_sessions, token_budget=token_budget)


def opened(name: str, epoch: int = 1, params: SamplingParams = GREEDY) -> Open:
    return Open(name, epoch, len(PROMPT), params, AcceptanceRule.COUPLED, NoiseKey(7))


def extend(
    name: str,
    base_len: int,
    tokens: tuple[int, ...],
    draft: tuple[int, ...] = (),
    *,
    epoch: int = 1,
    gap: int = 0,
) -> Extend:
    block = DraftBlock(base_len + len(tokens) + gap, 40, draft, Coupled())
    return Extend(name, epoch, base_len, tokens, block)


def greedy(model: TableModel, tokens: Sequence[int], count: int) -> tuple[int, ...]:
    """What the model draws behind ``tokens``, from the reference."""
    params = SamplingParams(temperature=0.0, max_tokens=count)
    return tuple(reference.plain(model.logits, tokens, params, NoiseKey(7), 10**6))


def draws(reply: RoleReply) -> tuple[int, ...]:
    assert isinstance(reply, Verified)
    assert isinstance(reply.evidence.outcome, TargetDraws)
    return reply.evidence.outcome.tokens


def failure(replies: list[RoleReply]) -> SpecdecError:
    (reply,) = replies
    assert isinstance(reply, Failed)
    return reply.error
