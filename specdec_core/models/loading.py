"""From a source to a model that runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import AutoModelForCausalLM

from specdec_core.errors import InvalidArgumentError, UnsupportedModelError
from specdec_core.kv.block_pool import BlockPool
from specdec_core.models.backed_linear import replace_linears
from specdec_core.models.checkpoint import Checkpoint, check_folder, end_of_sequence_ids
from specdec_core.models.determinism_check import check_determinism, require_one_thread
from specdec_core.models.forward import ModelSpec
from specdec_core.models.kernels import choose_kernels
from specdec_core.models.llama_weights import LlamaReader, is_llama_family, llama_shape
from specdec_core.models.options import LoadOptions, ModelSource, Numerics, Quantization
from specdec_core.models.paged_storage import PagedKv
from specdec_core.models.rewind_check import check_rewind
from specdec_core.models.rotary import Rotary
from specdec_core.models.runner import LlamaRunner
from specdec_core.models.sources import resolve
from specdec_core.models.storage import ContiguousKv
from specdec_core.models.support import check_context, load_supported_config
from specdec_core.models.tensor_parallel import SingleProcess
from specdec_core.models.transformers_runner import (
    ATTENTION_NAME,
    TransformersRunner,
    record_shapes,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import torch
    from transformers import PretrainedConfig

    from specdec_core.models.forward import CausalModel
    from specdec_core.models.kernels import Kernels
    from specdec_core.models.storage import KvStorage, LayerShape

__all__ = ["LoadOptions", "ModelSource", "Numerics", "Quantization", "load_model", "resolve"]

_CONTEXT_FIELDS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")


def load_model(folder: Path, options: LoadOptions) -> CausalModel:
    """Load the model in ``folder``, through our runner where it knows the family and transformers' modules otherwise.

    Raises:
        NotFoundError: if the folder or its configuration is missing.
        InvalidArgumentError: if an option does not fit the model or the machine.
        UnsupportedModelError: if the model cannot be served, giving the reason.
    """
    check_folder(folder)
    config = load_supported_config(folder)
    max_context = _max_context(config, options)
    check_context(config, max_context)
    _keep_first_layers(config, options.num_layers)
    device = options.torch_device()
    kernels = choose_kernels(options, device)
    load = _load_llama if is_llama_family(config) else _load_generic
    model = load(folder, config, options, max_context=max_context, kernels=kernels)
    if options.numerics is Numerics.DETERMINISTIC:
        check_determinism(model)
    return model


def _load_llama(
    folder: Path,
    config: PretrainedConfig,
    options: LoadOptions,
    *,
    max_context: int,
    kernels: Kernels,
) -> CausalModel:
    shape = llama_shape(config)
    device = options.torch_device()
    reader = LlamaReader(
        Checkpoint(folder),
        shape,
        kernels,
        device=device,
        dtype=options.torch_dtype,
        group=SingleProcess(),
    )
    weights = reader.read()
    spec = _spec(folder, shape.vocab_size, max_context, reader.num_parameters)
    storage = _storage(shape.layer_shapes, options, device)
    return LlamaRunner(
        spec,
        weights,
        rotary=Rotary(config, device),
        storage=storage,
        attention=kernels.attention,
    )


def _load_generic(
    folder: Path,
    config: PretrainedConfig,
    options: LoadOptions,
    *,
    max_context: int,
    kernels: Kernels,
) -> CausalModel:
    if options.numerics is Numerics.DETERMINISTIC:
        require_one_thread()
    device = options.torch_device()
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder,
        config=config,
        dtype=options.torch_dtype,
        attn_implementation=ATTENTION_NAME,
        use_safetensors=True,
        trust_remote_code=False,
        local_files_only=True,
    )
    model = model.to(device).eval()
    vocab_size = model.get_output_embeddings().weight.shape[0]
    spec = _spec(folder, vocab_size, max_context, model.num_parameters())
    storage = _storage(record_shapes(model), options, device)
    runner = TransformersRunner(spec, model, storage=storage, attention=kernels.attention)
    check_rewind(runner, model)
    replace_linears(model, kernels.linears)
    return runner


def _spec(folder: Path, vocab_size: int, max_context: int, num_parameters: int) -> ModelSpec:
    return ModelSpec(
        name=folder.name,
        vocab_size=vocab_size,
        max_context=max_context,
        eos_token_ids=end_of_sequence_ids(folder),
        num_parameters=num_parameters,
    )


def _max_context(config: PretrainedConfig, options: LoadOptions) -> int:
    facts = config.to_dict()
    declared = next((facts[name] for name in _CONTEXT_FIELDS if facts.get(name)), None)
    if declared is None:
        raise UnsupportedModelError("model: its config.json does not say how long its context is")
    if options.max_context is None:
        return int(declared)
    if not 1 <= options.max_context <= declared:
        raise InvalidArgumentError(
            "max_context", f"must be in [1, {declared}] for this model, got {options.max_context}"
        )
    return options.max_context


def _keep_first_layers(config: PretrainedConfig, num_layers: int | None) -> None:
    """Shorten the configuration in place, so that neither path reads the layers above."""
    if num_layers is None:
        return
    if num_layers > config.num_hidden_layers:
        raise InvalidArgumentError(
            "num_layers",
            f"must be at most {config.num_hidden_layers} for this model, got {num_layers}",
        )
    layer_types = config.to_dict().get("layer_types")
    config.num_hidden_layers = num_layers
    if layer_types is not None:
        config.layer_types = layer_types[:num_layers]


def _storage(shapes: Sequence[LayerShape], options: LoadOptions, device: torch.device) -> KvStorage:
    pool = BlockPool(options.kv_tokens // options.block_size, options.block_size)
    layout = ContiguousKv if device.type == "cpu" else PagedKv
    return layout(pool, shapes, device, options.torch_dtype)
