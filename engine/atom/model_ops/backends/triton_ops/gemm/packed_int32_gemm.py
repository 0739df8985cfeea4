# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Products of a step's tokens with 4-bit matrices, eight 4-bit weights of an int32 word at once.

For activations of 16 bits. Weights are the tall side of the tensor core's tile, for any number of
tokens: they go straight from the registers where they became numbers into the product, as long as
no data that was read in another layout meets a number before. So int4 is multiplied as bare codes,
and its scale follows the product, if a tile's inputs share it. Zero points are multiplied with sums
of inputs that are computed before, together with the inputs' order (packed_int32_inputs.py).
Smaller groups' scales are multiplied into the numbers, as MXFP4's exact one is.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.gemm.measured_tiles import measured_tile
from atom.model_ops.backends.triton_ops.gemm.packed_bytes import (
    by_input,
    group_values,
    scale_values,
)
from atom.model_ops.backends.triton_ops.gemm.packed_int32 import (
    LACK_BF16,
    LACK_FP16,
    int4_tile,
    mxfp4_scales_to_bf16,
    mxfp4_to_bf16,
    mxfp4_to_fp16,
    quarters,
)
from atom.model_ops.backends.triton_ops.gemm.packed_int32_gemv import packed_gemv
from atom.model_ops.backends.triton_ops.gemm.packed_int32_inputs import packed_inputs
from atom.model_ops.backends.triton_ops.gemm.quantised_tiles import new_parts, store_part
from atom.model_ops.backends.triton_ops.xcd_order import product_tile
from atom.model_ops.values import LinearWeight, WeightFormat

_BLOCK_K, _NARROW_K = 128, 64
_WORD = 8  # inputs
# Sums of inputs that are multiplied with zero points at once.
_GROUP_SUMS = tl.constexpr(16)
# Rows of the matrix in a tile, at least: the tall side of the tensor core's.
_TALL = 64
# Tokens of a tile, at most: of more an AMD card's compiler spills registers to memory.
_MOST_TOKENS = 64 if torch.version.hip else 128


@triton.jit
def _fp4_dot(acc, x, words, scales, NIBBLE: tl.constexpr):
    """acc + the inputs NIBBLE and NIBBLE + 4 of words [N, W] with x [2W, T]."""
    # Weights are the left operand and come from registers: they are made there, and shared memory
    # is left to x.
    if x.dtype == tl.bfloat16:
        numbers = mxfp4_to_bf16(words, scales, NIBBLE)
    else:
        numbers = mxfp4_to_fp16(words, scales, NIBBLE)
    return tl.dot(numbers, x, acc)


@triton.jit
def _fp4_product(acc, x, words, scales, GROUPS: tl.constexpr):
    """acc [N, T] + words [N, W] with x [T, 8W]; scales [N, GROUPS] as stored."""
    WORDS: tl.constexpr = words.shape[1]
    x0, x1, x2, x3 = quarters(x, x.shape[0], 8 * WORDS)
    numbers = mxfp4_scales_to_bf16(scales) if x.dtype == tl.bfloat16 else scale_values(scales, True)
    factors = by_input(numbers, words.shape[0], GROUPS, WORDS)
    # Four dots of a quarter of the depth, one a pair of nibbles: no weight is moved to its place in
    # K.
    acc = _fp4_dot(acc, x0, words, factors, 0)
    acc = _fp4_dot(acc, x1, words, factors, 1)
    acc = _fp4_dot(acc, x2, words, factors, 2)
    return _fp4_dot(acc, x3, words, factors, 3)


@triton.jit
def _int4_product(acc, x, words, scales, GROUPS: tl.constexpr, SHARED: tl.constexpr):
    """`_fp4_product` of int4, with x as packed_int32_inputs.py writes it."""
    scales = scales.to(tl.float32)
    # With one scale a tile even the subtraction of the zero point leaves the tile: see
    # _add_zero_points.
    if SHARED:
        whole = tl.dot(int4_tile(words, None, x.dtype), tl.trans(x))
        return acc + whole * (scales * (LACK_BF16 if x.dtype == tl.bfloat16 else LACK_FP16))
    factors = by_input(scales, words.shape[0], GROUPS, words.shape[1])
    return tl.dot(int4_tile(words, factors, x.dtype), tl.trans(x), acc)


