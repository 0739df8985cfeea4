"""Experts by AITER's fused MoE, which sorts tokens and chooses one stage or two by its own tables.

Both stacks are stored in tiles, plain ones as well, and an attribute of the tensor marks them for
AITER. Stacks of MXFP4 have another arrangement (fp4_experts.py).
"""

from __future__ import annotations

from dataclasses import replace

import torch

from atom.errors import ModelError
from atom.model_ops.backends.aiter_ops import fp4_experts
from atom.model_ops.backends.aiter_ops.card import Card
from atom.model_ops.backends.aiter_ops.library import Library
from atom.model_ops.backends.aiter_ops.linear import (
    TILE_COLUMNS,
    TILE_ROWS,
    for_card,
    has_whole_blocks,
)
from atom.model_ops.quantised.dequantise import expanded
from atom.model_ops.routing import Routed
from atom.model_ops.values import ExpertsWeight, LinearWeight, WeightFormat

_QUANT_TYPES = {
    WeightFormat.PLAIN: "No",
    WeightFormat.FP8: "per_Token",
    WeightFormat.FP8_BLOCKS: "per_1x128",
}


class Experts:
    def __init__(self, library: Library, card: Card) -> None:
        self._library = library
        self._card = card

    def prepare_experts(self, w: LinearWeight) -> LinearWeight:
        if w.format is WeightFormat.MXFP4:
            return fp4_experts.prepare(self._library, w)
        if w.outputs % TILE_ROWS or w.inputs % TILE_COLUMNS:
            raise ModelError(
                f"experts' matrices of {w.outputs} outputs and {w.inputs} inputs on this rank are "
                f"no whole tiles of {TILE_ROWS} × {TILE_COLUMNS}, which aiter needs; use another "
                "tensor-parallel size, or --op-backend experts=triton "
                "--op-backend prepare_experts=triton"
            )
        if w.format is WeightFormat.FP8_BLOCKS and not has_whole_blocks(w):
            w = expanded(w)
        w = for_card(w, self._card)
        tiles = self._library["shuffle_weight"](x=w.data, layout=(16, 16))
        tiles.is_shuffled = True
        return replace(w, data=tiles)

    def experts(self, x: torch.Tensor, w: ExpertsWeight, routed: Routed) -> torch.Tensor:
        if w.gate_up.format is WeightFormat.MXFP4:
            return fp4_experts.experts(self._library, x, w, routed)
        scales = {}
        if w.gate_up.scales is not None and w.down.scales is not None:
            scales = {"w1_scale": w.gate_up.scales.scale, "w2_scale": w.down.scales.scale}
        kinds, activations = self._library.found["QuantType"], self._library.found["ActivationType"]
        out: torch.Tensor = self._library["fused_moe"](
            hidden_states=x.contiguous(),
            w1=w.gate_up.data,
            w2=w.down.data,
            topk_weight=routed.weights,
            topk_ids=routed.ids,
            activation=activations.Silu,
            quant_type=getattr(kinds, _QUANT_TYPES[w.gate_up.format]),
            **scales,
        )
        return out
