"""The commit gate: what each single token completes, holds back or ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec_core.params import SamplingParams
from specdec_core.session.commit_gate import GateRules, GateState, admit
from specdec_core.types import FinishReason
from tests.support.generation import letters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdec_core.session.commit_gate import TextDecoder

LENGTH, STOP = FinishReason.LENGTH, FinishReason.STOP
PROMPT = (15, 16)  # "pq"
WORDS = ("ab", "cde", "f", "xyab", "e")


def utf8(tokens: Sequence[int]) -> str:
    return bytes(tokens).decode("utf-8", "replace")


def words(tokens: Sequence[int]) -> str:
    return "".join(WORDS[token] for token in tokens)


def texts(
    output: Sequence[int],
    params: SamplingParams | None = None,
    *,
    decode: TextDecoder = letters,
    prompt: tuple[int, ...] = PROMPT,
) -> tuple[list[str], FinishReason | None]:
    """The text each token releases, up to the one that ends the generation, and why it ended."""
    params = params or SamplingParams()
    rules = GateRules(params, params.max_tokens, decode)
    state, tokens, released = GateState.after_prompt(len(prompt)), list(prompt), []
    for token in output:
        tokens.append(token)
        admission = admit(state, tokens, rules)
        state = admission.state
        released.append(admission.text)
        if admission.finish:
            return released, admission.finish
    return released, None


def test_each_token_releases_its_own_text() -> None:
    assert texts((0, 1, 2)) == (["a", "b", "c"], None)


def test_the_prompt_is_never_repeated() -> None:
    assert texts((0,), prompt=(7, 8, 9, 10, 11, 12, 13, 14)) == (["a"], None)


def test_a_leading_space_depends_on_the_prompt_before_it() -> None:
    def strips_at_the_start(tokens: Sequence[int]) -> str:
        return "".join(f" {token}" for token in tokens).lstrip()

    assert texts((3, 4), decode=strips_at_the_start) == ([" 3", " 4"], None)


def test_a_hidden_stop_token_ends_without_text() -> None:
    assert texts((0, 5, 1), SamplingParams(stop_token_ids=(5,))) == (["a", ""], STOP)


def test_a_shown_stop_token_ends_with_its_text() -> None:
    params = SamplingParams(stop_token_ids=(5,), include_stop_str_in_output=True)
    assert texts((0, 5, 1), params) == (["a", "f"], STOP)


def test_a_stop_token_that_is_the_last_allowed_is_a_stop() -> None:
    params = SamplingParams(stop_token_ids=(5,), max_tokens=2)
    assert texts((0, 5), params) == (["a", ""], STOP)


def test_the_last_allowed_token_ends_by_length() -> None:
    assert texts((0, 1, 2), SamplingParams(max_tokens=2)) == (["a", "b"], LENGTH)


def test_a_stop_string_across_tokens_is_held_until_it_is_whole() -> None:
    assert texts((0, 1, 2, 3), SamplingParams(stop=("bcd",))) == (["a", "", "", ""], STOP)


def test_a_held_prefix_is_released_as_soon_as_it_cannot_become_a_stop_string() -> None:
    assert texts((1, 2, 4, 1), SamplingParams(stop=("bcd",))) == (["", "", "bce", ""], None)


def test_only_the_part_that_may_still_become_a_stop_string_stays_held() -> None:
    assert texts((0, 0, 0, 1), SamplingParams(stop=("aab",))) == (["", "", "a", ""], STOP)


def test_a_stop_string_inside_one_token_cuts_its_text() -> None:
    assert texts((0, 1, 2), SamplingParams(stop=("d",)), decode=words, prompt=(2,)) == (
        ["ab", "c"],
        STOP,
    )


def test_a_stop_string_may_begin_in_mid_token() -> None:
    assert texts((0, 1), SamplingParams(stop=("bc",)), decode=words, prompt=(2,)) == (
        ["a", ""],
        STOP,
    )


def test_a_shown_stop_string_is_delivered_but_nothing_behind_it() -> None:
    params = SamplingParams(stop=("bcd",), include_stop_str_in_output=True)
    assert texts((0, 1), params, decode=words, prompt=(2,)) == (["a", "bcd"], STOP)


def test_of_two_stop_strings_in_one_token_the_one_completed_first_counts() -> None:
    assert texts((3,), SamplingParams(stop=("yab", "x")), decode=words, prompt=(2,)) == ([""], STOP)
    assert texts((3,), SamplingParams(stop=("ab", "y")), decode=words, prompt=(2,)) == (["x"], STOP)
    assert texts((3,), SamplingParams(stop=("xyab", "ya")), decode=words, prompt=(2,)) == (
        ["x"],
        STOP,
    )


def test_of_two_stop_strings_completed_together_the_longer_is_cut() -> None:
    assert texts((0, 1, 2), SamplingParams(stop=("c", "bc"))) == (["a", "", ""], STOP)


def test_a_stop_string_inside_another_that_is_held_still_counts() -> None:
    assert texts((0, 1, 2), SamplingParams(stop=("abcd", "bc"))) == (["", "", "a"], STOP)


def test_min_tokens_lets_an_early_stop_string_pass() -> None:
    params = SamplingParams(stop=("b",), min_tokens=3)
    assert texts((1, 0, 1, 0), params) == (["b", "a", ""], STOP)


def test_a_stop_string_completed_at_min_tokens_counts_from_its_beginning() -> None:
    params = SamplingParams(stop=("abc",), min_tokens=3)
    assert texts((0, 1, 2), params) == (["", "", ""], STOP)


def test_a_stop_string_passed_before_min_tokens_does_not_count_later_while_held() -> None:
    params = SamplingParams(stop=("ab", "abx"), min_tokens=3)
    assert texts((0, 1, 2, 3), params) == (["", "", "abc", "d"], None)


def test_a_stop_string_completed_by_the_last_allowed_token_is_a_stop() -> None:
    assert texts((0, 1), SamplingParams(stop=("ab",), max_tokens=2)) == (["", ""], STOP)


def test_a_held_prefix_is_delivered_when_the_length_ends_it() -> None:
    assert texts((0, 1), SamplingParams(stop=("abc",), max_tokens=2)) == (["", "ab"], LENGTH)


def test_a_held_prefix_is_delivered_when_a_stop_token_ends_it() -> None:
    params = SamplingParams(stop=("abc",), stop_token_ids=(5,))
    assert texts((0, 1, 5), params) == (["", "", "ab"], STOP)


def test_a_shown_stop_token_may_complete_a_stop_string() -> None:
    params = SamplingParams(
        stop=("bf",), stop_token_ids=(5,), include_stop_str_in_output=True, max_tokens=9
    )
    assert texts((0, 1, 5), params) == (["a", "", "bf"], STOP)


def test_a_character_over_several_tokens_comes_whole() -> None:
    assert texts("aé€😀z".encode(), decode=utf8, prompt=(32,)) == (
        ["a", "", "é", "", "", "€", "", "", "", "😀", "z"],
        None,
    )


def test_an_invalid_byte_is_delivered_once_something_valid_follows() -> None:
    assert texts(b"a\xffb", decode=utf8, prompt=(32,)) == (["a", "", "\ufffdb"], None)


def test_an_incomplete_character_is_delivered_when_the_length_ends_it() -> None:
    params = SamplingParams(max_tokens=3)
    assert texts(b"a\xe2\x82\xac", params, decode=utf8, prompt=(32,)) == (
        ["a", "", "\ufffd"],
        LENGTH,
    )


def test_an_incomplete_character_is_delivered_when_a_stop_token_ends_it() -> None:
    params = SamplingParams(stop_token_ids=(0,))
    assert texts(b"a\xe2\x82\x00", params, decode=utf8, prompt=(32,)) == (
        ["a", "", "", "\ufffd"],
        STOP,
    )


def test_a_stop_string_may_end_in_a_split_character() -> None:
    params = SamplingParams(stop=("b€",))
    assert texts("ab€c".encode(), params, decode=utf8, prompt=(32,)) == (
        ["a", "", "", "", ""],
        STOP,
    )
