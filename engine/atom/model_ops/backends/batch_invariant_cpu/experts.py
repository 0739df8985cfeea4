"""Experts of each token: chosen and added up in an order that is the token's own."""

from __future__ import annotations

import torch

from atom.model_ops.backends.batch_invariant_cpu.linear import linear
from atom.model_ops.backends.expert_choice import choose
from atom.model_ops.backends.grouped_experts import grouped_experts
from atom.model_ops.backends.native_cpu.dense import act_and_mul
from atom.model_ops.routing import Routed, Routing
from atom.model_ops.values import RouterWeight


def route(x: torch.Tensor, w: RouterWeight, routing: Routing) -> Routed:
    return choose(linear(x, w.matrix), w.e_score_correction_bias, routing, total=sum_in_order)


def sum_in_order(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Add up slices of x along a dimension, the first to the last; torch's own sum takes an order
    from the whole tensor's shape."""
    first, *others = x.unbind(dim)
    total = first.clone()
    for other in others:
        total += other
    return total


experts = grouped_experts(linear, act_and_mul, total=sum_in_order)
