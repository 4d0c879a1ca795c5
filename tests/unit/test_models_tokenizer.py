"""Text in and out, chat prompts, and vocabularies that must agree."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from specdec_core.errors import (
    InvalidArgumentError,
    UnsupportedModelError,
    VocabularyMismatchError,
)
from specdec_core.models.tokenizer import Tokenizer, check_same_vocabulary, load_tokenizer
from tests.support.tiny_models import CHARACTERS, SPECIAL_TOKENS, save_tiny_tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    save_tiny_tokenizer(tmp_path)
    return load_tokenizer(tmp_path)


class Words:
    """As much of transformers' tokenizers as comparing vocabularies needs."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self._tokens = tokens

    def __len__(self) -> int:
        return len(self._tokens)

    def get_vocab(self) -> dict[str, int]:
        return {token: index for index, token in enumerate(self._tokens)}


def words(*tokens: str) -> Tokenizer:
    return Tokenizer(Words(tokens), ())


def test_decoding_gives_back_what_was_encoded(tokenizer: Tokenizer) -> None:
    text = "a  b , c !\n"
    assert tokenizer.vocab_size == len(SPECIAL_TOKENS) + len(CHARACTERS)
    assert tokenizer.encode("abc") == (6, 7, 8)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_tokens_are_left_out_unless_wanted(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode((6, 1)) == "a"
    assert tokenizer.decode((6, 1), skip_special_tokens=False) == "a<eos>"


def test_ends_of_sequence_come_from_every_file(tmp_path: Path) -> None:
    save_tiny_tokenizer(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 4]}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": 7}))
    assert load_tokenizer(tmp_path).eos_token_ids == (1, 4, 5, 7)


def test_a_chat_prompt_ends_where_the_answer_begins(tokenizer: Tokenizer) -> None:
    messages = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}]
    rendered = "<system>be kind\n<user>hi\n<assistant>"
    assert tokenizer.render_chat(messages) == rendered
    assert tokenizer.decode(tokenizer.encode_chat(messages), skip_special_tokens=False) == rendered
    assert tokenizer.encode_chat(messages)[0] == SPECIAL_TOKENS.index("<system>")


def test_a_model_without_chat_template_refuses_messages(tmp_path: Path) -> None:
    save_tiny_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(InvalidArgumentError, match="no chat template"):
        load_tokenizer(tmp_path).render_chat([{"role": "user", "content": "hi"}])


def test_messages_the_template_refuses_are_the_clients_error(tmp_path: Path) -> None:
    save_tiny_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(InvalidArgumentError, match="roles must alternate"):
        load_tokenizer(tmp_path).render_chat([{"role": "user", "content": "hi"}])


def test_a_folder_without_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(UnsupportedModelError, match="no tokenizer in"):
        load_tokenizer(tmp_path)


def test_the_fingerprint_is_of_the_vocabulary(tmp_path: Path) -> None:
    for name, characters in (("one", "abc"), ("same", "abc"), ("other", "acb")):
        (tmp_path / name).mkdir()
        save_tiny_tokenizer(tmp_path / name, characters=characters)
    one, same, other = (load_tokenizer(tmp_path / name) for name in ("one", "same", "other"))
    assert one.fingerprint == same.fingerprint
    assert one.fingerprint != other.fingerprint


def test_equal_vocabularies_pass() -> None:
    check_same_vocabulary(words("a", "b"), words("a", "b"))


def test_padding_beyond_the_shorter_vocabulary_passes() -> None:
    check_same_vocabulary(words("a", "b"), words("a", "b", "<pad1>", "<|reserved_2|>"))
    check_same_vocabulary(words("a", "b", "[unused7]"), words("a", "b"))


@pytest.mark.parametrize(
    ("target", "drafter", "token_id", "ours", "theirs"),
    [
        (("a", "b", "c"), ("a", "c", "b"), 1, "'b'", "'c'"),
        (("a", "b"), ("a", "b", "c"), 2, "no token", "'c'"),
        (("a", "b", "c"), ("a", "b"), 2, "'c'", "no token"),
        (("a", "<pad>"), ("a", "b"), 1, "'<pad>'", "'b'"),
    ],
)
def test_a_mismatch_names_the_first_id_that_differs(
    target: tuple[str, ...], drafter: tuple[str, ...], token_id: int, ours: str, theirs: str
) -> None:
    with pytest.raises(VocabularyMismatchError) as caught:
        check_same_vocabulary(words(*target), words(*drafter))
    assert caught.value.field == "drafter.model"
    assert f"token id {token_id} is {ours} for the target and {theirs} for the drafter" in str(
        caught.value
    )
