# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Grouped GEMM of experts, w13 and w2 alike: a tile of one expert's pairs by its matrix' rows.

Each format has a file with the multiplication of a tile (`Packing`). The sorted order of pairs, or
a search of all of them, gives a tile's pairs (sort_by_expert.py).
"""

from __future__ import annotations

import enum

import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.activation import gated
from atom.model_ops.backends.triton_ops.launch import constant, largest_fp8, next_power_of_2
from atom.model_ops.backends.triton_ops.moe.grouped_fp8 import multiply_fp8
from atom.model_ops.backends.triton_ops.moe.grouped_int4 import multiply_int4
from atom.model_ops.backends.triton_ops.moe.grouped_mxfp4 import multiply_mxfp4
from atom.model_ops.backends.triton_ops.moe.sort_by_expert import pairs_of_expert, tile_of_order
from atom.model_ops.backends.triton_ops.nvidia.fp8_hi_lo import (
    hi_lo_input,
    hi_lo_place,
    split_hi_lo,
)
from atom.model_ops.backends.triton_ops.nvidia.mxfp4_hi_lo import multiply_mxfp4_hi_lo
from atom.model_ops.backends.triton_ops.nvidia.tma_tiles import load_activations, load_weights
from atom.model_ops.backends.triton_ops.quantise_activations import quantise_tile
from atom.model_ops.backends.triton_ops.w13_tiles import as_columns, of_columns
from atom.model_ops.backends.triton_ops.xcd_order import row_tile


class Programs(enum.IntEnum):
    """The unit of work of a program."""

    PAIR = 0
    EXPERT = 1
    TILE = 2  # of the pairs in order


class Packing(enum.IntEnum):
    """The number of inputs that a kernel reads at once."""

    NONE = 0
    INT4 = 1  # two, of a byte
    MXFP4_BYTES = 2  # likewise
    MXFP4_INT32 = 3  # eight, for activations in bfloat16
    FP8 = 4  # one, which the tensor core multiplies with activations in fp8
    MXFP4_HI_LO = 5  # eight, for activations in two fp8 terms


@triton.jit
def _dequantise(codes, scale_ptr, row, k, K, dtype, TALL: tl.constexpr, WIDE: tl.constexpr):
    """8-bit weights [N, K] of these rows as numbers of dtype; the tile's inputs share a scale."""
    # A tile's inputs share a column of scales (BLOCK_K divides WIDE), so it is one scale a row.
    scale_at = scale_ptr + row // TALL * tl.cdiv(K, WIDE) + k // WIDE
    scale = tl.load(scale_at)
    return (codes.to(tl.float32) * scale[:, None]).to(dtype)


@triton.jit
def _multiply(
    rows, real, n, x_ptr, w_ptr, scale_ptr, x_desc, w_desc, first, tile, expert,
    K: tl.constexpr, N: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GATED: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr, HIP: tl.constexpr,
):  # fmt: skip
    """Rows of x with rows n of an expert's W (gated: and rows N + n): [M, N] float32, twice. WIDE:
    inputs that share a scale with TALL rows, 0 where W is plain; *_tiles: see tma_tiles.py.
    """
    dtype = x_ptr.dtype.element_ty
    n = tl.minimum(n, N - 1)  # beyond the last row it is read again, which needs no mask
    if GATED:
        n = as_columns(n, N, HIP)
    acc = tl.zeros([BLOCK_M, n.shape[0]], tl.float32)
    lane = tl.arange(0, BLOCK_K)
    x_rows = x_ptr + rows.to(tl.int64)[:, None] * K + lane[None, :]
    w_rows = w_ptr + n.to(tl.int64)[:, None] * K + lane[None, :]
    # tl.dot from shared memory, pipelined by num_stages; w is transposed by its layout alone.
    for k in range(0, K, BLOCK_K):
        x = load_activations(x_desc, x_rows, real, first, k, K, BLOCK_K)
        w = load_weights(w_desc, w_rows, expert, tile, k, K, BLOCK_K)
        if WIDE:
            w = _dequantise(w, scale_ptr, n, k, K, dtype, TALL, WIDE)
        acc = tl.dot(x, tl.trans(w), acc, input_precision="ieee")
    # w1's columns and w3's separately: w13_tiles.py explains why this needs no exchange.
    if GATED:
        gate, up = of_columns(acc, HIP)
    else:
        gate, up = acc, acc
    return gate, up


