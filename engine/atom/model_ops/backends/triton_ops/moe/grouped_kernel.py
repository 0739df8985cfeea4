# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The kernel of both products of experts: a tile of one expert's pairs and of its matrix' rows.

What a tile is multiplied by, its format's own file says (`Packing`); which pairs it has, the order
of pairs or a search of all of them (sort_by_expert.py).
"""

from __future__ import annotations

import enum

import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.activation import gated
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
    """What a program belongs to."""

    PAIR = 0
    EXPERT = 1
    TILE = 2  # of the pairs in order


class Packing(enum.IntEnum):
    """How many inputs a kernel takes at once."""

    NONE = 0
    INT4 = 1  # two, of a byte
    MXFP4_BYTES = 2  # likewise
    MXFP4_INT32 = 3  # eight, for activations in bfloat16
    FP8 = 4  # one, which the tensor core multiplies with activations in fp8
    MXFP4_HI_LO = 5  # eight, for activations in twin codes


@triton.jit
def _dequantise(codes, scale_ptr, row, k, K, dtype, TALL: tl.constexpr, WIDE: tl.constexpr):
    """Eight-bit codes [N, K] of these rows as numbers of dtype; the tile's inputs share a scale."""
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
    for k in range(0, K, BLOCK_K):
        x = load_activations(x_desc, x_rows, real, first, k, K, BLOCK_K)
        w = load_weights(w_desc, w_rows, expert, tile, k, K, BLOCK_K)
        if WIDE:
            w = _dequantise(w, scale_ptr, n, k, K, dtype, TALL, WIDE)
        acc = tl.dot(x, tl.trans(w), acc, input_precision="ieee")
    if GATED:
        gate, up = of_columns(acc, HIP)
    else:
        gate, up = acc, acc
    return gate, up


