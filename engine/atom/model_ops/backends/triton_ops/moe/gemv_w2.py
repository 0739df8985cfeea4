# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""W2 of one token's experts, plain or in MXFP4: rows of all of them at once, weighed."""

from __future__ import annotations

import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.moe.gemv_rows import MXFP4_REST, mxfp4_dot, mxfp4_scale
from atom.model_ops.backends.triton_ops.mxfp4_layout import (
    RUN_EXPONENTS,
    RUN_WORDS,
    exponents_of,
    first_row_places,
    places,
    row_places,
)


@triton.jit
def w2_rows(
    x_ptr, chosen_ptr, weights_ptr, w_ptr, scale_ptr, n, known, N: tl.constexpr,
    K: tl.constexpr, TOP_K: tl.constexpr, TOP_K_PADDED: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr, FP4: tl.constexpr, INTERLEAVED: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Multiply one token's x [TOP_K, K] with rows n of its experts, W [E, N, K], plain or in MXFP4
    → their weighed sum [ROWS] float32. ALIGNED: of so many inputs or words in turn the first's
    place is a multiple."""
    WIDTH: tl.constexpr = K // 8 if FP4 else K  # of a row of W
    lane = tl.arange(0, TOP_K_PADDED * BLOCK_K)
    # A tile spans all of a token's experts: their sum is one reduction, and the result needs no
    # second kernel.
    number, k = lane // BLOCK_K, lane % BLOCK_K
    real = number < TOP_K
    expert = tl.load(chosen_ptr + number, mask=real, other=0).to(tl.int64)
    STEP: tl.constexpr = 8 if INTERLEAVED else 1  # in memory, of what is the next in all rows
    place = expert * (N * WIDTH) + first_row_places(k, RUN_WORDS, INTERLEAVED)
    # So many are contiguous, which the compiler cannot derive for looked-up places.
    at = tl.max_contiguous(tl.multiple_of(place, ALIGNED), ALIGNED)
    w_at, n = w_ptr + at[None, :], n[:, None]
    mask = known & (real & (k < WIDTH))[None, :]
    row = row_places(n, k[None, :], WIDTH, RUN_WORDS, INTERLEAVED)
    ahead = tl.load(w_at + row, mask=mask, other=0)
    if FP4:
        GROUPS: tl.constexpr = TOP_K_PADDED * BLOCK_K // 4  # of four words, which share a scale
        HIGH: tl.constexpr = exponents_of(K, INTERLEAVED)
        lane = tl.arange(0, GROUPS)
        owner, group = lane // (BLOCK_K // 4), lane % (BLOCK_K // 4)
        owned = known & (owner < TOP_K)[None, :]
        first = tl.load(chosen_ptr + owner, mask=owner < TOP_K, other=0).to(tl.int64) * (N * HIGH)
        scale_at = scale_ptr + first[None, :]
        scale_at += places(n, group[None, :], HIGH, RUN_EXPONENTS, INTERLEAVED)
        scales_ahead = tl.load(scale_at, mask=owned & (group < HIGH)[None, :], other=0)
        acc = tl.zeros([ROWS, GROUPS], tl.float32)
    else:
        owner = number
        acc = tl.zeros([ROWS, TOP_K_PADDED * BLOCK_K], tl.float32)
    # One tile ahead, as in gemv_rows.py.
    for start in range(0, WIDTH, BLOCK_K):
        w = ahead
        mask = known & (real & (k < WIDTH - start - BLOCK_K))[None, :]
        row = row_places(n, (start + BLOCK_K + k)[None, :], WIDTH, RUN_WORDS, INTERLEAVED)
        ahead = tl.load(w_at + ((start + BLOCK_K) * STEP + row), mask=mask, other=0)
        inside = real & (k < WIDTH - start)
        x_at = x_ptr + number * K + start + k
        if FP4:
            scales = scales_ahead
            further = owned & (group < HIGH - (start + BLOCK_K) // 4)[None, :]
            scales_ahead = tl.load(scale_at + (start + BLOCK_K) // 4 * STEP, mask=further, other=0)
            sums = tl.reshape(mxfp4_dot(w, x_at, inside, WIDTH), (ROWS, GROUPS, 4))
            acc += tl.sum(sums, axis=2) * mxfp4_scale(scales)
        else:
            x = tl.load(x_at, mask=inside, other=0.0)
            acc += w.to(tl.float32) * x.to(tl.float32)[None, :]
    # Weighed in float32 after the sum over inputs, once a lane.
    weights = tl.load(weights_ptr + owner, mask=owner < TOP_K, other=0.0)
    total = tl.sum(acc * weights[None, :], axis=1)
    if FP4:
        total *= MXFP4_REST
    return total
