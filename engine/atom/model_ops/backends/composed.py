"""The fused operations, composed of the single ones: for backends that do not fuse them.

Each function is made over the operations that were resolved, so an override of a single operation
counts here as well. The contract of each is in interface.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from atom.model_ops.backends.interface import Ops
from atom.model_ops.routing import Routed
from atom.model_ops.values import (
    AttentionShape,
    ExpertsWeight,
    Gating,
    LayerCache,
    LinearWeight,
    MoEWeight,
    NormWeight,
    Rotary,
    SharedWeight,
    Stream,
)
from atom.utils.forward_context import AttentionMetaData


def linear_parts(ops: Ops, x: torch.Tensor, w: LinearWeight) -> torch.Tensor:
    return ops.linear(x, w)


def gated_linear(ops: Ops, x: torch.Tensor, w: LinearWeight, activation: Gating) -> torch.Tensor:
    return ops.act_and_mul(ops.linear(x, w), activation)


def add(ops: Ops, stream: Stream, x: torch.Tensor, w: LinearWeight) -> Stream:
    return stream.plus(ops.linear(x, w))


def add_experts(
    ops: Ops,
    stream: Stream,
    x: torch.Tensor,
    w: ExpertsWeight,
    routed: Routed,
    shared: torch.Tensor | None,
) -> Stream:
    result = ops.experts(x, w, routed)
    return stream.plus(result if shared is None else result + shared)


def norm_experts(ops: Ops, stream: Stream, norm: NormWeight, w: MoEWeight) -> Stream:
    x, stream = ops.norm(stream, norm)
    routed = ops.route(x, w.router, w.routing)
    return ops.add_experts(stream, x, w.experts, routed, shared_part(ops, x, w.shared))


def shared_part(ops: Ops, x: torch.Tensor, w: SharedWeight | None) -> torch.Tensor | None:
    """Return what a shared expert makes of x [T, H], if there is one."""
    if w is None:
        return None
    shared = ops.linear(ops.gated_linear(x, w.gate_up, w.activation), w.down)
    return shared if w.gate is None else shared * ops.linear(x, w.gate).sigmoid()


def norm_linear(
    ops: Ops, stream: Stream, norm: NormWeight, w: LinearWeight
) -> tuple[torch.Tensor, Stream]:
    normed, stream = ops.norm(stream, norm)
    return ops.linear(normed, w), stream


def norm_gated_linear(
    ops: Ops, stream: Stream, norm: NormWeight, w: LinearWeight, activation: Gating
) -> tuple[torch.Tensor, Stream]:
    normed, stream = ops.norm(stream, norm)
    return gated_linear(ops, normed, w, activation), stream


def attention(
    ops: Ops,
    qkv: torch.Tensor,
    shape: AttentionShape,
    rotary: Rotary,
    cache: LayerCache,
    step: AttentionMetaData,
) -> torch.Tensor:
    q = ops.qk_norm_rope_store(qkv, shape, rotary, cache, step.slot_mapping)
    return ops.paged_attention(q, shape, cache, step)


COMPOSED: dict[str, Callable[..., Any]] = {
    "linear_parts": linear_parts,
    "gated_linear": gated_linear,
    "add": add,
    "add_experts": add_experts,
    "norm_experts": norm_experts,
    "norm_linear": norm_linear,
    "norm_gated_linear": norm_gated_linear,
    "attention": attention,
}
