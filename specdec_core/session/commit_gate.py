"""The commit gate: the only place where tokens join a session, one at a time, as plain decoding would add them.

End-of-sequence, stop tokens, stop strings, length, text and UTF-8 each see a single token per call, so that nothing can depend on
how many tokens a round happened to verify.

Text is decoded in a sliding window: the window's text with the new token minus its text without it. A window whose text ends in
U+FFFD is an incomplete character and is held; so is a suffix that may yet become a stop string.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from specdec_core.types import FinishReason

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specdec_core.params import SamplingParams

    TextDecoder = Callable[[Sequence[int]], str]

_REPLACEMENT = "\ufffd"
_PROMPT_WINDOW = 6  # prompt tokens decoded along, so that the first word keeps its leading space


@dataclass(frozen=True, slots=True)
class GateRules:
    """What ends a generation and how its tokens read."""

    params: SamplingParams
    max_output_tokens: int  # of the request and of the context, whichever is less
    decode: TextDecoder


@dataclass(frozen=True, slots=True)
class GateState:
    """Where the gate stands. Offsets count tokens of the session, prompt included."""

    num_output_tokens: int
    window_start: int
    window_read: int  # tokens of the window whose text is already out of it
    held_text: str = ""  # decoded, but perhaps the beginning of a stop string

    @classmethod
    def after_prompt(cls, prompt_len: int) -> GateState:
        return cls(0, max(0, prompt_len - _PROMPT_WINDOW), prompt_len)


@dataclass(frozen=True, slots=True)
class Admission:
    """What one token changed."""

    state: GateState
    text: str  # now safe to deliver
    finish: FinishReason | None


def admit(state: GateState, tokens: Sequence[int], rules: GateRules) -> Admission:
    """Let the last of ``tokens`` (prompt and output so far) pass and say what it completes."""
    params = rules.params
    state = replace(state, num_output_tokens=state.num_output_tokens + 1)
    if tokens[-1] in params.stop_token_ids:
        hidden = 0 if params.include_stop_str_in_output else 1
        return _close(state, tokens[: len(tokens) - hidden], rules, FinishReason.STOP)
    if state.num_output_tokens >= rules.max_output_tokens:
        return _close(state, tokens, rules, FinishReason.LENGTH)
    state, text = _read_window(state, tokens, rules.decode)
    return _scan(state, text, rules, finish=None)


def _close(
    state: GateState, tokens: Sequence[int], rules: GateRules, finish: FinishReason
) -> Admission:
    """Deliver everything that was held, incomplete characters too; a stop string in it still counts."""
    window = rules.decode(tokens[state.window_start :])
    known = rules.decode(tokens[state.window_start : state.window_read])
    return _scan(state, window[len(known) :], rules, finish=finish)


def _read_window(
    state: GateState, tokens: Sequence[int], decode: TextDecoder
) -> tuple[GateState, str]:
    window = decode(tokens[state.window_start :])
    if window.endswith(_REPLACEMENT):
        return state, ""
    known = decode(tokens[state.window_start : state.window_read])
    moved = replace(state, window_start=state.window_read, window_read=len(tokens))
    return moved, window[len(known) :]


def _scan(state: GateState, text: str, rules: GateRules, finish: FinishReason | None) -> Admission:
    """Cut held and new text at the first stop string that the new one completes, else hold back what may become one."""
    stops, pending = rules.params.stop, state.held_text + text
    if state.num_output_tokens >= rules.params.min_tokens and (
        found := _first_stop(pending, stops, len(state.held_text))
    ):
        start, end = found
        kept = end if rules.params.include_stop_str_in_output else start
        return Admission(replace(state, held_text=""), pending[:kept], FinishReason.STOP)
    held = 0 if finish else _held_suffix(pending, stops)
    safe = len(pending) - held
    return Admission(replace(state, held_text=pending[safe:]), pending[:safe], finish)


def _first_stop(text: str, stops: tuple[str, ...], num_seen: int) -> tuple[int, int] | None:
    """(start, end) of the stop string completed earliest behind ``num_seen`` characters; of two completed together, the longer."""
    starts = [(stop, text.find(stop, max(0, num_seen + 1 - len(stop)))) for stop in stops]
    spans = [(start, start + len(stop)) for stop, start in starts if start >= 0]
    return min(spans, key=lambda span: (span[1], span[0]), default=None)


def _held_suffix(text: str, stops: tuple[str, ...]) -> int:
    """Length of the longest suffix of ``text`` that begins some stop string without completing it."""
    longest = max((len(stop) - 1 for stop in stops), default=0)
    for length in range(min(longest, len(text)), 0, -1):
        if any(len(stop) > length and stop.startswith(text[-length:]) for stop in stops):
            return length
    return 0
