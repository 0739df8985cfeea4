"""The fused operations, composed of the single ones: for backends that do not fuse them.

Each function is made over the operations that were resolved, so an override of a single operation
counts here as well. The contract of each is in interface.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from atom.model_ops.backends.interface import AttentionShape, Ops
from atom.utils.forward_context import AttentionMetaData


def linear_addend(
    ops: Ops,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    return ops.linear(x, weight, bias), residual


def norm_linear(
    ops: Ops,
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm_weight: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    if residual is None:
        normed, residual = ops.rms_norm(x, norm_weight, eps), x
    else:
        normed, residual = ops.add_rms_norm(x, residual, norm_weight, eps)
    return ops.linear(normed, weight, bias), residual


def norm_gated_linear(
    ops: Ops,
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm_weight: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    gate_up, residual = norm_linear(ops, x, residual, norm_weight, eps, weight, bias)
    return ops.silu_and_mul(gate_up), residual


def attention(
    ops: Ops,
    qkv: torch.Tensor,
    shape: AttentionShape,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    metadata: AttentionMetaData,
) -> torch.Tensor:
    q = ops.qk_norm_rope_store(
        qkv, shape, q_norm, k_norm, eps, cos_sin, positions, k_cache, v_cache,
        metadata.slot_mapping,
    )  # fmt: skip
    return ops.paged_attention(q, k_cache, v_cache, shape, metadata)


COMPOSED: dict[str, Callable[..., Any]] = {
    "linear_addend": linear_addend,
    "norm_linear": norm_linear,
    "norm_gated_linear": norm_gated_linear,
    "attention": attention,
}
