"""Experts in plain PyTorch: each with the tokens that chose it."""

from __future__ import annotations

import torch

from atom.model_ops.backends.torch_ref.dense import act_and_mul
from atom.model_ops.quantised.dequantise import multiply
from atom.model_ops.routing import Routed
from atom.model_ops.values import ExpertsWeight, LinearWeight


def experts(x: torch.Tensor, w: ExpertsWeight, routed: Routed) -> torch.Tensor:
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert in routed.ids.unique().tolist():
        if not 0 <= expert < w.count:
            continue  # another rank's
        token, choice = (routed.ids == expert).nonzero(as_tuple=True)
        own, weights = x[token], routed.weights[token, choice, None]
        if w.weighs_inputs:
            own = (own * weights).to(x.dtype)
        gated = act_and_mul(multiply(own, w.gate_up.of(expert)), w.activation)
        result = multiply(gated, w.down.of(expert)).float()
        out.index_add_(0, token, result if w.weighs_inputs else result * weights)
    return out.to(x.dtype)


def expert_products(x: torch.Tensor, w: LinearWeight, ids: torch.Tensor) -> torch.Tensor:
    """See `Ops.expert_products`."""
    out = x.new_zeros(len(x), w.outputs)
    for expert in ids.unique().tolist():
        if 0 <= expert < w.data.shape[0]:
            own = ids == expert
            out[own] = multiply(x[own], w.of(expert))
    return out
