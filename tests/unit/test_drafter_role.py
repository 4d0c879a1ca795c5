"""The drafter role: keeps what it is told is committed, batches those that wait, and never lets one session stop another."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specdec_core.drafters.base import Draft
from specdec_core.errors import (
    InvalidArgumentError,
    OverloadedError,
    SpecdecError,
    StaleMessageError,
)
from specdec_core.messages import Close, Failed, Open, Propose, Proposed
from specdec_core.params import SamplingParams
from specdec_core.roles.drafter import DrafterRole
from specdec_core.types import AcceptanceRule, DraftBlock, NoiseKey, OneHot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdec_core.drafters.base import DraftContext
    from specdec_core.messages import RoleReply


@dataclass
class EchoDrafter:
    """Proposes the last token again, and breaks on sessions whose last token is 13."""

    seen: list[list[tuple[str, tuple[int, ...]]]] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)

    def propose(self, contexts: Sequence[DraftContext]) -> list[Draft]:
        self.seen.append([(each.session_id, tuple(each.tokens)) for each in contexts])
        if any(context.tokens[-1] == 13 for context in contexts):
            raise InvalidArgumentError("tokens", "are unlucky")
        return [Draft((each.tokens[-1],) * each.num_draft_tokens, OneHot()) for each in contexts]

    def forget(self, session_id: str) -> None:
        self.forgotten.append(session_id)


def role_on(drafter: EchoDrafter, max_sessions: int = 8) -> DrafterRole:
    return DrafterRole(drafter, max_sessions=max_sessions)


def opened(name: str, epoch: int = 1) -> Open:
    return Open(name, epoch, 3, SamplingParams(), AcceptanceRule.COUPLED, NoiseKey(7))


def block(base_len: int, *tokens: int, epoch: int = 1) -> DraftBlock:
    return DraftBlock(base_len, epoch, tokens, OneHot())


def failure(replies: list[RoleReply]) -> SpecdecError:
    (reply,) = replies
    assert isinstance(reply, Failed)
    return reply.error


def test_a_draft_follows_all_that_is_committed() -> None:
    role = role_on(EchoDrafter())
    role.submit(opened("s", epoch=3))
    role.submit(Propose("s", 3, 0, (1, 2, 3), 2))

    assert role.step() == [Proposed("s", block(3, 3, 3, epoch=3))]
    assert not role.has_work


def test_catching_up_is_done_but_not_answered() -> None:
    drafter = EchoDrafter()
    role = role_on(drafter)
    role.submit(opened("s"))
    role.submit(Propose("s", 1, 0, (1, 2, 3), 0))

    assert role.step() == []
    assert drafter.seen == [[("s", (1, 2, 3))]]


def test_a_shorter_base_len_rolls_the_session_back() -> None:
    drafter = EchoDrafter()
    role = role_on(drafter)
    role.submit(opened("s"))
    role.submit(Propose("s", 1, 0, (1, 2, 3, 4), 0))
    role.submit(Propose("s", 1, 2, (9,), 1))

    assert role.step() == [Proposed("s", block(3, 9))]
    assert drafter.seen == [[("s", (1, 2, 9))]]


def test_a_repeated_propose_gives_the_same_draft() -> None:
    role = role_on(EchoDrafter())
    role.submit(opened("s"))
    message = Propose("s", 1, 0, (1, 2), 2)
    role.submit(message)
    first = role.step()

    role.submit(message)

    assert role.step() == first


def test_all_sessions_that_wait_share_one_step() -> None:
    drafter = EchoDrafter()
    role = role_on(drafter)
    for name, token in (("a", 4), ("b", 5)):
        role.submit(opened(name))
        role.submit(Propose(name, 1, 0, (token,), 1))

    assert role.step() == [Proposed("a", block(1, 4)), Proposed("b", block(1, 5))]
    assert len(drafter.seen) == 1


def test_nothing_waiting_does_not_call_the_drafter() -> None:
    drafter = EchoDrafter()

    assert role_on(drafter).step() == []
    assert drafter.seen == []


def test_a_session_that_breaks_the_drafter_alone_goes_without_a_draft() -> None:
    role = role_on(EchoDrafter())
    for name, token in (("a", 4), ("unlucky", 13), ("b", 5)):
        role.submit(opened(name))
        role.submit(Propose(name, 1, 0, (token,), 1))

    assert role.step() == [
        Proposed("a", block(1, 4)),
        Proposed("unlucky", block(1)),
        Proposed("b", block(1, 5)),
    ]
    assert role.num_sessions == 3


def test_another_epoch_is_stale() -> None:
    role = role_on(EchoDrafter())
    role.submit(opened("s", epoch=2))

    role.submit(Propose("s", 1, 0, (1,), 1))

    assert isinstance(failure(role.step()), StaleMessageError)
    assert role.num_sessions == 1


def test_a_gap_is_stale_and_closes_the_session() -> None:
    drafter = EchoDrafter()
    role = role_on(drafter)
    role.submit(opened("s"))
    role.submit(Propose("s", 1, 0, (1,), 1))

    role.submit(Propose("s", 1, 2, (3,), 1))

    assert isinstance(failure(role.step()), StaleMessageError)
    assert (role.num_sessions, drafter.seen, drafter.forgotten) == (0, [], ["s"])


def test_more_sessions_than_allowed_are_refused() -> None:
    role = role_on(EchoDrafter(), max_sessions=1)
    role.submit(opened("first"))

    role.submit(opened("second"))

    assert isinstance(failure(role.step()), OverloadedError)
    assert role.num_sessions == 1


def test_reopening_under_a_higher_epoch_drops_what_was_held() -> None:
    drafter = EchoDrafter()
    role = role_on(drafter)
    role.submit(opened("s"))
    role.submit(Propose("s", 1, 0, (1, 2), 1))

    role.submit(opened("s", epoch=2))

    assert not role.has_work
    assert drafter.forgotten == ["s"]
    role.submit(Propose("s", 2, 0, (7,), 1))
    assert role.step() == [Proposed("s", block(1, 7, epoch=2))]


def test_an_open_of_an_older_epoch_does_not_disturb_the_session() -> None:
    role = role_on(EchoDrafter())
    role.submit(opened("s", epoch=2))
    role.submit(Propose("s", 2, 0, (7,), 1))

    role.submit(opened("s", epoch=1))

    failed, answer = role.step()
    assert isinstance(failed, Failed)
    assert (failed.epoch, answer) == (1, Proposed("s", block(1, 7, epoch=2)))


def test_closing_forgets_a_session_that_waits() -> None:
    drafter = EchoDrafter()
    role = role_on(drafter)
    role.submit(opened("s"))
    role.submit(Propose("s", 1, 0, (1,), 1))

    for _ in range(2):
        role.submit(Close("s", 1))

    assert (role.has_work, role.num_sessions, drafter.forgotten) == (False, 0, ["s"])
    assert role.step() == []


def test_closing_an_older_epoch_leaves_the_later_one() -> None:
    role = role_on(EchoDrafter())
    role.submit(opened("s", epoch=2))
    role.submit(Propose("s", 2, 0, (7,), 1))

    role.submit(Close("s", 1))

    assert role.step() == [Proposed("s", block(1, 7, epoch=2))]
