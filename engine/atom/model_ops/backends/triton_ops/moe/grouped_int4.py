# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The product of an expert's 4-bit matrix with its tokens.

Weights are the tall side of the tensor core's tile, for any number of tokens: they go straight from
the registers where they became numbers into the product. An expert whose inputs are stored in
another order reads its activations in that order; if w1's and w3's orders differ, twice.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.gemm.packed_bytes import (
    by_input,
    scale_values,
    unpacked,
    unpacked_by_index,
    zero_points,
)


@triton.jit
def _zeros_of(zero_ptr, n, known, group, inside, groups, HAS_ZERO: tl.constexpr):
    """Zero points [N, GROUPS] int16 of int4, two outputs a byte."""
    if HAS_ZERO:
        at = zero_ptr + (n // 2).to(tl.int64)[:, None] * groups + group[None, :]
        return zero_points(tl.load(at, mask=known[:, None] & inside[None, :], other=0), n)
    else:
        return tl.full([1, 1], 8, tl.int16)


@triton.jit
def _tile_product(
    acc, x_even, x_odd, codes, scales, zeros,
    BLOCK_N: tl.constexpr, GROUPS: tl.constexpr, PAIRS: tl.constexpr,
    FP4: tl.constexpr, HAS_ZERO: tl.constexpr,
):  # fmt: skip
    # Without zero points every group's is 8, a constant of the subtraction.
    if HAS_ZERO:
        zeros = by_input(zeros, BLOCK_N, GROUPS, PAIRS)
    scales = by_input(scale_values(scales, FP4), BLOCK_N, GROUPS, PAIRS)
    even, odd = unpacked(codes, scales, zeros, x_even.dtype, FP4)
    # Two dots of half the depth: the nibbles of a byte are neighbours in K.
    acc = tl.dot(even, tl.trans(x_even), acc, input_precision="ieee")
    return tl.dot(odd, tl.trans(x_odd), acc, input_precision="ieee")


@triton.jit
def _indexed_product(
    acc, x_even, x_odd, codes, scale_ptr, zero_ptr, index_ptr, n, groups, pair, known
):
    """With codes [N, PAIRS] of int4 whose inputs' groups index_ptr names one by one."""
    even, odd = unpacked_by_index(
        codes, scale_ptr, zero_ptr, index_ptr, n, groups, pair, known, x_even.dtype
    )
    acc = tl.dot(even, tl.trans(x_even), acc, input_precision="ieee")
    return tl.dot(odd, tl.trans(x_odd), acc, input_precision="ieee")


@triton.jit
def _inputs(x_rows, inputs_ptr, k, mask, K: tl.constexpr, BLOCK_K: tl.constexpr):
    """Even and odd inputs of a tile from k on, [M, PAIRS] each."""
    lane = tl.arange(0, BLOCK_K)
    # act-order: activations are gathered by their stored places, weights are stored by group.
    if inputs_ptr is None:
        x = tl.load(x_rows + k, mask=mask, other=0.0)
    else:
        place = tl.load(inputs_ptr + k + lane, mask=lane < K - k, other=0)
        x = tl.load(x_rows + place[None, :], mask=mask, other=0.0)
    return tl.split(tl.reshape(x, (x.shape[0], BLOCK_K // 2, 2)))


@triton.jit
def multiply_int4(
    rows, real, n, x_ptr, w_ptr, scale_ptr, zero_ptr, inputs_ptr, index_ptr,
    K: tl.constexpr, N: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GATED: tl.constexpr, GROUP: tl.constexpr, COLUMNS: tl.constexpr, ORDERS: tl.constexpr,
    FP4: tl.constexpr,
):  # fmt: skip
    """Multiply rows of x with rows n of an expert's W (gated: and rows N + n): [M, N] float32,
    twice. GROUP: inputs that share one of a row's COLUMNS scales; zero_ptr: None if every zero
    point is 8; inputs_ptr: [ORDERS, K], the input stored in each place (of two orders the second is
    the ups'), index_ptr its group, None if places are inputs and groups contiguous."""
    HAS_ZERO: tl.constexpr = zero_ptr is not None
    GROUPS: tl.constexpr = (BLOCK_K + GROUP - 1) // GROUP
    PAIRS: tl.constexpr = BLOCK_K // 2
    lane, pair, number = tl.arange(0, BLOCK_K), tl.arange(0, PAIRS), tl.arange(0, GROUPS)
    groups: tl.constexpr = COLUMNS
    UP: tl.constexpr = K if ORDERS == 2 else 0  # the place of the ups' order
    # N need not be a multiple of the tile: rows beyond the last are masked.
    known = n < N
    x_rows = x_ptr + rows.to(tl.int64)[:, None] * K
    if inputs_ptr is None:
        x_rows += lane[None, :]
    w_rows = w_ptr + n.to(tl.int64)[:, None] * (K // 2) + pair[None, :]
    up_rows = w_rows + N * (K // 2)
    scale_rows = scale_ptr + n.to(tl.int64)[:, None] * groups + number[None, :]
    up_scale_rows = scale_rows + N * groups
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    up = acc
    # Scales, which are too small to be copied ahead, are read a tile before they are needed.
    mask = known[:, None] & (number < groups)[None, :]
    scales = tl.load(scale_rows, mask=mask, other=0)
    up_scales = tl.load(up_scale_rows, mask=mask, other=0) if GATED else scales
    for k in range(0, K, BLOCK_K):
        x_mask, w_mask = real[:, None], known[:, None]
        if K % BLOCK_K:
            x_mask = x_mask & (lane < K - k)[None, :]
            w_mask = w_mask & (pair < (K - k) // 2)[None, :]
        x_even, x_odd = _inputs(x_rows, inputs_ptr, k, x_mask, K, BLOCK_K)
        group = k // GROUP + number
        codes = tl.load(w_rows + k // 2, mask=w_mask, other=0)
        if index_ptr is not None:
            stored = known[:, None] & (pair < (K - k) // 2)[None, :]
            acc = _indexed_product(
                acc, x_even, x_odd, codes, scale_ptr, zero_ptr, index_ptr, n, groups,
                k // 2 + pair, stored,
            )  # fmt: skip
        else:
            zeros = _zeros_of(zero_ptr, n, known, group, group < groups, groups, HAS_ZERO)
            acc = _tile_product(
                acc, x_even, x_odd, codes, scales, zeros, BLOCK_N, GROUPS, PAIRS, FP4, HAS_ZERO
            )
        following = (k + BLOCK_K) // GROUP
        mask = known[:, None] & (number < groups - following)[None, :]
        scales = tl.load(scale_rows + following, mask=mask, other=0)
        if GATED:
            # w3 was quantised by itself and has another order: activations are read twice.
            if ORDERS == 2:
                x_even, x_odd = _inputs(x_rows, inputs_ptr + UP, k, x_mask, K, BLOCK_K)
            codes = tl.load(up_rows + k // 2, mask=w_mask, other=0)
            if index_ptr is not None:
                up = _indexed_product(
                    up, x_even, x_odd, codes, scale_ptr, zero_ptr, index_ptr + UP, N + n, groups,
                    k // 2 + pair, stored,
                )  # fmt: skip
            else:
                zeros = _zeros_of(zero_ptr, N + n, known, group, group < groups, groups, HAS_ZERO)
                up = _tile_product(
                    up, x_even, x_odd, codes, up_scales, zeros, BLOCK_N, GROUPS, PAIRS, FP4,
                    HAS_ZERO,
                )  # fmt: skip
            up_scales = tl.load(up_scale_rows + following, mask=mask, other=0)
    return tl.trans(acc), tl.trans(up)
