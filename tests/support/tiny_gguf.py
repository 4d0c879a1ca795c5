"""Writes a tiny Llama checkpoint as a GGUF file, the way llama.cpp's converter lays one out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gguf
from safetensors.torch import load_file
from transformers import AutoConfig

if TYPE_CHECKING:
    from pathlib import Path

    import torch

TOKENS = (
    *("<unk>", "<|im_start|>", "<|im_end|>"),
    *"abcdefghijklmnopqrstuvwxyzĠĊ.,!?0123456789",
    "ab",
)
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
_NORMAL, _CONTROL = 1, 3


def write_tiny_gguf(checkpoint: Path, path: Path) -> Path:
    """``checkpoint`` is a folder with an untied Llama of at least ``len(TOKENS)`` tokens."""
    config = AutoConfig.from_pretrained(checkpoint)
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    _add_tokenizer(writer, config.vocab_size)
    for name, tensor in load_file(checkpoint / "model.safetensors").items():
        writer.add_tensor(_gguf_name(name), _laid_out(name, tensor, config).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: Any, vocab_size: int) -> None:
    tokens = [*TOKENS, *(f"<unused{index}>" for index in range(len(TOKENS), vocab_size))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([_CONTROL if token.startswith("<") else _NORMAL for token in tokens])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)


def _gguf_name(name: str) -> str:
    replacements = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
        "model.layers": "blk",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    # The longest name first: "input_layernorm" must not be cut out of a longer one.
    for old in sorted(replacements, key=len, reverse=True):
        name = name.replace(old, replacements[old])
    return name


def _laid_out(name: str, tensor: torch.Tensor, config: Any) -> torch.Tensor:
    """llama.cpp rotates neighbouring pairs where Hugging Face rotates halves, so it reorders the rows of queries and keys."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for kind, count in heads.items():
        if kind in name:
            rows, width = tensor.shape
            halves = tensor.view(count, 2, rows // count // 2, width)
            return halves.transpose(1, 2).reshape(rows, width).contiguous()
    return tensor.contiguous()
