"""Linear products: the vendor's library, or a kernel of ours where it was measured to be faster.

With quantised matrices always a kernel of ours (scaled_linear.py, expanded_linear.py).
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F

from atom.model_ops.backends.triton_ops import norm_linear as fused
from atom.model_ops.backends.triton_ops import scaled_linear as scaled
from atom.model_ops.backends.triton_ops.activation import act_and_mul
from atom.model_ops.backends.triton_ops.expanded_linear import expanded_linear
from atom.model_ops.backends.triton_ops.norms import norm as settle_and_norm
from atom.model_ops.backends.triton_ops.quantised_tiles import whole
from atom.model_ops.backends.triton_ops.skinny_linear import skinny_linear
from atom.model_ops.backends.triton_ops.split_linear import gated_linear, split_linear
from atom.model_ops.backends.triton_ops.tuning import (
    TOKEN_BUCKETS,
    SkinnyConfig,
    addend_config,
    gated_config,
    linear_config,
)
from atom.model_ops.quantised.codes import to_fnuz
from atom.model_ops.quantised.dequantise import expanded
from atom.model_ops.values import (
    EIGHT_BITS,
    Activation,
    Gating,
    LinearWeight,
    NormWeight,
    Pending,
    Stream,
)
from atom.utils.device import native_fp8

# Tokens from which the library adds to the residual as it writes the product: the norm behind it
# then reads one tensor and writes one, instead of two each. With fewer the host is what counts.
_ADDED_TOKENS = 2048


def prepare_linear(w: LinearWeight) -> LinearWeight:
    scales = w.scales
    if scales is None or scales.format not in EIGHT_BITS:
        return w
    if not scaled.takes(w):
        return expanded(w)
    if w.data.dtype is torch.float8_e4m3fn and native_fp8(w.data.device) is not w.data.dtype:
        data, scale = to_fnuz(w.data, scales.scale)
        return replace(w, data=data, scales=replace(scales, scale=scale))
    return w


def linear(x: torch.Tensor, w: LinearWeight) -> torch.Tensor:
    if w.scales is not None:
        return whole(_quantised_parts(x, w), x.dtype)
    if 0 < x.shape[0] <= TOKEN_BUCKETS[-1]:
        config = linear_config(x.device, x.dtype, w.outputs, w.inputs, x.shape[0])
        if isinstance(config, SkinnyConfig):
            return skinny_linear(x, w, config)
        if config is not None:
            return split_linear(x, w, config)
    return F.linear(x, w.data, w.bias)


def _quantised_parts(x: torch.Tensor, w: LinearWeight) -> torch.Tensor:
    if x.shape[0] == 0:
        return x.new_empty((0, w.outputs))
    x = x.contiguous()
    return scaled.scaled_linear(x, w) if w.format in EIGHT_BITS else expanded_linear(x, w)


def add(stream: Stream, x: torch.Tensor, w: LinearWeight) -> Stream:
    if w.scales is not None:
        parts = _quantised_parts(x, w)
        pending_is = Pending.PARTS if parts.dim() == 3 else Pending.WHOLE
        return Stream(stream.residual, parts, pending_is)
    if x.shape[0] >= _ADDED_TOKENS and w.bias is None:
        return Stream(stream.residual.addmm_(x, w.data.t()))
    if 0 < x.shape[0] <= TOKEN_BUCKETS[-1]:
        config = addend_config(x.device, x.dtype, w.outputs, w.inputs, x.shape[0])
        if config is not None:
            pending_is = Pending.PARTS if config.split_k > 1 else Pending.WHOLE
            return Stream(stream.residual, split_linear(x, w, config), pending_is)
    return stream.plus(linear(x, w))


def norm_linear(stream: Stream, norm: NormWeight, w: LinearWeight) -> tuple[torch.Tensor, Stream]:
    if w.scales is None and fused.can_fuse(stream):
        return fused.norm_linear(stream, norm, w, gated=False)
    normed, stream = settle_and_norm(stream, norm)
    return linear(normed, w), stream


def norm_gated_linear(
    stream: Stream, norm: NormWeight, w: LinearWeight, activation: Gating
) -> tuple[torch.Tensor, Stream]:
    fusable = activation is Activation.SILU and w.scales is None
    if fusable and fused.can_fuse(stream):
        return fused.norm_linear(stream, norm, w, gated=True)
    normed, stream = settle_and_norm(stream, norm)
    if fusable and 0 < normed.shape[0] <= TOKEN_BUCKETS[-1]:
        config = gated_config(normed.device, normed.dtype, w.outputs, w.inputs, normed.shape[0])
        if config is not None:
            return gated_linear(normed, w, config), stream
    return act_and_mul(linear(normed, w), activation), stream


def embedding(ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.embedding(ids, weight)
