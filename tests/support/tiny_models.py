"""Tiny random checkpoints of many architectures, as safetensors folders with a character tokenizer beside them.

Weights are drawn far wider than transformers initialises them, biases included: with its own 0.02 every logit row is nearly flat, and a
wrong mask or position would hide in the tolerance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

if TYPE_CHECKING:
    from pathlib import Path

VOCAB_SIZE = 64
MAX_CONTEXT = 96
WINDOW = 6
EOS = "<eos>"
PAD = "<pad>"
UNKNOWN = "<unk>"
SPECIAL_TOKENS = (PAD, EOS, UNKNOWN, "<system>", "<user>", "<assistant>")
CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789 \n.,?!:;'-"
CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)

_WIDE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": MAX_CONTEXT,
}
_GROUPED: dict[str, Any] = {**_WIDE, "num_key_value_heads": 2}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 24,
}
_YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 24,
}
_MIXED_LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]
_GPT2: dict[str, Any] = {"vocab_size": VOCAB_SIZE, "n_embd": 32, "n_layer": 3, "n_head": 4}

# Name of a variant to (model type, configuration).
LLAMA_FAMILY: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {**_GROUPED, "tie_word_embeddings": False}),
    "llama-tied": ("llama", {**_GROUPED, "tie_word_embeddings": True, "head_dim": 16}),
    "llama-biased": ("llama", {**_GROUPED, "attention_bias": True, "mlp_bias": True}),
    "llama-rope3": ("llama", {**_GROUPED, "rope_parameters": _LLAMA3_ROPE}),
    "llama-yarn": ("llama", {**_GROUPED, "rope_parameters": _YARN_ROPE}),
    "mistral": ("mistral", {**_GROUPED, "sliding_window": WINDOW}),
    "qwen2": ("qwen2", _GROUPED),
    "qwen2-window": (
        "qwen2",
        {
            **_GROUPED,
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "layer_types": _MIXED_LAYERS,
        },
    ),
    "qwen3": ("qwen3", {**_GROUPED, "head_dim": 16}),
}
GENERIC: dict[str, tuple[str, dict[str, Any]]] = {
    "opt": ("opt", {**_WIDE, "ffn_dim": 64, "word_embed_proj_dim": 32}),
    "gpt-neox": ("gpt_neox", _WIDE),
    "gpt2": ("gpt2", {**_GPT2, "n_positions": MAX_CONTEXT}),
    "phi": ("phi", _WIDE),
    "gemma": ("gemma", {**_GROUPED, "head_dim": 8}),
    "gemma2": (
        "gemma2",
        {**_GROUPED, "head_dim": 8, "sliding_window": WINDOW, "query_pre_attn_scalar": 16},
    ),
    "gemma3": (
        "gemma3_text",
        {**_GROUPED, "head_dim": 8, "sliding_window": WINDOW, "layer_types": _MIXED_LAYERS},
    ),
}
ARCHITECTURES = {**LLAMA_FAMILY, **GENERIC}


def build_tiny_model(
    name: str,
    folder: Path,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    overrides: dict[str, Any] | None = None,
) -> Path:
    """Write the variant ``name`` of ``ARCHITECTURES`` with its tokenizer; the same seed gives the same bytes."""
    model_type, fields = ARCHITECTURES[name]
    eos = SPECIAL_TOKENS.index(EOS)
    config = AutoConfig.for_model(
        model_type,
        **{**fields, **(overrides or {})},
        bos_token_id=eos,
        eos_token_id=eos,
        pad_token_id=SPECIAL_TOKENS.index(PAD),
    )
    auto_model: Any = AutoModelForCausalLM
    model = auto_model.from_config(config).to(dtype)
    randomize(model, seed)
    model.save_pretrained(folder)
    save_tiny_tokenizer(folder)
    return folder


@torch.no_grad()
def randomize(model: torch.nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() > 1:
            noise *= 1.5 / parameter.shape[-1] ** 0.5
        else:
            noise = parameter.float() + 0.1 * noise
        if "embed" in name or "wte" in name:
            noise *= 3
        parameter.copy_(noise)


def save_tiny_tokenizer(folder: Path, *, characters: str = CHARACTERS) -> None:
    """One token per character; ``decode`` gives back exactly what ``encode`` took."""
    vocabulary = {token: index for index, token in enumerate((*SPECIAL_TOKENS, *characters))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("[\\s\\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    fast_tokenizer: Any = PreTrainedTokenizerFast
    wrapped = fast_tokenizer(
        tokenizer_object=tokenizer,
        eos_token=EOS,
        unk_token=UNKNOWN,
        pad_token=PAD,
        additional_special_tokens=["<system>", "<user>", "<assistant>"],
    )
    wrapped.chat_template = CHAT_TEMPLATE
    wrapped.save_pretrained(folder)
