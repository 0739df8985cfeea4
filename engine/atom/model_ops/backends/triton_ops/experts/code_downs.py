# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Downs of one token's experts in codes of eight bits: rows of all of them at once, weighed.

Warps lie along the inputs, those of an expert behind those of another, so a lane has its own
activations, and what is added up among warps is a program's few sums at the end.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.products.code_rows import (
    LANE,
    lane_codes,
    lane_inputs,
    lane_sums,
)


@triton.jit
def code_downs(
    x_ptr, chosen_ptr, weights_ptr, w_ptr, scale_ptr, first, N: tl.constexpr, K: tl.constexpr,
    TOP_K: tl.constexpr, TOP_K_PADDED: tl.constexpr, ROWS: tl.constexpr, BLOCK_K: tl.constexpr,
    UNROLL: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Multiply one token's x [TOP_K, K] with its experts' rows from `first` on, of W [E, N, K] →
    their weighed sum [ROWS] float32. A tile has BLOCK_K inputs of every expert. UNROLL, TALL, WIDE:
    as code_rows'."""
    LANES: tl.constexpr = BLOCK_K // LANE  # of an expert
    COLUMNS: tl.constexpr = (K + WIDE - 1) // WIDE if WIDE else 1
    n, lane = first + tl.arange(0, ROWS), tl.arange(0, TOP_K_PADDED * LANES)
    number, inner = lane // LANES, lane % LANES * LANE
    real = number < TOP_K
    expert = tl.load(chosen_ptr + number, mask=real, other=0).to(tl.int64)
    w_rows = w_ptr + (expert * (N * K) + inner)[None, :] + n[:, None] * K
    x_at = x_ptr + number * K + inner
    known = (n < N)[:, None]
    acc = tl.zeros([ROWS, TOP_K_PADDED * LANES], tl.float32)
    for start in tl.range(0, K, BLOCK_K, loop_unroll_factor=UNROLL):
        codes = lane_codes(w_rows + start, inner, known & real[None, :], K - start)
        low, high = lane_inputs(x_at + start, inner, real, K - start)
        sums = lane_sums(codes, low, high)
        if WIDE:
            blocks = expert * ((N + TALL - 1) // TALL * COLUMNS) + first // TALL * COLUMNS
            scale_at = scale_ptr + blocks + (start + inner) // WIDE
            sums *= tl.load(scale_at, mask=real & (inner < K - start), other=0.0)[None, :]
        acc += sums
    weights = tl.load(weights_ptr + number, mask=real, other=0.0)[None, :]
    if not WIDE:
        scale_at = scale_ptr + (expert * N)[None, :] + n[:, None]
        weights *= tl.load(scale_at, mask=known & real[None, :], other=0.0)
    return tl.sum(acc * weights, axis=1)
