"""From a client's request to a session: every check that needs the model, in one place."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from specdec_core.errors import InvalidArgumentError
from specdec_core.params import check_prompt, check_prompt_logprobs
from specdec_core.session.state import SessionSpec
from specdec_core.structured import NO_GRAMMARS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specdec_core.draft_length.base import DraftLengthPolicy
    from specdec_core.params import GenerationParams
    from specdec_core.structured import GrammarBackend
    from specdec_core.types import NoiseKey


class Detokenizer(Protocol):
    """Token ids to text."""

    def __call__(self, tokens: Sequence[int], *, skip_special_tokens: bool) -> str: ...


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What a session must know of the model that serves it."""

    vocab_size: int
    max_context: int
    eos_token_ids: tuple[int, ...]
    max_draft_tokens: int  # cap of one draft; 0 where no drafter is deployed
    draft_length: Callable[
        [int], DraftLengthPolicy
    ]  # the policy of a request, given its most draft tokens
    decode: Detokenizer
    grammars: GrammarBackend = NO_GRAMMARS


def prepare(
    session_id: str,
    prompt: tuple[int, ...],
    params: GenerationParams,
    *,
    model: ServedModel,
    noise: NoiseKey,
) -> SessionSpec:
    """Check a request against the model that will serve it.

    Raises:
        InvalidArgumentError: naming the field and what is allowed.
    """
    check_prompt(prompt, vocab_size=model.vocab_size, max_context=model.max_context)
    check_prompt_logprobs(prompt, params.sampling)
    params.sampling.check_vocabulary(model.vocab_size)
    if params.sampling.structured is not None:
        model.grammars.compile(params.sampling.structured)
    wanted = params.speculation.max_draft_tokens
    if model.max_draft_tokens and wanted > model.max_draft_tokens:
        raise InvalidArgumentError(
            "max_draft_tokens", f"must be in [0, {model.max_draft_tokens}], got {wanted}"
        )
    most = min(wanted, model.max_draft_tokens)
    return SessionSpec(
        session_id=session_id,
        prompt=prompt,
        params=params.sampling.with_eos(model.eos_token_ids),
        rule=params.speculation.rule,
        noise=noise,
        vocab_size=model.vocab_size,
        max_context=model.max_context,
        max_draft_tokens=most,
        draft_length=model.draft_length(most),
        decode=partial(model.decode, skip_special_tokens=params.sampling.skip_special_tokens),
    )
