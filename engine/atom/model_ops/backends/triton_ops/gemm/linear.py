"""Linear products: the vendor's library, or our kernel if it was measured to be faster.

Products with quantised matrices always use our kernels (w8a8_gemm.py, packed_int32_gemm.py,
packed_bytes_gemm.py; w8a16_gemv.py for one token).
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F

from atom.model_ops.activations import Activation, Gating
from atom.model_ops.backends.triton_ops.activation import act_and_mul
from atom.model_ops.backends.triton_ops.compile.tuning import SkinnyConfig
from atom.model_ops.backends.triton_ops.gemm import norm_linear as fused
from atom.model_ops.backends.triton_ops.gemm import split_k_linear as split
from atom.model_ops.backends.triton_ops.gemm import w8a8_gemm as scaled
from atom.model_ops.backends.triton_ops.gemm import w8a16_gemv as w8a16
from atom.model_ops.backends.triton_ops.gemm.choose import (
    addend_config,
    gated_config,
    linear_config,
)
from atom.model_ops.backends.triton_ops.gemm.dequantise_matrix import dequantise
from atom.model_ops.backends.triton_ops.gemm.packed_bytes_gemm import orders, packed_bytes_linear
from atom.model_ops.backends.triton_ops.gemm.packed_int32_gemm import packed_linear
from atom.model_ops.backends.triton_ops.gemm.packed_int32_gemm import takes as takes_packed
from atom.model_ops.backends.triton_ops.gemm.quantised_tiles import whole
from atom.model_ops.backends.triton_ops.gemm.skinny_linear import skinny_linear
from atom.model_ops.backends.triton_ops.gemm.split_k_linear import split_k_linear
from atom.model_ops.backends.triton_ops.norms import norm as settle_and_norm
from atom.model_ops.backends.triton_ops.nvidia import scaled_mm as library
from atom.model_ops.quantised.codes import to_fnuz
from atom.model_ops.quantised.dequantise import expanded
from atom.model_ops.quantised.sorted_inputs import parts_of, sort_inputs
from atom.model_ops.values import (
    EIGHT_BITS,
    LinearWeight,
    NormWeight,
    Pending,
    Stream,
    WeightFormat,
)
from atom.utils.device import native_fp8

# Of a scale of MXFP4 as stored, 127 more than it says: 2^126 times a larger one, which is what
# the experts' kernel makes of it (grouped_mxfp4.py), is no bfloat16.
_LARGEST_EXPONENT = 128
# Tokens from which the library adds to the residual as it writes the product: the norm behind it
# then reads one tensor and writes one, instead of two each. With fewer the host is what counts.
_ADDED_TOKENS = 2048
# Tokens from which a 4-bit matrix is made a plain one first, for the library.
_DEQUANTISED_TOKENS = 512


def prepare_linear(w: LinearWeight) -> LinearWeight:
    scales = w.scales
    if scales is None or scales.format is WeightFormat.INT4:
        return w
    if scales.format is WeightFormat.INT4_ORDERED:
        return sort_inputs(w)
    if scales.format is WeightFormat.MXFP4:
        return w if int(scales.scale.max()) <= _LARGEST_EXPONENT else expanded(w)
    if not scaled.takes(w):
        return expanded(w)
    if w.data.dtype is torch.float8_e4m3fn and native_fp8(w.data.device) is not w.data.dtype:
        data, scale = to_fnuz(w.data, scales.scale)
        return replace(w, data=data, scales=replace(scales, scale=scale))
    return w


def linear(x: torch.Tensor, w: LinearWeight) -> torch.Tensor:
    if _takes_w8a16(x, w):
        return w8a16.w8a16_linear(x.contiguous(), w)
    config = linear_config(x.device, w, x.shape[0])
    if isinstance(config, SkinnyConfig):
        return skinny_linear(x, w, config)
    if config is not None:
        return whole(split_k_linear(x, w, config), x.dtype)
    if w.scales is not None:
        return whole(_quantised_parts(x, w, in_parts=False), x.dtype)
    return F.linear(x, w.data, w.bias)


def _takes_w8a16(x: torch.Tensor, w: LinearWeight) -> bool:
    """Return whether the product is of one token with an fp8 matrix that has a kernel for one
    token."""
    return x.shape[0] == 1 and w8a16.takes(w, gated=False)


def _quantised_parts(x: torch.Tensor, w: LinearWeight, *, in_parts: bool) -> torch.Tensor:
    """Multiply x with a quantised matrix. in_parts: whether a norm adds up the parts."""
    if x.shape[0] == 0:
        return x.new_empty((0, w.outputs))
    x = x.contiguous()
    if w.format not in EIGHT_BITS:
        parts = [_four_bits(x, part) for part in parts_of(w)]
        return parts[0] if len(parts) == 1 else torch.cat([whole(p, x.dtype) for p in parts], 1)
    if library.takes(x, w) and library.is_faster(x.shape[0], in_parts=in_parts):
        return library.multiply(x, w)
    return scaled.w8a8_linear(x, w)


def _four_bits(x: torch.Tensor, w: LinearWeight) -> torch.Tensor:
    if x.shape[0] < _DEQUANTISED_TOKENS:
        return packed_linear(x, w) if takes_packed(x, w) else packed_bytes_linear(x, w)
    assert w.scales is not None
    order, _ = orders(w.scales)
    plain = dequantise(w, x.dtype)
    return F.linear(x if order is None else x[:, order[0]], plain.data, plain.bias)


def add(stream: Stream, x: torch.Tensor, w: LinearWeight) -> Stream:
    if x.shape[0] >= _ADDED_TOKENS and w.scales is None and w.bias is None:
        return Stream(stream.residual.addmm_(x, w.data.t()))
    parts = linear_parts(x, w)
    pending_is = Pending.PARTS if parts.dim() == 3 else Pending.WHOLE
    return Stream(stream.residual, parts, pending_is)


def linear_parts(x: torch.Tensor, w: LinearWeight) -> torch.Tensor:
    config = addend_config(x.device, w, x.shape[0])
    if config is not None:
        return split_k_linear(x, w, config)
    alone = _takes_w8a16(x, w) or linear_config(x.device, w, x.shape[0]) is not None
    return linear(x, w) if w.scales is None or alone else _quantised_parts(x, w, in_parts=True)


def norm_linear(stream: Stream, norm: NormWeight, w: LinearWeight) -> tuple[torch.Tensor, Stream]:
    if fused.can_fuse(stream, w):
        return _one_token(stream, norm, w, gated=False)
    normed, stream = settle_and_norm(stream, norm)
    return linear(normed, w), stream


def _one_token(
    stream: Stream, norm: NormWeight | None, w: LinearWeight, *, gated: bool
) -> tuple[torch.Tensor, Stream]:
    """Norm and multiply one token: with an fp8 matrix by its own kernel, else as in `fused`."""
    if w8a16.takes(w, gated=gated):
        return w8a16.norm_w8a16_linear(stream, norm, w, gated=gated)
    return fused.norm_linear(stream, norm, w, gated=gated)


def norm_gated_linear(
    stream: Stream, norm: NormWeight, w: LinearWeight, activation: Gating
) -> tuple[torch.Tensor, Stream]:
    if activation is Activation.SILU and fused.can_fuse(stream, w):
        return _one_token(stream, norm, w, gated=True)
    normed, stream = settle_and_norm(stream, norm)
    return gated_linear(normed, w, activation), stream


def gated_linear(x: torch.Tensor, w: LinearWeight, activation: Gating) -> torch.Tensor:
    if activation is Activation.SILU:
        if fused.can_fuse(Stream(x), w):
            return _one_token(Stream(x), None, w, gated=True)[0]
        config = gated_config(x.device, w, x.shape[0])
        if config is not None:
            return split.gated_linear(x, w, config)
    return act_and_mul(linear(x, w), activation)


def embedding(ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.embedding(ids, weight)
