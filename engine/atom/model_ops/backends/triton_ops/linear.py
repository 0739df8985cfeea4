"""Linear products: the vendor's library, or a kernel of ours where it was measured to be faster."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from atom.model_ops.backends.triton_ops import norm_linear as fused
from atom.model_ops.backends.triton_ops.activation import silu_and_mul
from atom.model_ops.backends.triton_ops.norms import add_rms_norm, rms_norm
from atom.model_ops.backends.triton_ops.skinny_linear import skinny_linear
from atom.model_ops.backends.triton_ops.split_linear import gated_linear, split_linear
from atom.model_ops.backends.triton_ops.tuning import (
    TOKEN_BUCKETS,
    SkinnyConfig,
    addend_config,
    gated_config,
    linear_config,
)

# Tokens from which the library adds to the residual as it writes the product: the norm behind it
# then reads one tensor and writes one, instead of two each. With fewer the host is what counts.
_ADDED_TOKENS = 2048


def prepare_linear(weight: torch.Tensor) -> torch.Tensor:
    return weight


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    if 0 < x.shape[0] <= TOKEN_BUCKETS[-1]:
        config = linear_config(x.device, x.dtype, weight.shape[0], weight.shape[1], x.shape[0])
        if isinstance(config, SkinnyConfig):
            return skinny_linear(x, weight, bias, config)
        if config is not None:
            return split_linear(x, weight, bias, config)
    return F.linear(x, weight, bias)


def linear_addend(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    if x.shape[0] >= _ADDED_TOKENS and bias is None:
        return residual.addmm_(x, weight.t()), None
    if 0 < x.shape[0] <= TOKEN_BUCKETS[-1]:
        config = addend_config(x.device, x.dtype, weight.shape[0], weight.shape[1], x.shape[0])
        if config is not None:
            return split_linear(x, weight, bias, config), residual
    return linear(x, weight, bias), residual


def norm_linear(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm_weight: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    if fused.can_fuse(x):
        return fused.norm_linear(x, residual, norm_weight, eps, weight, bias, gated=False)
    normed, residual = _norm(x, residual, norm_weight, eps)
    return linear(normed, weight, bias), residual


def norm_gated_linear(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm_weight: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    if fused.can_fuse(x):
        return fused.norm_linear(x, residual, norm_weight, eps, weight, bias, gated=True)
    normed, residual = _norm(x, residual, norm_weight, eps)
    if 0 < normed.shape[0] <= TOKEN_BUCKETS[-1]:
        config = gated_config(x.device, weight.dtype, *weight.shape, normed.shape[0])
        if config is not None:
            return gated_linear(normed, weight, bias, config), residual
    return silu_and_mul(linear(normed, weight, bias)), residual


def _norm(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    if residual is None:
        return rms_norm(x, weight, eps), x
    return add_rms_norm(x, residual, weight, eps)


def embedding(ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.embedding(ids, weight)
