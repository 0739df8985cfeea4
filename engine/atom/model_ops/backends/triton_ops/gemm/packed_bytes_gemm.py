# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Products with 4-bit matrices: weights become numbers of the activations' dtype in the kernel.

A byte has two neighbouring inputs, so a tile of W is two, of even and of odd inputs, and so is a
tile of activations: two products, without interleaving. int4 minus its zero point is exact; its
scale is applied after the product if a tile's inputs share it, else it is multiplied into the tile.
MXFP4 is exact with its scale. The kernel is for activations of any dtype, and for groups that are
split among ranks; packed_int32_gemm.py computes most products of 16-bit activations.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.gemm.packed_bytes import (
    group_values,
    scale_values,
    unpacked,
    unpacked_by_index,
)
from atom.model_ops.backends.triton_ops.gemm.quantised_tiles import (
    choose_tile,
    new_parts,
    store_part,
)
from atom.model_ops.backends.triton_ops.xcd_order import product_tile
from atom.model_ops.values import LinearWeight, Scales, WeightFormat

_BLOCK_K = 128
# Tokens of a tile, at most: of more an AMD card's compiler spills registers to memory.
_MOST_TOKENS, _MOST_PARTED = 64, 32


@triton.jit(do_not_specialize=["tokens"])
def _packed_bytes_kernel(
    x_ptr, w_ptr, scale_ptr, zero_ptr, order_ptr, index_ptr, bias_ptr, parts_ptr,
    tokens, N, K, groups, slice,
    BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    FP4: tl.constexpr, HAS_BIAS: tl.constexpr, DIES: tl.constexpr,
):  # fmt: skip
    """GROUP: inputs that share one of the `groups` scales of a row; zero_ptr: None if every zero
    point is 8; order_ptr: the input stored in each place, index_ptr: its group, None if places are
    inputs and groups contiguous."""
    SHARED: tl.constexpr = GROUP % BLOCK_K == 0 and index_ptr is None  # by all inputs of a tile
    part = product_tile(2, DIES)
    t = product_tile(0, DIES) * BLOCK_T + tl.arange(0, BLOCK_T)
    n = product_tile(1, DIES) * BLOCK_N + tl.arange(0, BLOCK_N)
    lane = tl.arange(0, BLOCK_K // 2)
    inner = tl.arange(0, BLOCK_K)
    # Any K and any group: masks everywhere, the price of taking what packed_int32_gemm.py does not.
    real, rows = (t < tokens)[:, None], (n < N)[:, None]
    x_rows = x_ptr + t.to(tl.int64)[:, None] * K
    w_rows = w_ptr + n.to(tl.int64)[:, None] * (K // 2)
    acc = tl.zeros([BLOCK_T, BLOCK_N], tl.float32)
    for k in range(part * slice, tl.minimum(part * slice + slice, K), BLOCK_K):
        pair, place = k // 2 + lane, k + inner
        known = rows & (pair < K // 2)[None, :]
        codes = tl.load(w_rows + pair[None, :], mask=known, other=0)
        inside = place < K
        # act-order: weights are stored by group, so activations are gathered instead.
        if order_ptr is not None:
            place = tl.load(order_ptr + place, mask=inside, other=0)
        x = tl.load(x_rows + place[None, :], mask=real & inside[None, :], other=0.0)
        # Two dots of half the depth: nibbles of a byte are neighbours in K, and interleaving
        # weights would cost more than splitting x.
        x_even, x_odd = tl.split(tl.reshape(x, (BLOCK_T, BLOCK_K // 2, 2)))
        scale = tl.full([1, 1], 1.0, tl.float32)
        if index_ptr is not None:
            even, odd = unpacked_by_index(
                codes, scale_ptr, zero_ptr, index_ptr, n, groups, pair, known, x.dtype
            )
        else:
            group = (k // GROUP) + tl.zeros([1, 1], tl.int32)
            if not SHARED:
                group, rows_known = (2 * pair)[None, :] // GROUP, known
            else:
                rows_known = rows
            stored, zero = group_values(scale_ptr, zero_ptr, n, groups, group, rows_known)
            scale = scale_values(stored, FP4)
            even, odd = unpacked(codes, 1.0 if SHARED else scale, zero, x.dtype, FP4)
        product = tl.dot(x_even, tl.trans(even), input_precision="ieee")
        product = tl.dot(x_odd, tl.trans(odd), product, input_precision="ieee")
        # One scale for all inputs of the tile follows the dot.
        if SHARED:
            product = product * tl.trans(scale)
        acc += product
    store_part(acc, bias_ptr, parts_ptr, t, n, tokens, N, part, HAS_BIAS)


def packed_bytes_linear(x: torch.Tensor, w: LinearWeight) -> torch.Tensor:
    """Map x [T, in] contiguous, w of INT4, INT4_ORDERED (one part, sorted) or MXFP4 → [T, out], or
    float32 parts of it [splits, T, out]."""
    scales = w.scales
    assert scales is not None
    tokens, inner = x.shape
    order, index = orders(scales)
    tile = choose_tile(x, w, _BLOCK_K, most_t=_MOST_TOKENS if index is None else _MOST_PARTED)
    parts = new_parts(x, w.outputs, tile)
    _packed_bytes_kernel[tile.grid(tokens, w.outputs)](
        x, w.data, scales.scale, scales.zero, order, index, w.bias, parts,
        tokens, w.outputs, inner, scales.scale.shape[-1], tile.slice,
        BLOCK_T=tile.block_t, BLOCK_N=tile.block_n, BLOCK_K=tile.block_k, GROUP=scales.block[1],
        FP4=w.format is WeightFormat.MXFP4, HAS_BIAS=w.bias is not None, DIES=tile.dies,
        num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip
    return parts


def orders(scales: Scales) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return the order of sorted inputs, and each input's group if groups are not contiguous; None
    for a part that is not needed."""
    if scales.groups is None:
        return None, None
    return scales.groups.order, None if scales.groups.whole else scales.groups.index
