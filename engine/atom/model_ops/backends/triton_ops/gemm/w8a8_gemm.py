# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Products with 8-bit matrices: tiles of quantised numbers are multiplied, and scaled as they are
added up.

fp8: activations have a scale for 128 neighbouring inputs; every 128 inputs the tensor core's sum is
scaled and added in float32, which also compensates for its narrow accumulators (DeepSeek-V3, arXiv
2412.19437, section 3.3.2). The kernel itself quantises few tokens; a kernel before it quantises
many. int8: one sum of integers, scaled at the end by token and output.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.gemm.measured_tiles import measured_tile
from atom.model_ops.backends.triton_ops.gemm.quantised_tiles import new_parts, store_part
from atom.model_ops.backends.triton_ops.quantise_activations import (
    GROUP,
    fp8_limit,
    quantise_groups,
    quantise_rows,
    quantise_tile,
)
from atom.model_ops.backends.triton_ops.xcd_order import product_tile
from atom.model_ops.values import LinearWeight, WeightFormat

# Tokens that the kernel quantises by itself: again for every tile of outputs.
_FEW_TOKENS = 32
_LEAST_BLOCK = 32


@triton.jit(do_not_specialize=["tokens"])
def _fp8_kernel(
    x_ptr, x_scale_ptr, w_ptr, scale_ptr, bias_ptr, parts_ptr, tokens, N, K, slice,
    BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    TALL: tl.constexpr, WIDE: tl.constexpr, LIMIT: tl.constexpr,
    QUANTISES: tl.constexpr, HAS_BIAS: tl.constexpr, DIES: tl.constexpr,
):  # fmt: skip
    """BLOCK_K divides a group of activations. TALL, WIDE: the block of the matrix that shares a
    scale; WIDE 0 for one scale per output. QUANTISES: x is plain, without x_scale_ptr."""
    part = product_tile(2, DIES)
    # Neighbours share a tile of W: it is read from memory once.
    t = product_tile(0, DIES) * BLOCK_T + tl.arange(0, BLOCK_T)
    n = product_tile(1, DIES) * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    real, rows = t < tokens, n < N
    w_rows = w_ptr + n.to(tl.int64)[:, None] * K
    x_rows = x_ptr + t.to(tl.int64)[:, None] * K
    groups = tl.cdiv(K, BLOCK_K)
    acc = tl.zeros([BLOCK_T, BLOCK_N], tl.float32)
    for k in range(part * slice, tl.minimum(part * slice + slice, K), BLOCK_K):
        at = (k + inner)[None, :]
        w = tl.load(w_rows + at, mask=rows[:, None] & (at < K), other=0.0)
        x = tl.load(x_rows + at, mask=real[:, None] & (at < K), other=0.0)
        # Of few tokens here, again in each program of outputs: cheaper than a launch before.
        if QUANTISES:
            x, x_scale = quantise_tile(x.to(tl.float32), LIMIT, w_ptr.dtype.element_ty)
        else:
            x_scale = tl.load(x_scale_ptr + t * groups + k // BLOCK_K, mask=real, other=0.0)
        # From 0 for every tile: scales are multiplied in float32, and Hopper's narrow fp8 sums stay
        # short.
        product = tl.dot(x, tl.trans(w)) * x_scale[:, None]
        if WIDE:
            scale_at = scale_ptr + n // TALL * tl.cdiv(K, WIDE) + k // WIDE
            product = product * tl.load(scale_at, mask=rows, other=0.0)[None, :]
        acc += product
    # An output's scale is common to all of K.
    if not WIDE:
        acc = acc * tl.load(scale_ptr + n, mask=rows, other=0.0)[None, :]
    store_part(acc, bias_ptr, parts_ptr, t, n, tokens, N, part, HAS_BIAS)


@triton.jit(do_not_specialize=["tokens"])
def _int8_kernel(
    x_ptr, x_scale_ptr, w_ptr, scale_ptr, bias_ptr, parts_ptr, tokens, N, K, slice,
    BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, HAS_BIAS: tl.constexpr,
    DIES: tl.constexpr,
):  # fmt: skip
    part = product_tile(2, DIES)
    t = product_tile(0, DIES) * BLOCK_T + tl.arange(0, BLOCK_T)
    n = product_tile(1, DIES) * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    real, rows = t < tokens, n < N
    w_rows = w_ptr + n.to(tl.int64)[:, None] * K
    x_rows = x_ptr + t.to(tl.int64)[:, None] * K
    # int32 sums are exact for K up to 2^17, so scales may wait until the end.
    acc = tl.zeros([BLOCK_T, BLOCK_N], tl.int32)
    for k in range(part * slice, tl.minimum(part * slice + slice, K), BLOCK_K):
        at = (k + inner)[None, :]
        w = tl.load(w_rows + at, mask=rows[:, None] & (at < K), other=0)
        x = tl.load(x_rows + at, mask=real[:, None] & (at < K), other=0)
        acc = tl.dot(x, tl.trans(w), acc, out_dtype=tl.int32)
    # One scale a token and one an output: a rank-1 factor of the whole product.
    x_scale = tl.load(x_scale_ptr + t, mask=real, other=0.0)
    scale = tl.load(scale_ptr + n, mask=rows, other=0.0)
    result = acc.to(tl.float32) * x_scale[:, None] * scale[None, :]
    store_part(result, bias_ptr, parts_ptr, t, n, tokens, N, part, HAS_BIAS)


def w8a8_linear(x: torch.Tensor, w: LinearWeight) -> torch.Tensor:
    """Map x [T, in] contiguous, w of FP8, FP8_BLOCKS or INT8 → [T, out], or float32 parts of it
    [splits, T, out]."""
    assert w.scales is not None
    tokens, inner = x.shape
    tile = measured_tile(x, w, _block_k(w))
    parts = new_parts(x, w.outputs, tile)
    sizes = (tokens, w.outputs, inner, tile.slice)
    blocks = {
        "BLOCK_T": tile.block_t, "BLOCK_N": tile.block_n, "BLOCK_K": tile.block_k,
        "DIES": tile.dies,
    }  # fmt: skip
    launch = {"num_warps": tile.num_warps, "num_stages": tile.num_stages}
    if w.format is WeightFormat.INT8:
        codes, x_scale = quantise_rows(x)
        _int8_kernel[tile.grid(tokens, w.outputs)](
            codes, x_scale, w.data, w.scales.scale, w.bias, parts, *sizes,
            **blocks, HAS_BIAS=w.bias is not None, **launch,
        )  # fmt: skip
        return parts
    few = tokens <= _FEW_TOKENS
    tall, wide = w.scales.block
    pair = (x, None) if few else quantise_groups(x, w.data.dtype, tile.block_k)
    _fp8_kernel[tile.grid(tokens, w.outputs)](
        *pair, w.data, w.scales.scale, w.bias, parts, *sizes,
        **blocks, TALL=tall, WIDE=wide if w.format is WeightFormat.FP8_BLOCKS else 0,
        LIMIT=fp8_limit(w.data.dtype), QUANTISES=few, HAS_BIAS=w.bias is not None, **launch,
    )  # fmt: skip
    return parts


def _block_k(w: LinearWeight) -> int:
    """Return the inputs of a tile: those that share a scale, of activations and of the matrix."""
    assert w.scales is not None
    wide = w.scales.block[1] if w.format is WeightFormat.FP8_BLOCKS else GROUP
    return math.gcd(wide, GROUP)


def takes(w: LinearWeight) -> bool:
    """Return whether a tile of the matrix is wide enough for the tensor core."""
    return _block_k(w) >= _LEAST_BLOCK
