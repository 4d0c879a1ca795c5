"""The session machine: how a generation starts, and what each input makes of it.

``advance`` drops stale inputs, looks the action up in the transition table, runs its handler and checks where it led. Handlers are
pure; whoever runs the effects (``specdec_core.engine`` in process, the coordinator over gRPC) feeds the answers back in.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, assert_never

from specdec_core.draft_length.base import RoundObservation
from specdec_core.errors import ErrorCode, InvariantError, ProtocolError
from specdec_core.messages import Open, Proposed, Verified
from specdec_core.session.commit_gate import GateState
from specdec_core.session.events import (
    Abort,
    DrafterLost,
    DrafterOpened,
    DraftLate,
    OpenDrafter,
    OpenTarget,
    TargetLost,
    TargetOpened,
)
from specdec_core.session.phases import NEXT_PHASES, TRANSITIONS, Action, Phase
from specdec_core.session.round import (
    Step,
    awaits_prompt_logprobs,
    catch_up_drafter,
    commit,
    draft_room,
    end,
    verify,
    verify_without_draft,
)
from specdec_core.session.state import PeerView, SessionState
from specdec_core.stats import FallbackReason, SpeculationStats
from specdec_core.types import DraftBlock, FinishReason, OneHot, Sparse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from specdec_core.errors import SpecdecError
    from specdec_core.session.events import Effect, Input
    from specdec_core.session.state import SessionSpec

_MAX_TARGET_LOSSES = 3  # in a row without a committed token
# INTERNAL among them: a step that breaks fails every session in it, and the innocent ones must be able to go on elsewhere.
_REPLACEABLE = frozenset({ErrorCode.UNAVAILABLE, ErrorCode.STALE, ErrorCode.INTERNAL})


def start(spec: SessionSpec) -> Step:
    """A new session, waiting for its peers."""
    state = SessionState(
        spec=spec,
        phase=Phase.OPENING,
        tokens=spec.prompt,
        target=PeerView(epoch=1),
        drafter=PeerView(epoch=1),
        draft=None,
        gate=GateState.after_prompt(len(spec.prompt)),
        draft_length=spec.draft_length.initial_state(),
        last_round=RoundObservation(),
        stats=SpeculationStats(),
    )
    effects: tuple[Effect, ...] = (OpenTarget(_open(state, 1)),)
    if spec.max_draft_tokens:
        effects = (*effects, OpenDrafter(_open(state, 1)))
    return state, effects


def advance(state: SessionState, event: Input) -> Step:
    """React to one input.

    Raises:
        ProtocolError: if the driver sent what cannot happen in this phase; the state is unchanged.
    """
    action = TRANSITIONS[state.phase, type(event)]
    if action is not Action.IGNORE and _is_stale(state, event):
        action = Action.COUNT_STALE
    following, effects = _HANDLERS[action](state, event)
    if following.phase not in {state.phase, *NEXT_PHASES[action]}:
        raise InvariantError(
            f"{action.value} led from {state.phase.value} to {following.phase.value}"
        )
    return following, effects


def _is_stale(state: SessionState, event: Input) -> bool:
    """Whether the stamp (epoch, base_len) is not the one this session waits for."""
    target, drafter = state.target.epoch, (state.drafter.epoch, len(state.tokens))
    match event:
        case TargetOpened(epoch=epoch) | TargetLost(epoch=epoch):
            return epoch != target
        case DrafterOpened(epoch=epoch) | DrafterLost(epoch=epoch):
            return epoch != drafter[0]
        case DraftLate(epoch=epoch, base_len=base_len):
            return (epoch, base_len) != drafter
        case Proposed(block=block):
            return (block.epoch, block.base_len) != drafter
        case Verified(evidence=evidence):
            return (evidence.epoch, evidence.base_len) != (target, len(state.tokens))
        case Abort():
            return False
        case _ as unreachable:
            assert_never(unreachable)


def _start_rounds(state: SessionState, event: TargetOpened) -> Step:
    """The first round after an opening is plain: the target reads the tokens while the drafter does."""
    state = replace(state, target=PeerView(epoch=event.epoch, is_open=True))
    return verify(state, DraftBlock(len(state.tokens), state.drafter.epoch, (), OneHot()))


def _replace_target(state: SessionState, event: TargetLost) -> Step:
    losses = state.target_losses + 1
    hopeless = event.error.code not in _REPLACEABLE and not _may_blame_draft(state, event.error)
    state = replace(state, target=PeerView(epoch=event.epoch + 1), target_losses=losses, draft=None)
    if hopeless or losses > _MAX_TARGET_LOSSES:
        return end(state, FinishReason.ERROR, event.error)
    return replace(state, phase=Phase.OPENING), (OpenTarget(_open(state, state.target.epoch)),)


def _may_blame_draft(state: SessionState, error: SpecdecError) -> bool:
    """Whether the target may have refused what was only guessed; the plain round after reopening tells."""
    is_drafted = state.draft is not None and state.draft.num_draft_tokens > 0
    return is_drafted and error.code is ErrorCode.INVALID_ARGUMENT


def _adopt_drafter(state: SessionState, event: DrafterOpened) -> Step:
    """Let a new drafter read what is committed while the target works."""
    state = replace(state, drafter=PeerView(epoch=event.epoch, is_open=True))
    state, request = catch_up_drafter(state, num_draft_tokens=0)
    return state, (request,)


def _replace_drafter(state: SessionState, event: DrafterLost) -> Step:
    state = replace(state, drafter=PeerView(epoch=event.epoch + 1))
    return state, (OpenDrafter(_open(state, state.drafter.epoch)),)


def _go_on_without_drafter(state: SessionState, event: DrafterLost) -> Step:
    state, reopen = _replace_drafter(state, event)
    state, effects = verify_without_draft(state, FallbackReason.DRAFTER_LOST)
    return state, (*effects, *reopen)


def _go_on_without_draft(state: SessionState, _event: DraftLate) -> Step:
    return verify_without_draft(state, FallbackReason.DEADLINE)


def _verify_drafted(state: SessionState, event: Proposed) -> Step:
    block = event.block
    if not _is_sound(block, state):
        return verify_without_draft(state, FallbackReason.INVALID_DRAFT)
    if not block.tokens:
        return verify_without_draft(state, FallbackReason.NO_DRAFT)
    return verify(state, block)


def _is_sound(block: DraftBlock, state: SessionState) -> bool:
    """Whether a target can take the draft: not too long, in the vocabulary, and a law for each token of a sparse one."""
    if block.num_draft_tokens > draft_room(state, state.spec.max_draft_tokens):
        return False
    if isinstance(block.proposal, Sparse):
        ids, probs = (
            [len(row) for row in rows] for rows in (block.proposal.support, block.proposal.probs)
        )
        if ids != probs or len(ids) != block.num_draft_tokens:
            return False
    return all(0 <= token < state.spec.vocab_size for token in block.tokens)


def _commit(state: SessionState, event: Verified) -> Step:
    return commit(state, event.evidence)


def _end(state: SessionState, event: Abort) -> Step:
    return end(state, event.reason, event.error)


def _count_stale(state: SessionState, _event: Input) -> Step:
    return replace(state, stats=state.stats.with_stale()), ()


def _ignore(state: SessionState, _event: Input) -> Step:
    return state, ()


def _refuse(state: SessionState, event: Input) -> Step:
    raise ProtocolError(f"{type(event).__name__} cannot happen while {state.phase.value}")


def _open(state: SessionState, epoch: int) -> Open:
    spec, params = state.spec, state.spec.params
    if not awaits_prompt_logprobs(state):
        params = replace(params, prompt_logprobs=None)
    return Open(spec.session_id, epoch, len(spec.prompt), params, spec.rule, spec.noise)


# The table pairs each action with the input types it is for, which the type of this mapping cannot say.
_HANDLERS: Mapping[Action, Callable[[SessionState, Any], Step]] = {
    Action.START_ROUNDS: _start_rounds,
    Action.REPLACE_TARGET: _replace_target,
    Action.ADOPT_DRAFTER: _adopt_drafter,
    Action.REPLACE_DRAFTER: _replace_drafter,
    Action.GO_ON_WITHOUT_DRAFTER: _go_on_without_drafter,
    Action.GO_ON_WITHOUT_DRAFT: _go_on_without_draft,
    Action.VERIFY: _verify_drafted,
    Action.COMMIT: _commit,
    Action.END: _end,
    Action.COUNT_STALE: _count_stale,
    Action.IGNORE: _ignore,
    Action.REFUSE: _refuse,
}
