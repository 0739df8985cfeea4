"""Experts: pairs of tokens and experts sorted, by tiles of one size, and summed choice by choice.

Which tile a pair is in follows from the other tokens; a row of a tile is computed as it would be in
any other. Router and products are taken for a bounded number of tokens at a time, since parts stay
in float32.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from atom.model_ops.backends.batch_invariant.linear import linear_parts
from atom.model_ops.backends.triton_ops.moe import routing
from atom.model_ops.backends.triton_ops.moe.grouped_gemm import sorted_expert_parts, sum_choices
from atom.model_ops.backends.triton_ops.moe.grouped_tiles import ExpertTile
from atom.model_ops.routing import Routed, Routing
from atom.model_ops.values import ExpertsWeight, RouterWeight

# Pairs of an expert, on average, from which tiles are large: see linear.py.
_MANY_PAIRS = 96
_FEW = ExpertTile(block_m=64, block_n=64, block_k=64, num_warps=4, num_stages=3)
_MANY = ExpertTile(block_m=128, block_n=128, block_k=64, num_warps=8, num_stages=3)
_AMD = ExpertTile(block_m=64, block_n=64, block_k=64, num_warps=4, num_stages=2)
_TOKENS = 2048


def route(x: torch.Tensor, w: RouterWeight, routing_: Routing) -> Routed:
    matrix = replace(w.matrix, bias=None)  # which the choice adds
    found = [routing.choose(linear_parts(part, matrix), w, routing_) for part in x.split(_TOKENS)]
    if len(found) == 1:
        return found[0]
    return Routed(torch.cat([one.ids for one in found]), torch.cat([one.weights for one in found]))


def experts(x: torch.Tensor, w: ExpertsWeight, routed: Routed) -> torch.Tensor:
    slices = zip(
        x.split(_TOKENS), routed.ids.split(_TOKENS), routed.weights.split(_TOKENS), strict=True
    )
    found = []
    for own, ids, weights in slices:
        some = Routed(ids, weights, routed.is_partial)
        parts = sorted_expert_parts(own, w, some, _tile(some, w))
        found.append(sum_choices(parts, x.dtype))
    return found[0] if len(found) == 1 else torch.cat(found)


def _tile(routed: Routed, w: ExpertsWeight) -> ExpertTile:
    if torch.version.hip:
        return _AMD
    return _FEW if routed.ids.numel() < _MANY_PAIRS * w.count else _MANY
