# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Products of a step's tokens with 4-bit matrices, eight codes of a 32-bit word at once.

For activations of 16 bits. Weights are the tall side of the tensor core's tile, whatever the number
of tokens: from the registers where they became numbers they go straight into the product. int4 less
its zero point is exact and its scale follows the product, where a tile's inputs share it; else the
scale is multiplied into the numbers, as MXFP4's exact one is. What is stored in another order of
inputs reads its activations in that order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.products.packed_tiles import (
    by_input,
    group_values,
    in_numbers,
)
from atom.model_ops.backends.triton_ops.products.quantised_tiles import (
    choose_tile,
    new_parts,
    store_part,
)
from atom.model_ops.backends.triton_ops.products.word_gemv import word_gemv
from atom.model_ops.backends.triton_ops.products.word_tiles import (
    fp4_halves,
    fp4_numbers,
    fp4_scales,
    int4_numbers,
    quarters,
)
from atom.model_ops.backends.triton_ops.xcd_order import product_tile
from atom.model_ops.values import LinearWeight, WeightFormat

_BLOCK_K, _NARROW_K = 128, 64
_WORD = 8  # inputs
# Rows of the matrix in a tile, at least: the tall side of the tensor core's.
_TALL = 64
# Tokens of a tile, at most: of more an AMD card's compiler spills registers to memory.
_MOST_TOKENS = 64 if torch.version.hip else 128


@triton.jit
def _dot(acc, x, words, scales, zeros, NIBBLE: tl.constexpr, FP4: tl.constexpr):
    """acc + the inputs NIBBLE and NIBBLE + 4 of words [N, W] with x [2W, T]."""
    if FP4 and x.dtype == tl.bfloat16:
        numbers = fp4_numbers(words, scales, NIBBLE)
    elif FP4:
        numbers = fp4_halves(words, scales, NIBBLE)
    else:
        numbers = int4_numbers(words, zeros, scales, NIBBLE, x.dtype)
    return tl.dot(numbers, x, acc)


