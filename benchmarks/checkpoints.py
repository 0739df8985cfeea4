"""A checkpoint of a shape with random weights: what a start has to read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.shapes import SHAPES, write_shape

# One file holds so many layers: as published checkpoints, a few gigabytes each.
_LAYERS_PER_FILE = 12


def write_checkpoint(name: str, folder: Path) -> Path:
    """config.json and safetensors files in bfloat16, under Hugging Face's names."""
    write_shape(name, folder)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    file_of: dict[str, str] = {}
    for number, tensors in enumerate(_files(name)):
        made = {
            key: (torch.randn(size, device=device) * 0.02).bfloat16().cpu()
            for key, size in tensors.items()
        }
        file = f"model-{number:05}.safetensors"
        save_file(made, folder / file)
        file_of |= dict.fromkeys(tensors, file)
    index = json.dumps({"metadata": {}, "weight_map": file_of})
    (folder / "model.safetensors.index.json").write_text(index)
    return folder


def _files(name: str) -> Iterator[dict[str, tuple[int, ...]]]:
    shape = SHAPES[name]
    hidden, vocab, layers = shape["hidden_size"], shape["vocab_size"], shape["num_hidden_layers"]
    ends: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab, hidden),
        "model.norm.weight": (hidden,),
    }
    if not shape["tie_word_embeddings"]:
        ends["lm_head.weight"] = (vocab, hidden)
    yield ends
    for first in range(0, layers, _LAYERS_PER_FILE):
        tensors: dict[str, tuple[int, ...]] = {}
        for layer in range(first, min(first + _LAYERS_PER_FILE, layers)):
            for key, size in _layer(name).items():
                tensors[f"model.layers.{layer}.{key}"] = size
        yield tensors


def _layer(name: str) -> dict[str, tuple[int, ...]]:
    shape = SHAPES[name]
    hidden, inner, dim = shape["hidden_size"], shape["intermediate_size"], shape["head_dim"]
    queries, keys = shape["num_attention_heads"] * dim, shape["num_key_value_heads"] * dim
    tensors: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    if "Qwen3ForCausalLM" in shape["architectures"]:
        tensors |= {"self_attn.q_norm.weight": (dim,), "self_attn.k_norm.weight": (dim,)}
    return tensors