@triton.jit
def _expert_product(
    rows, real, n, x, w, x_desc, w_desc, first, tile, expert,
    K: tl.constexpr, N: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GATED: tl.constexpr,
    TALL: tl.constexpr, WIDE: tl.constexpr, COLUMNS: tl.constexpr, ORDERS: tl.constexpr,
    PACKED: tl.constexpr, HIP: tl.constexpr,
):  # fmt: skip
    """Multiply rows of x with rows n of one expert's matrix in its format (`Packing`): [M, N]
    float32, w1's and w3's (where it is one matrix twice the same)."""
    x_ptr, x_scale_ptr = x
    w_ptr, scale_ptr, zero_ptr, inputs_ptr, index_ptr, _ = w
    # 64 bits: a stack of experts has more than 2^31 elements.
    own = expert.to(tl.int64) * N
    if GATED:
        own = own * 2
    scales = scale_ptr
    if WIDE:
        height = 2 * N if GATED else N
        scales += expert.to(tl.int64) * tl.cdiv(height, TALL) * COLUMNS
    if PACKED == 3:
        result, up = multiply_mxfp4(
            rows, real, n, x_ptr, w_ptr + own * (K // 8), scales, K, N, BLOCK_M, BLOCK_N, BLOCK_K,
            GATED,
        )  # fmt: skip
    elif PACKED == 5:
        result, up = multiply_mxfp4_hi_lo(
            rows, real, n, x_ptr, x_scale_ptr, w_ptr + own * (K // 8), scales, K, N, BLOCK_M,
            BLOCK_N, BLOCK_K, GATED,
        )  # fmt: skip
    elif PACKED == 4:
        result, up = multiply_fp8(
            rows, real, n, x_ptr, x_scale_ptr, w_ptr + own * K, scales, x_desc, w_desc, first,
            tile, expert, K, N, BLOCK_M, BLOCK_N, BLOCK_K, GATED, TALL, WIDE, HIP,
        )  # fmt: skip
    elif PACKED > 0:
        zeros, inputs, index = zero_ptr, inputs_ptr, index_ptr
        if zero_ptr is not None:
            # Zero points of int4 are two outputs a byte.
            zeros += own // 2 * COLUMNS
        if inputs_ptr is not None:
            inputs += expert.to(tl.int64) * (ORDERS * K)
        if index_ptr is not None:
            index += expert.to(tl.int64) * (ORDERS * K)
        result, up = multiply_int4(
            rows, real, n, x_ptr, w_ptr + own * (K // 2), scales, zeros, inputs, index, K, N,
            BLOCK_M, BLOCK_N, BLOCK_K, GATED, WIDE, COLUMNS, ORDERS, PACKED == 2,
        )  # fmt: skip
    else:
        result, up = _multiply(
            rows, real, n, x_ptr, w_ptr + own * K, scales, x_desc, w_desc, first, tile, expert,
            K, N, BLOCK_M, BLOCK_N, BLOCK_K, GATED, TALL, WIDE, HIP,
        )  # fmt: skip
    return result, up


@triton.jit
def _columns(tile, BLOCK_N: tl.constexpr, HI_LO: tl.constexpr):
    """The matrix' rows that a tile computes: in the order in which hi/lo terms are stored, where
    results are written as such, so that neighbours in memory are neighbours in registers."""
    lane = tl.arange(0, BLOCK_N)
    return tile * BLOCK_N + (hi_lo_input(lane) if HI_LO else lane)


@triton.jit
def _activate(
    result, up, bias_ptr, own, n, out, places, tile, real, activation,
    N: tl.constexpr, BLOCK_N: tl.constexpr, HI_LO: tl.constexpr,
):  # fmt: skip
    """Make one of w1's and w3's results, or w1's alone what w2 is given; where w2 takes fp8,
    quantised by tile, with its scales written."""
    out_ptr, out_scale_ptr = out
    # Activations that are written in fp8 were bfloat16 (`_packing`).
    dtype = out_ptr.dtype.element_ty if out_scale_ptr is None else tl.bfloat16
    if bias_ptr is not None and constant(activation[0]) != 3:
        up += tl.load(bias_ptr + own + N + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    gate = result.to(dtype).to(tl.float32)  # rounded as the separate operations round
    # By number: assigned to names, constants would become tensors.
    result = gated(
        gate, up.to(dtype).to(tl.float32), dtype, constant(activation[0]), constant(activation[1]),
        constant(activation[2]),
    )  # fmt: skip
    at = places.to(tl.int64)
    if out_scale_ptr is not None and not HI_LO:
        known = tl.where((n < N)[None, :], result.to(dtype).to(tl.float32), 0.0)
        fp8 = out_ptr.dtype.element_ty
        result, scales = quantise_tile(known, largest_fp8(fp8), fp8)
        tl.store(out_scale_ptr + at * tl.cdiv(N, BLOCK_N) + tile, scales, mask=real)
    return result, at


@triton.jit
def _write_pairs(
    result, up, pairs, places, real, n, tile, expert, bias_ptr, weights_ptr, out, tokens,
    activation, N: tl.constexpr, TOP_K: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, HI_LO: tl.constexpr, WEIGHED: tl.constexpr,
):  # fmt: skip
    """Write a tile's results [M, N]: activated for w13, to the pairs' places; weighted for w2, to
    their choice and token. WEIGHED: times the pairs' weights, for w13 those of its inputs."""
    out_ptr, out_scale_ptr = out
    IS_W13: tl.constexpr = activation is not None
    own = expert.to(tl.int64) * N
    if IS_W13 and constant(activation[0]) != 3:
        own = own * 2
    if IS_W13 and WEIGHED:
        weights = tl.load(weights_ptr + pairs, mask=real, other=0.0)[:, None]
        result, up = result * weights, up * weights
    if bias_ptr is not None:
        result += tl.load(bias_ptr + own + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    if IS_W13:
        result, at = _activate(
            result, up, bias_ptr, own, n, out, places, tile, real, activation, N, BLOCK_N, HI_LO
        )
    else:
        if WEIGHED:
            result *= tl.load(weights_ptr + pairs, mask=real, other=0.0)[:, None]
        # Choice by choice, tokens side by side: the next norm adds up parts of whole rows.
        at = (pairs % TOP_K).to(tl.int64) * tokens + pairs // TOP_K
    if HI_LO:
        # The activation's limit is the results', so one scale does for all of them, and no program
        # waits for the others' largest.
        MOST: tl.constexpr = largest_fp8(out_ptr.dtype.element_ty)
        LIMIT: tl.constexpr = constant(activation[2])
        SCALE: tl.constexpr = LIMIT * (LIMIT + 1.0) / MOST
        hi, lo = split_hi_lo(
            result.to(tl.bfloat16).to(tl.float32) / SCALE, out_ptr.dtype.element_ty
        )
        lane = tl.arange(0, BLOCK_N)
        place = tile * (2 * BLOCK_N) + hi_lo_place(lane)
        out_at = out_ptr + at[:, None] * (2 * N) + place[None, :]
        # Groups are whole: said so, neighbours are stored at once.
        whole = real[:, None] & (tile * BLOCK_N + lane // 32 * 32 < N)[None, :]
        tl.store(out_at, hi, mask=whole)
        tl.store(out_at + 32, lo, mask=whole)
        tl.store(out_scale_ptr + at, tl.full([BLOCK_M], SCALE, tl.float32), mask=real)
    else:
        out_at = out_ptr + at[:, None] * N + n[None, :]
        out_mask = real[:, None] & (n < N)[None, :]
        tl.store(out_at, result.to(out_ptr.dtype.element_ty), mask=out_mask)


@triton.jit(do_not_specialize=["tokens"])
def sorted_gemm_kernel(
    x, w, routed, out, x_desc, w_desc, tokens, activation,
    K: tl.constexpr, N: tl.constexpr, EXPERTS: tl.constexpr, TOP_K: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    TALL: tl.constexpr, WIDE: tl.constexpr, COLUMNS: tl.constexpr, ORDERS: tl.constexpr,
    PACKED: tl.constexpr, HI_LO: tl.constexpr, HIP: tl.constexpr, DIES: tl.constexpr,
    WEIGHED: tl.constexpr,
):  # fmt: skip
    """Multiply pairs that are sorted by expert: a program has a tile of them and of the rows of
    their expert's matrix. With an activation (kind, alpha, limit) w13: x [T, K], W [E, 2·N, K],
    without a gate (kind 3) [E, N, K] → [P, N]; without (None) w2: x [P, K], W [E, N, K] → [k, T,
    N]; one of the two is WEIGHED.

    x: with scales if it is quantised; w: data, scales, zero points, order and groups of inputs
    (grouped_int4.py), bias; routed: weights, order and counts (sort_by_expert.py); out: with scales
    if results are quantised; *_desc: see tma_tiles.py. TALL, WIDE: outputs and inputs that share a
    scale; COLUMNS: scales of a row; HIP: see w13_tiles.py; PACKED: see `Packing`.
    """
    weights_ptr, order_ptr, counts_ptr = routed
    IS_W13: tl.constexpr = activation is not None
    GATED: tl.constexpr = IS_W13 and constant(activation[0]) != 3
    # Neighbours share rows of x, and an expert's matrix stays in the cache from tile to tile.
    tile = row_tile(0, DIES)
    expert, first, end = tile_of_order(
        counts_ptr, row_tile(1, DIES), EXPERTS, next_power_of_2(EXPERTS), BLOCK_M
    )
    # The grid bounds the tiles from above without reading the counts: the last ones have no expert.
    if expert < EXPERTS:
        at = first + tl.arange(0, BLOCK_M)
        real = at < end
        pairs = tl.load(order_ptr + at, mask=real, other=0)
        n = _columns(tile, BLOCK_N, HI_LO)
        rows = pairs // TOP_K if IS_W13 else at
        result, up = _expert_product(
            rows, real, n, x, w, x_desc, w_desc, first, tile, expert, K, N, BLOCK_M, BLOCK_N,
            BLOCK_K, GATED, TALL, WIDE, COLUMNS, ORDERS, PACKED, HIP,
        )  # fmt: skip
        _write_pairs(
            result, up, pairs, at, real, n, tile, expert, w[5], weights_ptr, out, tokens,
            activation, N, TOP_K, BLOCK_M, BLOCK_N, HI_LO, WEIGHED,
        )  # fmt: skip


@triton.jit(do_not_specialize=["tokens"])
def searched_gemm_kernel(
    x, w, routed, out, tokens, activation,
    K: tl.constexpr, N: tl.constexpr, PROGRAMS: tl.constexpr, TOP_K: tl.constexpr,
    SEARCH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    TALL: tl.constexpr, WIDE: tl.constexpr, COLUMNS: tl.constexpr, ORDERS: tl.constexpr,
    PACKED: tl.constexpr, HIP: tl.constexpr, WEIGHED: tl.constexpr,
):  # fmt: skip
    """Multiply pairs of few tokens, which each program searches for its expert's instead of having
    them sorted: reading a few hundred ids costs less than a launch. PROGRAMS: of a pair (0), where
    the expert's first pair computes for the others, or of an expert (1). routed: experts and
    weights by pair. The rest is as in `sorted_gemm_kernel`."""
    chosen_ptr, weights_ptr = routed
    IS_W13: tl.constexpr = activation is not None
    GATED: tl.constexpr = IS_W13 and constant(activation[0]) != 3
    count = tokens * TOP_K
    tile = tl.program_id(0)
    expert = tl.program_id(1)
    if PROGRAMS == 0:
        expert = tl.load(chosen_ptr + tl.program_id(1))
    pairs, found = pairs_of_expert(chosen_ptr, expert, 0, count, BLOCK_M, SEARCH)
    if PROGRAMS == 0:
        # Of an expert that several pairs chose, all but the first's programs end here.
        leader = tl.max(tl.where(tl.arange(0, BLOCK_M) == 0, pairs, 0), axis=0)
        found = tl.where(leader == tl.program_id(1), found, 0)
    for first in range(0, found, BLOCK_M):
        if first > 0:
            pairs, _ = pairs_of_expert(chosen_ptr, expert, first, count, BLOCK_M, SEARCH)
        real = first + tl.arange(0, BLOCK_M) < found
        n = _columns(tile, BLOCK_N, False)
        rows = pairs // TOP_K if IS_W13 else pairs
        result, up = _expert_product(
            rows, real, n, x, w, None, None, 0, tile, expert, K, N, BLOCK_M, BLOCK_N, BLOCK_K,
            GATED, TALL, WIDE, COLUMNS, ORDERS, PACKED, HIP,
        )  # fmt: skip
        _write_pairs(
            result, up, pairs, pairs, real, n, tile, expert, w[5], weights_ptr, out, tokens,
            activation, N, TOP_K, BLOCK_M, BLOCK_N, False, WEIGHED,
        )  # fmt: skip
