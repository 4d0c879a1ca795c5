"""Text to token ids and back, and whether two models mean the same by an id."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from specdec_core.errors import (
    InvalidArgumentError,
    UnsupportedModelError,
    VocabularyMismatchError,
)
from specdec_core.models.checkpoint import end_of_sequence_ids

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_PADDING_TOKEN = re.compile(
    r"[<\[]\|?(pad|unused|reserved|extra|dummy|placeholder)[^>\]]*[>\]]", re.IGNORECASE
)


class Tokenizer:
    """A model's tokenizer; ``load_tokenizer`` makes it."""

    def __init__(self, backend: Any, eos_token_ids: tuple[int, ...]) -> None:
        self._backend = backend
        self.vocab_size: int = len(backend)  # real tokens, without the padding of a logits row
        self.eos_token_ids = eos_token_ids
        self.tokens_by_id: dict[int, str] = {
            token_id: token for token, token_id in backend.get_vocab().items()
        }
        self.fingerprint = _fingerprint(self.tokens_by_id)

    @property
    def has_chat_template(self) -> bool:
        return bool(self._backend.chat_template)

    def definition(self) -> str:
        """The tokenizer in the JSON of the ``tokenizers`` library, added tokens included, padding and truncation left out.

        Raises:
            UnsupportedModelError: if it is no fast tokenizer.
        """
        if not isinstance(self._backend, PreTrainedTokenizerFast):
            raise UnsupportedModelError("model: its tokenizer is not of the tokenizers library")
        stored = json.loads(self._backend.backend_tokenizer.to_str())
        return json.dumps({**stored, "padding": None, "truncation": None}, ensure_ascii=False)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> tuple[int, ...]:
        return tuple(self._backend.encode(text, add_special_tokens=add_special_tokens))

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of ``tokens`` with every space they hold: nothing is cleaned up."""
        return str(
            self._backend.decode(
                list(tokens),
                skip_special_tokens=skip_special_tokens,
                clean_up_tokenization_spaces=False,
            )
        )

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The prompt the model's chat template makes of ``messages``, up to where the answer begins.

        Raises:
            InvalidArgumentError: if the model has no template, or the template refuses the messages.
        """
        if not self.has_chat_template:
            raise InvalidArgumentError(
                "messages", "the model has no chat template; send a plain prompt instead"
            )
        try:
            rendered = self._backend.apply_chat_template(
                [dict(message) for message in messages], tokenize=False, add_generation_prompt=True
            )
        except TemplateError as error:
            raise InvalidArgumentError(
                "messages", f"the model's chat template refuses them: {error}"
            ) from error
        return str(rendered)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        """Token ids of ``render_chat``; special tokens come from the template alone."""
        return self.encode(self.render_chat(messages), add_special_tokens=False)


def load_tokenizer(folder: Path) -> Tokenizer:
    """Load the tokenizer of the model in ``folder``.

    Raises:
        UnsupportedModelError: if there is none, or it needs code from the checkpoint.
    """
    try:
        backend = AutoTokenizer.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True
        )
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UnsupportedModelError(f"model: no tokenizer in {folder}: {reason}") from error
    declared = set(end_of_sequence_ids(folder))
    if backend.eos_token_id is not None:
        declared.add(backend.eos_token_id)
    return Tokenizer(backend, tuple(sorted(declared)))


def check_same_vocabulary(target: Tokenizer, drafter: Tokenizer) -> None:
    """Refuse a drafter whose ids mean other tokens than the target's.

    Ids that only one side has are let pass if they are padding (``<pad>``, ``<unused1>``, ``<|reserved_1|>``): families of models
    round their vocabularies up to different sizes.

    Raises:
        VocabularyMismatchError: naming the first id that differs and both tokens.
    """
    if target.fingerprint == drafter.fingerprint:
        return
    for token_id in sorted(target.tokens_by_id.keys() | drafter.tokens_by_id.keys()):
        ours = target.tokens_by_id.get(token_id)
        theirs = drafter.tokens_by_id.get(token_id)
        if ours == theirs or _is_padding_only(ours, theirs):
            continue
        raise VocabularyMismatchError(
            "drafter.model",
            f"must share the target's vocabulary; token id {token_id} is {_shown(ours)} for the target and {_shown(theirs)} for the drafter",
        )


def _is_padding_only(ours: str | None, theirs: str | None) -> bool:
    if ours is not None and theirs is not None:
        return False
    return _PADDING_TOKEN.fullmatch(ours or theirs or "") is not None


def _shown(token: str | None) -> str:
    return "no token" if token is None else repr(token)


def _fingerprint(tokens_by_id: Mapping[int, str]) -> str:
    digest = hashlib.sha256()
    for token_id in sorted(tokens_by_id):
        digest.update(f"{token_id}\0{tokens_by_id[token_id]}\0".encode())
    return digest.hexdigest()
