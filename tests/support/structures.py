"""Structures whose languages are finite, so that brute force can say what may follow; and a tiny byte-level tokenizer to write them in."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from specdec_core import reference
from specdec_core.models.tokenizer import Tokenizer
from specdec_core.structured import Choice, Grammar, JsonSchema, Regex

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdec_core.params import SamplingParams
    from specdec_core.structured import StructuredOutput
    from specdec_core.types import NoiseKey
    from tests.support.table_model import TableModel

PAD, EOS = 0, 1
_PIECES = (
    *('{"', '":', ',"', '"}', "true", "false", "ok", "bc", '":"'),
    *("ab", "ba", "cat", "dog", "ca", "do", " see", "ye", "yes", "no", "es", " cat"),
)


def tiny_bpe() -> Tokenizer:
    """ASCII bytes, some longer tokens, ``<pad>`` 0 and ``<eos>`` 1."""
    alphabet = [chr(code) for code in range(33, 127)] + ["Ġ"]
    words = [piece.replace(" ", "Ġ") for piece in _PIECES]
    merged = list(dict.fromkeys(word[:end] for word in words for end in range(2, len(word) + 1)))
    vocabulary = {
        token: index for index, token in enumerate(("<pad>", "<eos>", *alphabet, *merged))
    }
    merges = [(token[:-1], token[-1]) for token in merged]
    backend = FastTokenizer(models.BPE(vocabulary, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    fast_tokenizer: Any = PreTrainedTokenizerFast
    special = {"pad_token": "<pad>", "eos_token": "<eos>"}
    wrapped = fast_tokenizer(tokenizer_object=backend, **special)
    return Tokenizer(wrapped, (EOS,))


@cache
def _prefixes(language: frozenset[str]) -> frozenset[str]:
    return frozenset(text[:end] for text in language for end in range(len(text) + 1))


@dataclass(frozen=True)
class Structured:
    """A demand, and every text that meets it."""

    demand: StructuredOutput
    language: frozenset[str]

    def may_follow(self, text: str, tokenizer: Tokenizer) -> tuple[int, ...]:
        """Token ids that may follow ``text``, by trying them all."""
        viable = _prefixes(self.language)
        allowed = [
            token
            for token in range(EOS + 1, tokenizer.vocab_size)
            if text + tokenizer.decode([token]) in viable
        ]
        return (*([EOS] if text in self.language else []), *allowed)


_SCHEMA = {
    "type": "object",
    "properties": {
        "ok": {"type": "boolean"},
        "n": {"type": "integer", "minimum": 8, "maximum": 11},
        "k": {"enum": ["a", "bc"]},
    },
    "required": ["ok", "n", "k"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
_DOCUMENTS = (
    json.dumps({"ok": ok, "n": n, "k": k}, separators=(",", ":"))
    for ok, n, k in product((True, False), range(8, 12), ("a", "bc"))
)
_MATCHES = (
    "".join(parts) + "-" + digit
    for count in (1, 2, 3)
    for parts in product(("ab", "ba"), repeat=count)
    for digit in "0123456789"
)
_LARK = 'start: noun (" see" noun)?\nnoun: "cat" | "dog" | "(" noun2 ")"\nnoun2: "cat" | "cad"\n'
_NOUNS = ("cat", "dog", "(cat)", "(cad)")
_SENTENCES = (*_NOUNS, *(f"{left} see{right}" for left, right in product(_NOUNS, repeat=2)))
_CHOICES = ("yes", "no", "yes, but no", "nope", 'dogs & cats "see" \\n')

STRUCTURES = {
    "json": Structured(JsonSchema(json.dumps(_SCHEMA)), frozenset(_DOCUMENTS)),
    "regex": Structured(Regex("(ab|ba){1,3}-[0-9]"), frozenset(_MATCHES)),
    "grammar": Structured(Grammar(_LARK), frozenset(_SENTENCES)),
    "choice": Structured(Choice(_CHOICES), frozenset(_CHOICES)),
}


def allowed_by(mask: bytes) -> tuple[int, ...]:
    """The token ids of a packed mask."""
    return tuple(token for token in range(len(mask) * 8) if mask[token // 8] >> token % 8 & 1)


def plain_structured(
    model: TableModel,
    tokenizer: Tokenizer,
    prompt: Sequence[int],
    params: SamplingParams,
    noise: NoiseKey,
    structured: Structured,
) -> tuple[int, ...]:
    """The reference's output where brute force masks every step; ``params`` demand no structure themselves."""
    output: list[int] = []
    while len(output) < params.max_tokens and EOS not in output:
        allowed = structured.may_follow(tokenizer.decode(output), tokenizer)
        masked = replace(params, structured=None, allowed_token_ids=allowed)
        tokens = [*prompt, *output]
        law = reference.law(model.logits(tokens), tokens, len(prompt), masked)
        output.append(reference.draw(law, noise, len(tokens)))
    return tuple(output)