@triton.jit
def _add_zero_points(
    acc, total_ptr, scale_ptr, zero_ptr, t, n, tokens, N, first, last, chunks, groups,
    SHARE: tl.constexpr, CENTRE: tl.constexpr,
):  # fmt: skip
    """acc [N, T] + what zero points that are not CENTRE add to the chunks first .. last - 1, of
    which SHARE share a group; total_ptr: sums of inputs [tokens, chunks]. Exact as float32 are:
    the tensor core has each as three bfloat16."""
    last = tl.minimum(last, groups * SHARE)  # a tile beyond the inputs is of no group
    for at in range(first, last, _GROUP_SUMS):
        chunk = at + tl.arange(0, _GROUP_SUMS)
        inside = (chunk < last)[None, :]
        totals = tl.load(
            total_ptr + t.to(tl.int64)[:, None] * chunks + chunk[None, :],
            mask=(t < tokens)[:, None] & inside, other=0.0,
        )  # fmt: skip
        known = (n < N)[:, None] & inside
        scales, zeros = group_values(
            scale_ptr, zero_ptr, n, groups, (chunk // SHARE)[None, :], known
        )
        offsets = (CENTRE - zeros).to(tl.float32) * scales.to(tl.float32)
        high, middle, low = _in_bfloat16(offsets)
        total_high, total_middle, total_low = _in_bfloat16(tl.trans(totals))
        acc = tl.dot(high, total_high, acc)
        acc = tl.dot(high, total_middle, acc)
        acc = tl.dot(high, total_low, acc)
        acc = tl.dot(middle, total_high, acc)
        acc = tl.dot(middle, total_middle, acc)
        acc = tl.dot(low, total_high, acc)
    return acc


@triton.jit
def _in_bfloat16(values):
    """float32 → three bfloat16 that it is the sum of."""
    # 8 + 8 + 8 bits of fraction hold float32's 24.
    high = values.to(tl.bfloat16)
    values -= high.to(tl.float32)
    middle = values.to(tl.bfloat16)
    return high, middle, (values - middle.to(tl.float32)).to(tl.bfloat16)


@triton.jit(do_not_specialize=["tokens"])
def _packed_int32_kernel(
    x_ptr, total_ptr, w_ptr, scale_ptr, zero_ptr, bias_ptr, parts_ptr, tokens, N, K, slice, row,
    BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    FP4: tl.constexpr, EVEN: tl.constexpr, HAS_BIAS: tl.constexpr, DIES: tl.constexpr,
):  # fmt: skip
    """GROUP: inputs that share a scale, a multiple of BLOCK_K or a part of it; zero_ptr: None if
    every zero point is 8; row: numbers of a row of x; EVEN: they are K, and whole tiles; total_ptr:
    for int4, the sums from packed_int32_inputs.py."""
    SHARED: tl.constexpr = (not FP4) and GROUP % BLOCK_K == 0  # by all inputs of a tile
    GROUPS: tl.constexpr = (BLOCK_K + GROUP - 1) // GROUP
    # Tokens are the fastest axis: neighbours read the same weights.
    part = product_tile(2, DIES)
    t = product_tile(0, DIES) * BLOCK_T + tl.arange(0, BLOCK_T)
    n = product_tile(1, DIES) * BLOCK_N + tl.arange(0, BLOCK_N)
    word, lane = tl.arange(0, BLOCK_K // 8), tl.arange(0, BLOCK_K)
    real, x_rows = (t < tokens)[:, None], x_ptr + t.to(tl.int64)[:, None] * row + lane[None, :]
    own = tl.minimum(n, N - 1)  # beyond the last row it is read again, which needs no mask
    w_rows = w_ptr + own.to(tl.int64)[:, None] * (K // 8) + word[None, :]
    acc = tl.zeros([BLOCK_N, BLOCK_T], tl.float32)
    first, groups = part * slice, tl.cdiv(K, GROUP)
    last = tl.minimum(first + slice, row)
    CENTRE: tl.constexpr = 0 if SHARED else 8
    if not FP4 and (zero_ptr is not None or CENTRE == 0):
        CHUNK: tl.constexpr = BLOCK_K // GROUPS
        acc = _add_zero_points(
            acc, total_ptr, scale_ptr, zero_ptr, t, n, tokens, N, first // CHUNK,
            last // CHUNK, row // CHUNK, groups, GROUP // CHUNK, CENTRE,
        )  # fmt: skip
    # Scales, which are too small to be copied ahead, are read a tile before they are needed.
    group = first // GROUP + tl.arange(0, GROUPS)[None, :]
    scale_rows = scale_ptr + own.to(tl.int64)[:, None] * groups
    scales = tl.load(scale_rows + group, mask=group < groups, other=0)
    for k in range(first, last, BLOCK_K):
        if EVEN:
            x, words = tl.load(x_rows + k, mask=real, other=0.0), tl.load(w_rows + k // 8)
        else:
            x = tl.load(x_rows + k, mask=real & (lane < row - k)[None, :], other=0.0)
            words = tl.load(w_rows + k // 8, mask=(word < K // 8 - k // 8)[None, :], other=0)
        # Scales are applied as late as the format allows: conversions, not dots, are what holds 4
        # bits back.
        if FP4:
            acc = _fp4_product(acc, x, words, scales, GROUPS)
        else:
            acc = _int4_product(acc, x, words, scales, GROUPS, SHARED)
        group = (k + BLOCK_K) // GROUP + tl.arange(0, GROUPS)[None, :]
        scales = tl.load(scale_rows + group, mask=group < groups, other=0)
    store_part(tl.trans(acc), bias_ptr, parts_ptr, t, n, tokens, N, part, HAS_BIAS)


def _block_k(w: LinearWeight) -> int:
    """Return the inputs of a tile, which share their scales or hold whole groups; 0 if there is no
    such tile."""
    assert w.scales is not None
    group = w.scales.block[1]
    if group % _BLOCK_K == 0 or (_BLOCK_K % group == 0 and group % _WORD == 0 and group < 64):
        return _BLOCK_K
    return _NARROW_K if group % _NARROW_K == 0 else 0


def takes(x: torch.Tensor, w: LinearWeight) -> bool:
    """Return whether the kernel supports the product: 16-bit activations, and groups that are whole
    and fit a tile."""
    groups = None if w.scales is None else w.scales.groups
    if x.dtype not in (torch.bfloat16, torch.float16) or w.inputs % _WORD or _block_k(w) == 0:
        return False
    return groups is None or groups.whole


def packed_linear(x: torch.Tensor, w: LinearWeight) -> torch.Tensor:
    """Map x [T, in] contiguous, w of INT4, INT4_ORDERED or MXFP4 that `takes` → [T, out], or
    float32 parts of it [splits, T, out]."""
    scales = w.scales
    assert scales is not None
    tokens, inner = x.shape
    if tokens == 1 and w.format is not WeightFormat.MXFP4:
        return packed_gemv(x, w)
    block_k, group, totals = _block_k(w), scales.block[1], None
    tile = measured_tile(x, w, block_k, _TALL, _MOST_TOKENS)
    parts = new_parts(x, w.outputs, tile)
    if w.format is not WeightFormat.MXFP4:
        order = None if scales.groups is None else scales.groups.order
        shared = group % block_k == 0
        x, totals = packed_inputs(x, order, block_k, min(group, block_k), larger=shared)
    _packed_int32_kernel[tile.grid(tokens, w.outputs)](
        x, totals, w.data.view(torch.int32), scales.scale, scales.zero, w.bias, parts,
        tokens, w.outputs, inner, tile.slice, x.shape[1],
        BLOCK_T=tile.block_t, BLOCK_N=tile.block_n, BLOCK_K=tile.block_k, GROUP=group,
        FP4=w.format is WeightFormat.MXFP4, EVEN=inner % block_k == 0,
        HAS_BIAS=w.bias is not None, DIES=tile.dies,
        num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip
    return parts
