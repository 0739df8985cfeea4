# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""W2 of one token's experts in 8 bits: rows of all of them at once, weighted.

Warps are along the inputs, one expert's after another's, so a lane has its own activations, and
only a program's few sums are added up among warps, at the end.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.gemm.w8a16_rows import LANE, lane_inputs, lane_sums


@triton.jit
def w2_rows_8bit(
    x_ptr, chosen_ptr, weights_ptr, w_ptr, scale_ptr, first, N: tl.constexpr, K: tl.constexpr,
    TOP_K: tl.constexpr, TOP_K_PADDED: tl.constexpr, ROWS: tl.constexpr, BLOCK_K: tl.constexpr,
    UNROLL: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Multiply one token's x [TOP_K, K] with its experts' rows from `first` on, of W [E, N, K] →
    their weighed sum [ROWS] float32. A tile has BLOCK_K inputs of every expert. UNROLL, TALL, WIDE:
    as w8a16_rows'; ALIGNED: what divides K."""
    LANES: tl.constexpr = BLOCK_K // LANE  # of an expert
    COLUMNS: tl.constexpr = (K + WIDE - 1) // WIDE if WIDE else 1
    n, lane = first + tl.arange(0, ROWS), tl.arange(0, TOP_K_PADDED * LANES)
    number, inner = lane // LANES, lane % LANES * LANE
    real = number < TOP_K
    expert = tl.load(chosen_ptr + number, mask=real, other=0).to(tl.int64)
    x_at = x_ptr + number * K + inner
    # A lane's inputs are contiguous, which the compiler does not see after a reshape.
    one = tl.arange(0, LANE)[None, :]
    at = tl.reshape((expert * (N * K) + inner)[:, None] + one, (TOP_K_PADDED * BLOCK_K,))
    at = tl.max_contiguous(tl.multiple_of(at, ALIGNED), ALIGNED)
    k = tl.arange(0, TOP_K_PADDED * BLOCK_K)
    owned, within = k // BLOCK_K < TOP_K, k % BLOCK_K
    w_rows = w_ptr + at[None, None, :] + n[None, :, None] * K
    known = (n < N)[None, :]
    acc = tl.zeros([1, ROWS, TOP_K_PADDED * LANES], tl.float32)
    # Unrolled by the compiler, not kept ahead by hand: a tile of bytes carried from turn to turn
    # would be taken apart into a register each.
    for start in tl.range(0, K, BLOCK_K, loop_unroll_factor=UNROLL):
        mask = known[:, :, None] & (owned & (within < K - start))[None, None, :]
        codes = tl.load(w_rows + start, mask=mask, other=0.0)
        low, high = lane_inputs(x_at + start, inner, real, K - start)
        sums = lane_sums(codes, low, high)
        # Lanes of an expert share its block's scale, so it multiplies sums of 16 products.
        if WIDE:
            blocks = expert * ((N + TALL - 1) // TALL * COLUMNS) + first // TALL * COLUMNS
            scale_at = scale_ptr + blocks + (start + inner) // WIDE
            scales = tl.load(scale_at, mask=real & (inner < K - start), other=0.0)
            sums *= scales[None, None, :]
        acc += sums
    weights = tl.load(weights_ptr + number, mask=real, other=0.0)[None, None, :]
    # A scale per output may wait for the weights' multiplication.
    if not WIDE:
        scale_at = scale_ptr + (expert * N)[None, None, :] + n[None, :, None]
        weights *= tl.load(scale_at, mask=known[:, :, None] & real[None, None, :], other=0.0)
    return tl.reshape(tl.sum(acc * weights, axis=2), (ROWS,))
