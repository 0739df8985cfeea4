"""Checkpoints of shapes with random weights: what a start reads, and what two engines share.

Beside weights that each engine makes up for itself nothing compares: a router of zeros sends every
token to the same few experts. One file on disk, random and normal, routes alike for both.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from atom.sizing import ModelFacts, StateKind
from atom.sizing.attention.kinds import (
    AttentionFacts,
    GroupedAttention,
    LatentAttention,
    StateAttention,
)
from atom.sizing.layers import LayerFacts, Stacking
from atom.sizing.projection import Projection
from atom.sizing.weights.layer_matrices import projections
from benchmarks.workloads.shapes import SHAPES

# One file holds so many layers: as published checkpoints, a few gigabytes each.
_LAYERS_PER_FILE = 12
_DEVIATION = 0.02
_MXFP4_GROUP = 32
# The exponent at which random codes of four bits, whose root mean square is 3, are near _DEVIATION.
_MXFP4_EXPONENT = 127 - 7

Sizes = dict[str, tuple[int, ...]]


def _method(shape: Mapping[str, Any]) -> str:
    return str(shape.get("quantization_config", {}).get("quant_method", ""))


# The shapes whose checkpoints are written here: choices of a benchmark that reads its weights.
WRITTEN_SHAPES = sorted(name for name, shape in SHAPES.items() if _method(shape) in ("", "mxfp4"))


def write_checkpoint(name: str, folder: Path, layers: int | None = None) -> Path:
    """Write config.json and safetensors files in bfloat16, under Hugging Face's names.

    layers: how many of the shape's, where the whole does not fit on a card; None for all. Raises
    ValueError for a shape whose quantised form is not written here."""
    shape = dict(SHAPES[name])
    if layers is not None:
        shape["num_hidden_layers"] = layers
    (folder / "config.json").write_text(json.dumps(shape, indent=2))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    file_of: dict[str, str] = {}
    for number, sizes in enumerate(_files(name, shape)):
        file = f"model-{number:05}.safetensors"
        save_file({key: _tensor(key, size, device) for key, size in sizes.items()}, folder / file)
        file_of |= dict.fromkeys(sizes, file)
    index = json.dumps({"metadata": {}, "weight_map": file_of})
    (folder / "model.safetensors.index.json").write_text(index)
    return folder


def _tensor(name: str, size: tuple[int, ...], device: str) -> torch.Tensor:
    if name.endswith("_blocks"):
        return torch.randint(0, 256, size, device=device, dtype=torch.uint8).cpu()
    if name.endswith("_scales"):
        return torch.full(size, _MXFP4_EXPONENT, dtype=torch.uint8)
    if "norm" in name and not name.endswith(".bias"):
        return torch.ones(size, dtype=torch.bfloat16)
    return (torch.randn(size, device=device) * _DEVIATION).bfloat16().cpu()


def _files(name: str, shape: Mapping[str, Any]) -> Iterator[Sizes]:
    facts = ModelFacts.from_hf_config(shape)
    method = _method(shape)
    if method not in ("", "mxfp4"):
        raise ValueError(
            f"{name}: checkpoints in {method} are not written here; choose one of "
            f"{', '.join(WRITTEN_SHAPES)}"
        )
    hidden, vocab = facts.hidden_size, facts.vocab_size
    ends: Sizes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    if not facts.tie_word_embeddings:
        ends["lm_head.weight"] = (vocab, hidden)
    yield ends
    for first in range(0, facts.num_layers, _LAYERS_PER_FILE):
        sizes: Sizes = {}
        for number in range(first, min(first + _LAYERS_PER_FILE, facts.num_layers)):
            layer = _layer(facts, facts.layer(number), in_codes=method == "mxfp4")
            sizes |= {f"model.layers.{number}.{key}": size for key, size in layer.items()}
        yield sizes


def _layer(facts: ModelFacts, layer: LayerFacts, *, in_codes: bool) -> Sizes:
    hidden, block = facts.hidden_size, facts.experts_block
    norms = ("input_layernorm", "post_attention_layernorm")
    sizes: Sizes = {f"{norm}.weight": (hidden,) for norm in norms}
    sizes |= _vectors(layer.attention)
    stacked: list[Projection] = []
    for matrix in projections(layer, hidden, block):
        if matrix.copies > 1 and block.stacking is not Stacking.APART:
            stacked.append(matrix)
            continue
        for copy in range(matrix.copies):
            own = matrix.name if matrix.copies == 1 else matrix.copy_name(copy)
            sizes |= _matrix(own, matrix)
    if stacked:
        sizes |= _stacked(stacked, in_codes=in_codes)
    experts = layer.mlp.experts
    if experts is not None and experts.router_correction:
        sizes[block.correction_name] = (experts.count,)
    return sizes


def _matrix(name: str, matrix: Projection) -> Sizes:
    sizes: Sizes = {f"{name}.weight": (matrix.rows, matrix.columns)}
    return sizes | {f"{name}.bias": (matrix.rows,)} if matrix.bias else sizes


def _vectors(attention: AttentionFacts) -> Sizes:
    sizes: Sizes = {}
    if isinstance(attention, StateAttention):
        net = attention.net
        kinds = (StateKind.DELTA_NET, StateKind.DELTA_NET_BY_KEY_HEAD)
        assert net.kind in kinds, "no shape of SHAPES has layers of another kind"
        return {
            "linear_attn.conv1d.weight": (net.conv_channels, 1, net.conv_width),
            "linear_attn.norm.weight": (net.value_dim,),
            "linear_attn.A_log": (net.value_heads,),
            "linear_attn.dt_bias": (net.value_heads,),
        }
    if isinstance(attention, GroupedAttention) and attention.qk_norm.of_heads:
        for norm in ("q_norm", "k_norm"):
            sizes[f"self_attn.{norm}.weight"] = (attention.head_dim,)
    if isinstance(attention, GroupedAttention) and attention.softmax.sinks:
        sizes["self_attn.sinks"] = (attention.num_heads,)
    if isinstance(attention, LatentAttention):
        sizes["self_attn.kv_a_layernorm.weight"] = (attention.latent.kv_rank,)
        if attention.latent.query_rank is not None:
            sizes["self_attn.q_a_layernorm.weight"] = (attention.latent.query_rank,)
    return sizes


def _stacked(matrices: list[Projection], *, in_codes: bool) -> Sizes:
    """All experts of a layer in one tensor for gates and ups, and one for downs; inputs first, or
    outputs first with the inputs in codes."""
    gate, _, down = matrices
    sizes: Sizes = {}
    for name, rows, columns, bias in (
        ("gate_up_proj", 2 * gate.rows, gate.columns, gate.bias),
        ("down_proj", down.rows, down.columns, down.bias),
    ):
        own, experts = f"{gate.stack_name}.{name}", gate.copies
        if in_codes:
            groups = columns // _MXFP4_GROUP
            sizes[f"{own}_blocks"] = (experts, rows, groups, _MXFP4_GROUP // 2)
            sizes[f"{own}_scales"] = (experts, rows, groups)
        else:
            sizes[own] = (experts, columns, rows)
        if bias:
            sizes[f"{own}_bias"] = (experts, rows)
    return sizes
