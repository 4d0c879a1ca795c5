"""From configuration to roles: which model, which drafter, held how."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, assert_never

import torch

from deployments.config import (
    LayerSkipDrafterConfig,
    LmDrafterConfig,
    NgramDrafterConfig,
    QuantizedDrafterConfig,
)
from deployments.locator import TargetFacts
from specdec_core.drafters.lm import LmDrafter
from specdec_core.drafters.ngram import NgramDrafter
from specdec_core.errors import InvalidArgumentError
from specdec_core.models.checkpoint import end_of_sequence_ids
from specdec_core.models.grammar import load_grammars
from specdec_core.models.loading import (
    LoadOptions,
    ModelSource,
    Numerics,
    Quantization,
    load_model,
    resolve,
)
from specdec_core.models.tokenizer import check_same_vocabulary, load_tokenizer
from specdec_core.roles.drafter import DrafterRole
from specdec_core.roles.target import TargetRole

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from deployments.config import Config, DraftingConfig, NeuralConfig
    from specdec_core.drafters.base import Drafter
    from specdec_core.models.forward import CausalModel
    from specdec_core.models.tokenizer import Tokenizer
    from specdec_core.structured import GrammarBackend

    Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TargetText:
    """What turns the target's token ids into text and back, and what holds that text to a structure."""

    tokenizer: Tokenizer
    grammars: GrammarBackend


@dataclass(frozen=True, slots=True)
class LoadedTarget:
    """A target role and what is told of its model."""

    role: TargetRole
    facts: TargetFacts
    text: TargetText


def target_folder(config: Config, progress: Progress) -> Path:
    """The target's files, converted or downloaded if they are not here yet."""
    target = config.target
    return resolve(ModelSource(target.model, target.revision), config.cache_folder, progress)


def load_target_text(config: Config, progress: Progress) -> TargetText:
    """The tokenizer of this configuration's target, and its grammars."""
    folder = target_folder(config, progress)
    tokenizer = load_tokenizer(folder)
    return TargetText(tokenizer, load_grammars(tokenizer, end_of_sequence_ids(folder)))


def load_target(config: Config, progress: Progress) -> LoadedTarget:
    """The target role of this configuration."""
    target = config.target
    folder = target_folder(config, progress)
    progress(f"loading the target {target.model}")
    torch.set_num_threads(target.threads)
    options = LoadOptions(
        device=target.device,
        dtype=target.dtype,
        numerics=Numerics(target.numerics),
        quantization=Quantization(target.quantization),
        kv_tokens=target.kv_tokens,
        max_context=target.max_context,
    )
    model = load_model(folder, options)
    text, spec = load_target_text(config, progress), model.spec
    role = TargetRole(
        model,
        max_sessions=target.max_sessions,
        token_budget=target.token_budget,
        grammars=text.grammars,
    )
    facts = TargetFacts(target.model, spec.vocab_size, spec.max_context, spec.eos_token_ids)
    return LoadedTarget(role, facts, text)


def load_drafter(config: Config, drafter: DraftingConfig, progress: Progress) -> DrafterRole:
    """The drafter role of this configuration.

    Raises:
        VocabularyMismatchError: if a draft model's ids mean other tokens than the target's.
    """
    return DrafterRole(_drafter(config, drafter, progress), max_sessions=drafter.max_sessions)


def _drafter(config: Config, drafter: DraftingConfig, progress: Progress) -> Drafter:
    match drafter:
        case NgramDrafterConfig():
            return NgramDrafter(max_ngram=drafter.max_ngram, min_ngram=drafter.min_ngram)
        case LmDrafterConfig():
            model = _model(drafter, _own_folder(config, drafter, progress), progress)
            target = load_target_text(config, progress)
            vocab_size = target.tokenizer.vocab_size
            return LmDrafter(model, vocab_size=vocab_size, grammars=target.grammars)
        case QuantizedDrafterConfig() | LayerSkipDrafterConfig():
            model = _model(drafter, target_folder(config, progress), progress)
            vocab_size = model.spec.vocab_size  # padding and all
            grammars = load_target_text(config, progress).grammars
            return LmDrafter(model, vocab_size=vocab_size, grammars=grammars)
        case _ as unreachable:
            assert_never(unreachable)


def _model(drafter: NeuralConfig, folder: Path, progress: Progress) -> CausalModel:
    progress(f"loading the {drafter.kind} drafter")
    torch.set_num_threads(drafter.threads)
    return load_model(folder, _draft_options(drafter))


def _draft_options(drafter: NeuralConfig) -> LoadOptions:
    options = LoadOptions(device=drafter.device, dtype=drafter.dtype, kv_tokens=drafter.kv_tokens)
    match drafter:
        case LayerSkipDrafterConfig():
            return replace(options, num_layers=drafter.num_layers)
        case LmDrafterConfig() | QuantizedDrafterConfig():
            quantization = Quantization(drafter.quantization)
            return replace(options, quantization=quantization, group_size=drafter.group_size)
        case _ as unreachable:
            assert_never(unreachable)


def _own_folder(config: Config, drafter: LmDrafterConfig, progress: Progress) -> Path:
    source = ModelSource(drafter.model, drafter.revision)
    try:
        folder = resolve(source, config.cache_folder, progress)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"drafter.{error.field}", error.problem) from error
    check_same_vocabulary(load_tokenizer(target_folder(config, progress)), load_tokenizer(folder))
    return folder
