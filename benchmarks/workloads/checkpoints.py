"""A checkpoint of a shape with random weights: what a start has to read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file

from atom.sizing import ModelFacts
from atom.sizing.layers import Stacking
from atom.sizing.weights import projections
from benchmarks.workloads.shapes import SHAPES, write_shape

# One file holds so many layers: as published checkpoints, a few gigabytes each.
_LAYERS_PER_FILE = 12


def write_checkpoint(name: str, folder: Path) -> Path:
    """Write config.json and safetensors files in bfloat16, under Hugging Face's names."""
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
    facts = ModelFacts.from_hf_config(SHAPES[name])
    if facts.experts_block.stacking is not Stacking.APART:
        raise ValueError(f"{name}: checkpoints with stacked experts are not written here")
    layer, hidden = facts.layer(0), facts.hidden_size
    tensors: dict[str, tuple[int, ...]] = {}
    for matrix in projections(layer, hidden, facts.experts_block):
        for copy in range(matrix.copies):
            own = matrix.name if matrix.copies == 1 else matrix.copy_name(copy)
            tensors[f"{own}.weight"] = (matrix.rows, matrix.columns)
    for norm in ("input_layernorm", "post_attention_layernorm"):
        tensors[f"{norm}.weight"] = (hidden,)
    if layer.attention.qk_norm:
        for norm in ("q_norm", "k_norm"):
            tensors[f"self_attn.{norm}.weight"] = (layer.attention.head_dim,)
    return tensors