@triton.jit
def _tile(
    pairs, places, real, first, tile, expert, x_ptr, x_scale_ptr, w_ptr, scale_ptr, zero_ptr,
    inputs_ptr, index_ptr, bias_ptr, weights_ptr, out_ptr, out_scale_ptr, x_desc, w_desc, tokens,
    K: tl.constexpr, N: tl.constexpr,
    TOP_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GATED: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
    COLUMNS: tl.constexpr, ORDERS: tl.constexpr, PACKED: tl.constexpr, FP8_MOST: tl.constexpr,
    HI_LO: tl.constexpr, HIP: tl.constexpr, WEIGHED: tl.constexpr,
    KIND: tl.constexpr, ALPHA: tl.constexpr, LIMIT: tl.constexpr,
):  # fmt: skip
    """One expert's product for these pairs [M], written for each. places: the rows of what gates
    and ups give, from `first` on where pairs are in order. WEIGHED: times their weights, which is
    the same as of its inputs. out_scale_ptr: where results are written in fp8, those of a tile with
    one scale, or HI_LO."""
    lane = tl.arange(0, BLOCK_N)
    n = tile * BLOCK_N + (hi_lo_input(lane) if HI_LO else lane)
    own = expert.to(tl.int64) * N
    if GATED:
        own = own * 2
    rows = pairs // TOP_K if GATED else places
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
    if GATED and WEIGHED:
        weights = tl.load(weights_ptr + pairs, mask=real, other=0.0)[:, None]
        result, up = result * weights, up * weights
    if bias_ptr is not None:
        result += tl.load(bias_ptr + own + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    if GATED:
        # Activations that are written in fp8 were bfloat16 (`_packing`).
        dtype = out_ptr.dtype.element_ty if out_scale_ptr is None else tl.bfloat16
        if bias_ptr is not None:
            up += tl.load(bias_ptr + own + N + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
        gate = result.to(dtype).to(tl.float32)  # rounded as the separate operations round
        result = gated(gate, up.to(dtype).to(tl.float32), dtype, KIND, ALPHA, LIMIT)
        at = places.to(tl.int64)
        if out_scale_ptr is not None and not HI_LO:
            known = tl.where((n < N)[None, :], result.to(dtype).to(tl.float32), 0.0)
            result, scales = quantise_tile(known, FP8_MOST, out_ptr.dtype.element_ty)
            tl.store(out_scale_ptr + at * tl.cdiv(N, BLOCK_N) + tile, scales, mask=real)
    else:
        if WEIGHED:
            result *= tl.load(weights_ptr + pairs, mask=real, other=0.0)[:, None]
        at = (pairs % TOP_K).to(tl.int64) * tokens + pairs // TOP_K
    if HI_LO:
        # The activation's limit is the results', so one scale does for all of them.
        SCALE: tl.constexpr = LIMIT * (LIMIT + 1.0) / FP8_MOST
        code, lacking = split_hi_lo(
            result.to(tl.bfloat16).to(tl.float32) / SCALE, out_ptr.dtype.element_ty
        )
        place = tile * (2 * BLOCK_N) + hi_lo_place(lane)
        out_at = out_ptr + at[:, None] * (2 * N) + place[None, :]
        # Groups are whole: said so, neighbours are stored at once.
        whole = real[:, None] & (tile * BLOCK_N + lane // 32 * 32 < N)[None, :]
        tl.store(out_at, code, mask=whole)
        tl.store(out_at + 32, lacking, mask=whole)
        tl.store(out_scale_ptr + at, tl.full([BLOCK_M], SCALE, tl.float32), mask=real)
    else:
        out_at = out_ptr + at[:, None] * N + n[None, :]
        out_mask = real[:, None] & (n < N)[None, :]
        tl.store(out_at, result.to(out_ptr.dtype.element_ty), mask=out_mask)


@triton.jit(do_not_specialize=["tokens"])
def grouped_gemm_kernel(
    x_ptr, x_scale_ptr, w_ptr, scale_ptr, zero_ptr, inputs_ptr, index_ptr, bias_ptr, chosen_ptr,
    weights_ptr, order_ptr, counts_ptr, out_ptr, out_scale_ptr, x_desc, w_desc, tokens,
    K: tl.constexpr, N: tl.constexpr,
    PROGRAMS: tl.constexpr, EXPERTS: tl.constexpr, EXPERTS_PADDED: tl.constexpr,
    TOP_K: tl.constexpr, SEARCH: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GATED: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
    COLUMNS: tl.constexpr, ORDERS: tl.constexpr, PACKED: tl.constexpr, FP8_MOST: tl.constexpr,
    HI_LO: tl.constexpr, HIP: tl.constexpr, DIES: tl.constexpr, WEIGHED: tl.constexpr,
    KIND: tl.constexpr, ALPHA: tl.constexpr, LIMIT: tl.constexpr,
):  # fmt: skip
    """GATED: x [T, K], W [E, 2·N, K] → [P, N]; else x [P, K], W [E, N, K] → [k, T, N]; one
    of the two is WEIGHED. P are pairs, in order where they have one. x_scale_ptr, out_scale_ptr:
    where x and the result are of codes (grouped_fp8.py), whose largest is FP8_MOST. TALL, WIDE:
    outputs and inputs that share a scale; COLUMNS: scales of a row; HIP: see w13_tiles.py;
    inputs_ptr, index_ptr, ORDERS: see grouped_int4.py; x_desc, w_desc: see tma_tiles.py.
    PACKED: see `Packing`.
    """
    count = tokens * TOP_K
    # Neighbours share rows of x, and an expert's matrix stays in the cache from tile to tile.
    tile = row_tile(0, DIES)
    if PROGRAMS == 2:
        expert, first, end = tile_of_order(
            counts_ptr, row_tile(1, DIES), EXPERTS, EXPERTS_PADDED, BLOCK_M
        )
        if expert < EXPERTS:
            at = first + tl.arange(0, BLOCK_M)
            real = at < end
            pairs = tl.load(order_ptr + at, mask=real, other=0)
            _tile(
                pairs, at, real, first, tile, expert, x_ptr, x_scale_ptr, w_ptr, scale_ptr,
                zero_ptr, inputs_ptr, index_ptr, bias_ptr, weights_ptr, out_ptr, out_scale_ptr,
                x_desc, w_desc, tokens, K, N, TOP_K, BLOCK_M, BLOCK_N, BLOCK_K, GATED, TALL,
                WIDE, COLUMNS, ORDERS, PACKED, FP8_MOST, HI_LO, HIP, WEIGHED, KIND, ALPHA, LIMIT,
            )  # fmt: skip
    else:
        expert = tl.program_id(1)
        if PROGRAMS == 0:
            expert = tl.load(chosen_ptr + tl.program_id(1))
        pairs, found = pairs_of_expert(chosen_ptr, expert, 0, count, BLOCK_M, SEARCH)
        if PROGRAMS == 0:
            leader = tl.max(tl.where(tl.arange(0, BLOCK_M) == 0, pairs, 0), axis=0)
            found = tl.where(leader == tl.program_id(1), found, 0)
        for first in range(0, found, BLOCK_M):
            if first > 0:
                pairs, _ = pairs_of_expert(chosen_ptr, expert, first, count, BLOCK_M, SEARCH)
            real = first + tl.arange(0, BLOCK_M) < found
            _tile(
                pairs, pairs, real, 0, tile, expert, x_ptr, x_scale_ptr, w_ptr, scale_ptr,
                zero_ptr, inputs_ptr, index_ptr, bias_ptr, weights_ptr, out_ptr, out_scale_ptr,
                x_desc, w_desc, tokens, K, N, TOP_K, BLOCK_M, BLOCK_N, BLOCK_K, GATED, TALL,
                WIDE, COLUMNS, ORDERS, PACKED, FP8_MOST, HI_LO, HIP, WEIGHED, KIND, ALPHA, LIMIT,
            )  # fmt: skip
