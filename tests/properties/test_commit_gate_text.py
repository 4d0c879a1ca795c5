"""The text of a generation is that of plain decoding, cut where a slow reading of the rules cuts it, however rounds group tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_core.params import SamplingParams
from specdec_core.session.commit_gate import GateRules, GateState, admit
from specdec_core.session.events import RequestDraft, TargetOpened
from specdec_core.session.phases import Phase
from specdec_core.types import FinishReason
from tests.support.sessions import Script, opening, spec_of

if TYPE_CHECKING:
    from collections.abc import Sequence

PROMPT = (32,)
STOP_TOKEN = 0
PIECES = ["a", "b", "ab", "é", "€", "\x00"]  # a small alphabet, so that stop strings occur
OUTPUTS = st.lists(st.sampled_from(PIECES) | st.just("\udcff"), min_size=1, max_size=14).map(
    lambda pieces: "".join(pieces).encode("utf-8", "surrogateescape")
)
STOPS = st.lists(st.text("abé€", min_size=1, max_size=4), max_size=3)


def utf8(tokens: Sequence[int]) -> str:
    return bytes(tokens).decode("utf-8", "replace")


@st.composite
def rules(draw: st.DrawFn) -> SamplingParams:
    max_tokens = draw(st.integers(1, 20))
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=draw(st.integers(0, max_tokens)),
        stop=tuple(draw(STOPS)),
        stop_token_ids=(STOP_TOKEN,),
        include_stop_str_in_output=draw(st.booleans()),
    )


def visible(output: Sequence[int], *, is_over: bool) -> str:
    """The text of all characters known to be whole; of everything, at the end."""
    while output and not is_over and utf8(output).endswith("\ufffd"):
        output = output[:-1]
    return utf8(output)


def slow_cut(output: bytes, params: SamplingParams) -> tuple[str, int, FinishReason | None]:
    """(text, output tokens, why it ended) by reading the whole text again behind every token."""
    before = ""
    for count in range(1, len(output) + 1):
        stopped = output[count - 1] == STOP_TOKEN
        shown = count - (stopped and not params.include_stop_str_in_output)
        is_over = stopped or count == params.max_tokens
        text = visible(output[:shown], is_over=is_over)
        ends = [
            (end, end - len(stop))
            for stop in params.stop
            for end in range(len(before) + 1, len(text) + 1)
            if text[:end].endswith(stop)
        ]
        if ends and count >= params.min_tokens:
            end, start = min(ends)
            kept = end if params.include_stop_str_in_output else start
            return text[:kept], count, FinishReason.STOP
        if is_over:
            return text, count, FinishReason.STOP if stopped else FinishReason.LENGTH
        before = text
    return before, len(output), None


def slow_held(text: str, stops: tuple[str, ...]) -> int:
    """How many characters at the end of ``text`` may be the beginning of a stop string."""
    return max(
        (size for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size])),
        default=0,
    )


@settings(max_examples=400, deadline=None)
@given(output=OUTPUTS, params=rules())
def test_the_stream_is_the_whole_text_cut_by_a_slow_reading(
    output: bytes, params: SamplingParams
) -> None:
    text, count, finish = slow_cut(output, params)
    gate = GateRules(params, params.max_tokens, utf8)
    state, tokens, streamed = GateState.after_prompt(len(PROMPT)), list(PROMPT), ""

    for index, token in enumerate(output[:count], start=1):
        tokens.append(token)
        admission = admit(state, tokens, gate)
        state = admission.state
        streamed += admission.text
        if index < count or finish is None:
            whole = visible(output[:index], is_over=False)
            assert streamed == whole[: len(whole) - slow_held(whole, params.stop)]
            assert admission.finish is None

    assert admission.finish is finish
    assert streamed + state.held_text == text


@settings(max_examples=200, deadline=None)
@given(output=OUTPUTS, params=rules(), sizes=st.lists(st.integers(0, 5), min_size=40, max_size=40))
def test_the_text_does_not_depend_on_how_rounds_group_the_tokens(
    output: bytes, params: SamplingParams, sizes: list[int]
) -> None:
    text, count, finish = slow_cut(output, params)
    spec = spec_of(
        params,
        prompt=PROMPT,
        vocab_size=256,
        max_context=len(PROMPT) + params.max_tokens,
        max_draft_tokens=5,
        decode=utf8,
    )
    script = opening(spec)
    script.feed(TargetOpened(1))

    draw_all(script, output, sizes)

    assert script.state.finish is finish
    assert script.text + script.state.gate.held_text == text
    assert script.state.output == tuple(output[:count])


def draw_all(script: Script, output: bytes, sizes: list[int]) -> None:
    """Run rounds whose drafts are right and as long as ``sizes`` says, until ``output`` is used up or the session ends."""
    while script.phase is not Phase.FINISHED and script.state.num_output_tokens < len(output):
        done = script.state.num_output_tokens
        if script.phase is Phase.DRAFTING:
            room = min(sizes.pop(), len(output) - done - 1, wanted(script))
            script.propose(*output[done : done + room])
        draft = script.state.draft
        assert draft
        script.verify(*output[done : done + draft.num_draft_tokens + 1])


def wanted(script: Script) -> int:
    """Draft tokens that the last request asked for."""
    (request,) = (effect for effect in script.effects if isinstance(effect, RequestDraft))
    return request.message.num_draft_tokens
