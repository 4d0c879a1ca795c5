"""One round: propose -> verify -> commit. ``commit`` alone adds tokens to a session."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from specdec_core.draft_length.base import RoundObservation, room
from specdec_core.errors import InvariantError, ProtocolError
from specdec_core.messages import Close, Extend, Propose
from specdec_core.session.commit_gate import admit
from specdec_core.session.events import (
    Emit,
    EmitPrompt,
    Finish,
    Release,
    RequestDraft,
    RequestVerify,
)
from specdec_core.session.phases import Phase
from specdec_core.stats import FallbackReason
from specdec_core.types import CommittedToken, DraftBlock, OneHot, TokenKind
from specdec_core.verification.decide import decide

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdec_core.errors import SpecdecError
    from specdec_core.session.events import Effect
    from specdec_core.session.state import SessionState
    from specdec_core.types import (
        DraftLogprobs,
        Evidence,
        FinishReason,
        TokenLogprobs,
        Verdict,
    )

Step = tuple["SessionState", tuple["Effect", ...]]


def propose(state: SessionState) -> Step:
    """Ask for a draft, or verify at once where none is wanted or to be had."""
    spec = state.spec
    wanted, policy_state = spec.draft_length.choose(state.draft_length, state.last_round)
    state = replace(state, draft_length=policy_state, draft=None)
    gamma = draft_room(state, wanted)
    if gamma == 0:
        return verify(state, _empty_draft(state))
    if not state.drafter.is_open:
        return verify_without_draft(state, FallbackReason.DRAFTER_UNAVAILABLE)
    state, request = catch_up_drafter(state, num_draft_tokens=gamma)
    return replace(state, phase=Phase.DRAFTING), (request,)


def verify(state: SessionState, draft: DraftBlock) -> Step:
    """Send the committed tokens that the target's KV lacks, and the draft behind them."""
    held = state.target.synced_len
    message = Extend(state.spec.session_id, state.target.epoch, held, state.tokens[held:], draft)
    return replace(state, phase=Phase.VERIFYING, draft=draft), (RequestVerify(message),)


def commit(state: SessionState, evidence: Evidence) -> Step:
    """Decide, let the verified tokens through the gate one by one, then begin the next round or end."""
    if state.draft is None:
        raise InvariantError(f"session {state.spec.session_id} has evidence but no draft")
    _check_told(state, evidence)
    verdict = decide(state.draft, evidence, state.spec.noise)
    of_prompt = (EmitPrompt(evidence.prompt_logprobs),) if awaits_prompt_logprobs(state) else ()
    verified = _verified(state.draft, verdict, evidence.logprobs)
    state, emit, finish = _admit_all(state, state.draft, verified)
    following, effects = end(state, finish) if finish else propose(state)
    return following, (*of_prompt, emit, *effects)


def awaits_prompt_logprobs(state: SessionState) -> bool:
    """Whether the prompt's log-probabilities are asked for and not yet delivered: they come with the first answer."""
    return state.spec.params.prompt_logprobs is not None and state.num_output_tokens == 0


def _check_told(state: SessionState, evidence: Evidence) -> None:
    """Refuse evidence without the log-probabilities that the session asked for."""
    if state.spec.params.logprobs is not None and evidence.logprobs is None:
        raise ProtocolError("the evidence lacks log-probabilities")
    expected, told = len(state.spec.prompt) - 1, len(evidence.prompt_logprobs)
    if awaits_prompt_logprobs(state) and told != expected:
        raise ProtocolError(f"the evidence tells of {told} prompt tokens instead of {expected}")


def _verified(
    draft: DraftBlock, verdict: Verdict, logprobs: DraftLogprobs | None
) -> list[CommittedToken]:
    """The tokens of a round before any cut."""
    num_accepted = verdict.num_accepted
    kinds = [TokenKind.ACCEPTED] * num_accepted + [verdict.kind]
    tokens = [*draft.tokens[:num_accepted], verdict.next_token]
    told: list[TokenLogprobs | None] = [None] * len(tokens)
    if logprobs is not None:
        told = [*map(logprobs.of_draft, range(num_accepted)), logprobs.of_emitted(num_accepted)]
    return list(map(CommittedToken, tokens, kinds, told))


def _admit_all(
    state: SessionState, draft: DraftBlock, verified: Sequence[CommittedToken]
) -> tuple[SessionState, Emit, FinishReason | None]:
    """Let the tokens of a round through the gate until one ends the generation; the rest leaves no trace."""
    tokens, gate, finish = list(state.tokens), state.gate, None
    committed: list[CommittedToken] = []
    text = ""
    for each in verified:
        tokens.append(each.token)
        committed.append(each)
        admission = admit(gate, tokens, state.spec.gate_rules)
        gate, finish = admission.state, admission.finish
        text += admission.text
        if finish:
            break
    num_accepted = len(verified) - 1
    state = replace(
        state,
        tokens=tuple(tokens),
        gate=gate,
        last_round=RoundObservation(draft.num_draft_tokens, num_accepted),
        stats=state.stats.with_round(draft.num_draft_tokens, num_accepted, len(committed)),
        target=replace(state.target, synced_len=len(tokens) - 1),
        target_losses=0,
    )
    return state, Emit(tuple(committed), text), finish


def verify_without_draft(state: SessionState, reason: FallbackReason) -> Step:
    """A plain round in place of a speculative one; counted, so that nobody wonders where the drafts went."""
    return verify(replace(state, stats=state.stats.with_fallback(reason)), _empty_draft(state))


def catch_up_drafter(
    state: SessionState, *, num_draft_tokens: int
) -> tuple[SessionState, RequestDraft]:
    """Tell the drafter what it lacks of the committed tokens, and how many to guess."""
    known = state.drafter.synced_len
    message = Propose(
        state.spec.session_id, state.drafter.epoch, known, state.tokens[known:], num_draft_tokens
    )
    drafter = replace(state.drafter, synced_len=len(state.tokens))
    return replace(state, drafter=drafter), RequestDraft(message)


def draft_room(state: SessionState, wanted: int) -> int:
    """``wanted`` draft tokens clipped to what request and context still allow."""
    spec = state.spec
    return room(
        min(wanted, spec.max_draft_tokens),
        output_left=spec.gate_rules.max_output_tokens - state.num_output_tokens,
        context_left=spec.max_context - len(state.tokens),
    )


def end(state: SessionState, reason: FinishReason, error: SpecdecError | None = None) -> Step:
    """Free both peers and finish."""
    session_id = state.spec.session_id
    release = Release(
        target=Close(session_id, state.target.epoch) if state.target.is_open else None,
        drafter=Close(session_id, state.drafter.epoch) if state.drafter.is_open else None,
    )
    state = replace(state, phase=Phase.FINISHED, finish=reason, draft=None)
    return state, (release, Finish(reason, error))


def _empty_draft(state: SessionState) -> DraftBlock:
    return DraftBlock(len(state.tokens), state.drafter.epoch, (), OneHot())
