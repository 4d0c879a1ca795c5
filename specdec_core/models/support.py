"""Which models can be served: those whose whole state is keys and values by position, so that a cut is a rewind.

Decided from config.json and transformers' own classes before a weight is read. What passes here and still behaves otherwise is caught
by the rewind check of the generic runner.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from transformers import AutoConfig, DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from specdec_core.errors import UnsupportedModelError
from specdec_core.models.checkpoint import read_json

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PretrainedConfig

_CHUNKED = "chunked_attention"  # transformers keeps such a layer like a sliding one, but it attends differently


def load_supported_config(folder: Path) -> PretrainedConfig:
    """The configuration of a model that can be served.

    Raises:
        UnsupportedModelError: giving the reason why it cannot.
    """
    facts = read_json(folder, "config.json")
    _refuse_foreign_code(facts)
    _refuse_composite(facts)
    config: PretrainedConfig = AutoConfig.from_pretrained(
        folder, trust_remote_code=False, local_files_only=True
    )
    _refuse_class(config)
    _refuse_foreign_state(config)
    return config


def check_context(config: PretrainedConfig, max_context: int) -> None:
    """Refuse rotations that depend on how long the text is: a rewound cache would hold keys of another rotation.

    Raises:
        UnsupportedModelError: if the positions below ``max_context`` do not all have one fixed rotation.
    """
    parameters = config.to_dict().get("rope_parameters") or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    for rope in (parameters, *nested):
        kind = rope.get("rope_type")
        if kind == "dynamic":
            raise _refusal("its rotary embedding is rescaled with the length of the text (dynamic)")
        original = rope.get("original_max_position_embeddings")
        if kind == "longrope" and max_context > (original or 0):
            raise _refusal(
                f"its rotary embedding changes beyond {original} tokens (longrope); set max_context to at most that"
            )


def _refuse_foreign_code(facts: dict[str, Any]) -> None:
    model_type = facts.get("model_type")
    if model_type in CONFIG_MAPPING:
        return
    if "auto_map" in facts:
        raise _refusal(
            f"model type {model_type!r} needs Python code from the checkpoint, and trust_remote_code stays off"
        )
    raise _refusal(f"model type {model_type!r} is unknown to transformers")


def _refuse_composite(facts: dict[str, Any]) -> None:
    if "quantization_config" in facts:
        method = facts["quantization_config"].get("quant_method")
        raise _refusal(
            f"its weights are stored quantised ({method}); load an unquantised checkpoint, with quantization int8 or int4 if wanted"
        )
    if "text_config" in facts or "vision_config" in facts:
        raise _refusal("it is a composite (multimodal) checkpoint; only text models are served")
    if facts.get("is_encoder_decoder"):
        raise _refusal("it is an encoder-decoder")


def _refuse_class(config: PretrainedConfig) -> None:
    if config.is_encoder_decoder:
        raise _refusal("it is an encoder-decoder")
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise _refusal(f"{config.model_type} is not a causal language model")
    model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if not model_class.is_backend_compatible():
        raise _refusal(
            f"{model_class.__name__} keeps its state outside transformers' attention interface (recurrent, linear or legacy attention), so it cannot be rewound"
        )
    missing = {"position_ids", "logits_to_keep"} - set(
        inspect.signature(model_class.forward).parameters
    )
    if missing:
        raise _refusal(f"{model_class.__name__} takes no {' and no '.join(sorted(missing))}")


def _refuse_foreign_state(config: PretrainedConfig) -> None:
    """The cache transformers itself would make tells what each layer remembers of the past."""
    foreign = {
        type(layer).__name__
        for layer in DynamicCache(config=config).layers
        if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer)
    }
    if foreign:
        raise _refusal(
            f"it remembers more than keys and values ({', '.join(sorted(foreign))}), so it cannot be rewound"
        )
    if _CHUNKED in (config.to_dict().get("layer_types") or ()):
        raise _refusal("it has layers of chunked attention")


def _refusal(reason: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"model: cannot be served: {reason}")