@triton.jit
def _tile_product(
    acc, x, words, scales, zeros, GROUPS: tl.constexpr, FP4: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """acc [N, T] + words [N, W] with x [T, 8W]. scales [N, GROUPS] as stored, zeros int16 alike."""
    N: tl.constexpr = words.shape[0]
    WORDS: tl.constexpr = words.shape[1]
    x0, x1, x2, x3 = quarters(x, x.shape[0], 8 * WORDS)
    numbers = fp4_scales(scales) if FP4 and x.dtype == tl.bfloat16 else in_numbers(scales, FP4)
    if SHARED:
        whole = tl.zeros(acc.shape, tl.float32)
        factors = None
    else:
        whole = acc
        factors = by_input(numbers, N, GROUPS, WORDS)
        zeros = by_input(zeros, N, GROUPS, WORDS)
    whole = _dot(whole, x0, words, factors, zeros, 0, FP4)
    whole = _dot(whole, x1, words, factors, zeros, 1, FP4)
    whole = _dot(whole, x2, words, factors, zeros, 2, FP4)
    whole = _dot(whole, x3, words, factors, zeros, 3, FP4)
    return acc + whole * numbers if SHARED else whole


@triton.jit(do_not_specialize=["tokens"])
def _word_kernel(
    x_ptr, w_ptr, scale_ptr, zero_ptr, order_ptr, bias_ptr, parts_ptr, tokens, N, K, slice,
    BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    FP4: tl.constexpr, HAS_BIAS: tl.constexpr, DIES: tl.constexpr,
):  # fmt: skip
    """GROUP: inputs that share a scale, a multiple of BLOCK_K or a part of it; zero_ptr: None where
    every zero point is 8; order_ptr: which input is stored in each place, None where its own."""
    SHARED: tl.constexpr = (not FP4) and GROUP % BLOCK_K == 0  # by all inputs of a tile
    GROUPS: tl.constexpr = (BLOCK_K + GROUP - 1) // GROUP
    part = product_tile(2, DIES)
    t = product_tile(0, DIES) * BLOCK_T + tl.arange(0, BLOCK_T)
    n = product_tile(1, DIES) * BLOCK_N + tl.arange(0, BLOCK_N)
    word, lane = tl.arange(0, BLOCK_K // 8), tl.arange(0, BLOCK_K)
    x_rows = x_ptr + t.to(tl.int64)[:, None] * K
    w_rows = w_ptr + n.to(tl.int64)[:, None] * (K // 8) + word[None, :]
    acc = tl.zeros([BLOCK_N, BLOCK_T], tl.float32)
    # Scales, which are too small to be copied ahead, are read a tile before they are needed.
    first, groups = part * slice, tl.cdiv(K, GROUP)
    group = first // GROUP + tl.arange(0, GROUPS)[None, :]
    known = (n < N)[:, None] & (group < groups)
    scales, zeros = group_values(scale_ptr, zero_ptr, n, groups, group, known)
    for k in range(first, tl.minimum(first + slice, K), BLOCK_K):
        place = k + lane
        inside = place < K
        if order_ptr is not None:
            place = tl.load(order_ptr + place, mask=inside, other=0)
        x_mask = (t < tokens)[:, None] & inside[None, :]
        x = tl.load(x_rows + place[None, :], mask=x_mask, other=0.0)
        w_mask = (n < N)[:, None] & (word < K // 8 - k // 8)[None, :]
        words = tl.load(w_rows + k // 8, mask=w_mask, other=0)
        acc = _tile_product(acc, x, words, scales, zeros, GROUPS, FP4, SHARED)
        group = (k + BLOCK_K) // GROUP + tl.arange(0, GROUPS)[None, :]
        known = (n < N)[:, None] & (group < groups)
        scales, zeros = group_values(scale_ptr, zero_ptr, n, groups, group, known)
    store_part(tl.trans(acc), bias_ptr, parts_ptr, t, n, tokens, N, part, HAS_BIAS)


def _block_k(w: LinearWeight) -> int:
    """Inputs of a tile, which share their scales or hold whole groups; 0: there is no such tile."""
    assert w.scales is not None
    group = w.scales.block[1]
    if group % _BLOCK_K == 0 or (_BLOCK_K % group == 0 and group % _WORD == 0 and group < 64):
        return _BLOCK_K
    return _NARROW_K if group % _NARROW_K == 0 else 0


def takes(x: torch.Tensor, w: LinearWeight) -> bool:
    """Whether the kernel multiplies: 16-bit activations, and groups that are whole and fit a
    tile."""
    groups = None if w.scales is None else w.scales.groups
    if x.dtype not in (torch.bfloat16, torch.float16) or w.inputs % _WORD or _block_k(w) == 0:
        return False
    return groups is None or groups.whole


def word_linear(x: torch.Tensor, w: LinearWeight) -> torch.Tensor:
    """x [T, in] contiguous, w of INT4, INT4_ORDERED or MXFP4 that `takes` → [T, out], or float32
    parts of it [splits, T, out]."""
    scales = w.scales
    assert scales is not None
    tokens, inner = x.shape
    if tokens == 1 and w.format is not WeightFormat.MXFP4:
        return word_gemv(x, w)
    tile = choose_tile(x, w, _block_k(w), _TALL, _MOST_TOKENS)
    parts = new_parts(x, w.outputs, tile)
    _word_kernel[tile.grid(tokens, w.outputs)](
        x, w.data.view(torch.int32), scales.scale, scales.zero,
        None if scales.groups is None else scales.groups.order, w.bias, parts,
        tokens, w.outputs, inner, tile.slice,
        BLOCK_T=tile.block_t, BLOCK_N=tile.block_n, BLOCK_K=tile.block_k, GROUP=scales.block[1],
        FP4=w.format is WeightFormat.MXFP4, HAS_BIAS=w.bias is not None, DIES=tile.dies,
        num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip
    return parts
