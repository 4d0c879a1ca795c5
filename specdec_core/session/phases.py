"""The transition table: what each input means in each phase, and which phases may follow."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from specdec_core.messages import Proposed, Verified
from specdec_core.session.events import (
    Abort,
    DrafterLost,
    DrafterOpened,
    DraftLate,
    TargetLost,
    TargetOpened,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdec_core.session.events import Input


class Phase(Enum):
    """Whom the session waits for."""

    OPENING = "opening"  # a target
    DRAFTING = "drafting"  # the drafter's block
    VERIFYING = "verifying"  # the target's evidence
    FINISHED = "finished"  # nobody


class Action(Enum):
    """What an input does; each has one handler in ``session.py``."""

    START_ROUNDS = "start_rounds"
    REPLACE_TARGET = "replace_target"
    ADOPT_DRAFTER = "adopt_drafter"
    REPLACE_DRAFTER = "replace_drafter"
    GO_ON_WITHOUT_DRAFTER = "go_on_without_drafter"
    GO_ON_WITHOUT_DRAFT = "go_on_without_draft"
    VERIFY = "verify"
    COMMIT = "commit"
    END = "end"
    COUNT_STALE = "count_stale"
    IGNORE = "ignore"
    REFUSE = "refuse"


_OPENING: Mapping[type[Input], Action] = {
    TargetOpened: Action.START_ROUNDS,
    TargetLost: Action.REPLACE_TARGET,
    DrafterOpened: Action.ADOPT_DRAFTER,
    DrafterLost: Action.REPLACE_DRAFTER,
    DraftLate: Action.COUNT_STALE,
    Proposed: Action.COUNT_STALE,
    Verified: Action.COUNT_STALE,
    Abort: Action.END,
}
_DRAFTING: Mapping[type[Input], Action] = {
    TargetOpened: Action.REFUSE,
    TargetLost: Action.REPLACE_TARGET,
    DrafterOpened: Action.REFUSE,
    DrafterLost: Action.GO_ON_WITHOUT_DRAFTER,
    DraftLate: Action.GO_ON_WITHOUT_DRAFT,
    Proposed: Action.VERIFY,
    Verified: Action.COUNT_STALE,
    Abort: Action.END,
}
_VERIFYING: Mapping[type[Input], Action] = {
    TargetOpened: Action.REFUSE,
    TargetLost: Action.REPLACE_TARGET,
    DrafterOpened: Action.ADOPT_DRAFTER,
    DrafterLost: Action.REPLACE_DRAFTER,
    DraftLate: Action.COUNT_STALE,
    Proposed: Action.COUNT_STALE,
    Verified: Action.COMMIT,
    Abort: Action.END,
}
_FINISHED: Mapping[type[Input], Action] = dict.fromkeys(_OPENING, Action.IGNORE)

TRANSITIONS: Mapping[tuple[Phase, type[Input]], Action] = {
    (phase, kind): action
    for phase, row in (
        (Phase.OPENING, _OPENING),
        (Phase.DRAFTING, _DRAFTING),
        (Phase.VERIFYING, _VERIFYING),
        (Phase.FINISHED, _FINISHED),
    )
    for kind, action in row.items()
}

# The phases an action may lead to besides staying where it was (a stamp that does not fit changes nothing).
NEXT_PHASES: Mapping[Action, frozenset[Phase]] = {
    Action.START_ROUNDS: frozenset({Phase.VERIFYING}),
    Action.REPLACE_TARGET: frozenset({Phase.OPENING, Phase.FINISHED}),
    Action.ADOPT_DRAFTER: frozenset(),
    Action.REPLACE_DRAFTER: frozenset(),
    Action.GO_ON_WITHOUT_DRAFTER: frozenset({Phase.VERIFYING}),
    Action.GO_ON_WITHOUT_DRAFT: frozenset({Phase.VERIFYING}),
    Action.VERIFY: frozenset({Phase.VERIFYING}),
    Action.COMMIT: frozenset({Phase.DRAFTING, Phase.VERIFYING, Phase.FINISHED}),
    Action.END: frozenset({Phase.FINISHED}),
    Action.COUNT_STALE: frozenset(),
    Action.IGNORE: frozenset(),
    Action.REFUSE: frozenset(),
}
