# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Products with 4-bit matrices: codes become numbers of the activations' dtype in the kernel.

A byte has two neighbouring inputs, so a tile of W is two, of even and of odd inputs, and so is a
tile of activations: two products, and nothing has to be interleaved. int4 less its zero point is
exact; its scale follows where a tile's inputs share it, else it is multiplied into the tile.
MXFP4 is exact with its scale.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.products.packed_tiles import (
    in_numbers,
    unpacked,
    zero_points,
)
from atom.model_ops.backends.triton_ops.products.quantised_tiles import (
    choose_tile,
    new_parts,
    store_part,
)
from atom.model_ops.backends.triton_ops.xcd_order import product_tile
from atom.model_ops.values import LinearWeight, WeightFormat

_BLOCK_K = 128


@triton.jit(do_not_specialize=["tokens"])
def _expand_kernel(
    x_ptr, w_ptr, scale_ptr, zero_ptr, bias_ptr, parts_ptr, tokens, N, K, slice,
    BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    FP4: tl.constexpr, HAS_ZERO: tl.constexpr, HAS_BIAS: tl.constexpr, DIES: tl.constexpr,
):  # fmt: skip
    """GROUP: inputs that share a scale."""
    SHARED: tl.constexpr = GROUP % BLOCK_K == 0  # by all inputs of a tile
    part = product_tile(2, DIES)
    t = product_tile(0, DIES) * BLOCK_T + tl.arange(0, BLOCK_T)
    n = product_tile(1, DIES) * BLOCK_N + tl.arange(0, BLOCK_N)
    pair = tl.arange(0, BLOCK_K // 2)
    inner = tl.arange(0, BLOCK_K)
    real, rows = t < tokens, n < N
    x_rows = x_ptr + t.to(tl.int64)[:, None] * K
    w_rows = w_ptr + n.to(tl.int64)[:, None] * (K // 2)
    groups = tl.cdiv(K, GROUP)
    acc = tl.zeros([BLOCK_T, BLOCK_N], tl.float32)
    for k in range(part * slice, tl.minimum(part * slice + slice, K), BLOCK_K):
        inside = (k + 2 * pair)[None, :] < K
        codes = tl.load(w_rows + (k // 2 + pair)[None, :], mask=rows[:, None] & inside, other=0)
        at = (k + inner)[None, :]
        x = tl.load(x_rows + at, mask=real[:, None] & (at < K), other=0.0)
        x_even, x_odd = tl.split(tl.reshape(x, (BLOCK_T, BLOCK_K // 2, 2)))
        if SHARED:
            group = (k // GROUP) + tl.zeros([1, 1], tl.int32)
            known = rows[:, None]
        else:
            group = (k + 2 * pair)[None, :] // GROUP
            known = rows[:, None] & inside
        scale = tl.load(scale_ptr + n[:, None] * groups + group, mask=known, other=0)
        scale = in_numbers(scale, FP4)
        zero = tl.full([1, 1], 8, tl.int16)
        if HAS_ZERO:
            pairs = tl.load(zero_ptr + (n // 2)[:, None] * groups + group, mask=known, other=0)
            zero = zero_points(pairs, n)
        even, odd = unpacked(codes, 1.0 if SHARED else scale, zero, x.dtype, FP4)
        product = tl.dot(x_even, tl.trans(even), input_precision="ieee")
        product = tl.dot(x_odd, tl.trans(odd), product, input_precision="ieee")
        if SHARED:
            product = product * tl.trans(scale)
        acc += product
    store_part(acc, bias_ptr, parts_ptr, t, n, tokens, N, part, HAS_BIAS)


def expanded_linear(x: torch.Tensor, w: LinearWeight) -> torch.Tensor:
    """x [T, in] contiguous, w of INT4 or MXFP4 → [T, out], or float32 parts of it
    [splits, T, out]."""
    scales = w.scales
    assert scales is not None
    tokens, inner = x.shape
    tile = choose_tile(x.device, tokens, w.outputs, inner, _BLOCK_K)
    parts = new_parts(x, w.outputs, tile)
    _expand_kernel[tile.grid(tokens, w.outputs)](
        x, w.data, scales.scale, scales.zero, w.bias, parts,
        tokens, w.outputs, inner, tile.slice,
        BLOCK_T=tile.block_t, BLOCK_N=tile.block_n, BLOCK_K=tile.block_k, GROUP=scales.block[1],
        FP4=w.format is WeightFormat.MXFP4, HAS_ZERO=scales.zero is not None,
        HAS_BIAS=w.bias is not None, DIES=tile.dies,
        num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip
    return parts
