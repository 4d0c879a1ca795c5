"""SmolLM2-135M-Instruct writes valid JSON for a schema, speculating, and the same JSON without."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from specdec_core.drafters.lm import LmDrafter
from specdec_core.models.grammar import load_grammars
from specdec_core.models.loading import LoadOptions, ModelSource, load_model, resolve
from specdec_core.models.tokenizer import load_tokenizer
from specdec_core.params import GenerationParams, SamplingParams, SpeculationParams
from specdec_core.structured import JsonSchema
from specdec_core.types import AcceptanceRule, FinishReason
from tests.support.generation import Wish, generate

if TYPE_CHECKING:
    from specdec_core.models.forward import CausalModel
    from specdec_core.models.tokenizer import Tokenizer
    from specdec_core.session.state import SessionState
    from specdec_core.structured import GrammarBackend

pytestmark = [pytest.mark.weights, pytest.mark.slow]

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "capital": {"type": "string", "maxLength": 20},
        "population": {"type": "integer", "minimum": 0, "maximum": 99999999},
        "continent": {"enum": ["Africa", "America", "Asia", "Europe", "Oceania"]},
    },
    "required": ["capital", "population", "continent"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
QUESTION = [{"role": "user", "content": "Describe France in JSON."}]
DEMANDING = SamplingParams(
    temperature=0.8, max_tokens=80, structured=JsonSchema(json.dumps(SCHEMA))
)


def meets_schema(text: str) -> bool:
    """Whether a text is a document of SCHEMA, key by key."""
    try:
        answer = json.loads(text)
    except ValueError:
        return False
    return (
        isinstance(answer, dict)
        and list(answer) == list(SCHEMA["properties"])
        and len(answer["capital"]) <= 20
        and 0 <= answer["population"] <= 99999999
        and answer["continent"] in SCHEMA["properties"]["continent"]["enum"]
    )


@pytest.fixture(scope="module")
def folder() -> Path:
    torch.set_num_threads(1)
    cache = Path(os.environ.get("SPECDEC_CACHE", "~/.cache/specdec")).expanduser()
    return resolve(ModelSource("packaged:smollm2-135m-instruct"), cache, lambda _: None)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(folder)


@pytest.fixture(scope="module")
def model(folder: Path) -> CausalModel:
    return load_model(folder, LoadOptions(kv_tokens=1024))


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer, model: CausalModel) -> GrammarBackend:
    return load_grammars(tokenizer, model.spec.eos_token_ids)


@pytest.fixture(scope="module")
def drafter(folder: Path, grammars: GrammarBackend) -> LmDrafter:
    shallow = load_model(folder, LoadOptions(kv_tokens=1024, num_layers=20))
    return LmDrafter(shallow, vocab_size=shallow.spec.vocab_size, grammars=grammars)


@pytest.mark.parametrize("rule", AcceptanceRule)
def test_the_answer_meets_the_schema_under_every_rule(
    rule: AcceptanceRule,
    model: CausalModel,
    tokenizer: Tokenizer,
    drafter: LmDrafter,
    grammars: GrammarBackend,
) -> None:
    def run(sampling: SamplingParams, gamma: int) -> SessionState:
        params = GenerationParams(sampling, SpeculationParams(gamma, rule), 7)
        wish = Wish("s", tokenizer.encode_chat(QUESTION), params)
        return generate(model, drafter, [wish], grammars=grammars)["s"]

    speculated, plain = run(DEMANDING, 4), run(DEMANDING, 0)

    for state in (speculated, plain):
        assert state.finish is FinishReason.STOP
        assert meets_schema(tokenizer.decode(state.output))
    assert speculated.stats.num_accepted_tokens > 0
    if rule is AcceptanceRule.COUPLED:
        assert speculated.output == plain.output


def test_without_the_demand_the_answer_does_not_meet_it(
    model: CausalModel, tokenizer: Tokenizer
) -> None:
    free = GenerationParams(SamplingParams(temperature=0.8, max_tokens=40), seed=7)
    wish = Wish("s", tokenizer.encode_chat(QUESTION), free)
    state = generate(model, None, [wish])["s"]
    assert not meets_schema(tokenizer.decode(state.output))
