# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The product of an expert's fp8 matrix with its tokens in fp8.

The tensor core multiplies codes, so no conversion is needed. Activations have a scale for as many
neighbouring inputs as a tile has. After each tile the sum is scaled and added in float32, which
also compensates for the narrow accumulators, as in w8a8_gemm.py. With few tokens the matrix' rows
are the tall side of the tensor core's tile, if it has one (NVIDIA's).
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.nvidia.tma_tiles import load_activations, load_weights
from atom.model_ops.backends.triton_ops.w13_tiles import as_columns, as_rows, of_columns, of_rows

# Rows of a matrix that are the tall side at least.
_TALL_ROWS = tl.constexpr(64)


@triton.jit
def _scaled(product, x_scales, w_scales, WEIGHTS_FIRST: tl.constexpr, ONE: tl.constexpr):
    """product [M, N] float32, or [N, M]. w_scales: [N], or ONE."""
    # Scales of tokens and of the tile first: [M] products instead of [M, N].
    if ONE:
        scales = x_scales * w_scales
        return product * (scales[None, :] if WEIGHTS_FIRST else scales[:, None])
    elif WEIGHTS_FIRST:
        return product * x_scales[None, :] * w_scales[:, None]
    else:
        return product * x_scales[:, None] * w_scales[None, :]


@triton.jit
def multiply_fp8(
    rows, real, n, x_ptr, x_scale_ptr, w_ptr, scale_ptr, x_desc, w_desc, first, tile, expert,
    K: tl.constexpr, N: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GATED: tl.constexpr,
    TALL: tl.constexpr, WIDE: tl.constexpr, HIP: tl.constexpr,
):  # fmt: skip
    """Rows of x with rows n of an expert's W (gated: and rows N + n): [M, N] float32, twice.
    x_scale_ptr: [.., ⌈K / BLOCK_K⌉]; TALL, WIDE: outputs and inputs that share a scale; a tile's
    inputs do; *_tiles: see tma_tiles.py."""
    # wgmma's 64 rows are filled by weights where pairs are fewer; AMD's MFMA is 16 or 32 high
    # either way.
    WEIGHTS_FIRST: tl.constexpr = BLOCK_M < _TALL_ROWS and BLOCK_N >= _TALL_ROWS and not HIP
    COLUMNS: tl.constexpr = (K + WIDE - 1) // WIDE
    GROUPS: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    # One scale for the tile: a scalar load instead of one a row.
    ONE: tl.constexpr = TALL % BLOCK_N == 0 and N % BLOCK_N == 0  # of a tile
    lane = tl.arange(0, BLOCK_K)
    n = tl.minimum(n, N - 1)  # beyond the last row it is read again, which needs no mask
    scaled = tl.min(n, axis=0) if ONE else n
    scale_at, up_scale_at = scaled // TALL * COLUMNS, (N + scaled) // TALL * COLUMNS
    if GATED:
        n = as_rows(n, N) if WEIGHTS_FIRST else as_columns(n, N, HIP)
    x_rows = x_ptr + rows.to(tl.int64)[:, None] * K + lane[None, :]
    x_scale_rows = x_scale_ptr + rows.to(tl.int64) * GROUPS
    w_rows = w_ptr + n.to(tl.int64)[:, None] * K + lane[None, :]
    if WEIGHTS_FIRST:
        acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    else:
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    up = acc
    for k in range(0, K, BLOCK_K):
        x = load_activations(x_desc, x_rows, real, first, k, K, BLOCK_K)
        w = load_weights(w_desc, w_rows, expert, tile, k, K, BLOCK_K)
        x_scales = tl.load(x_scale_rows + k // BLOCK_K, mask=real, other=0.0)
        scales = tl.load(scale_ptr + scale_at + k // WIDE)
        # Every tile's dot starts from 0: Hopper's fp8 accumulator keeps some 14 bits, so long sums
        # are made in float32 here.
        product = tl.dot(w, tl.trans(x)) if WEIGHTS_FIRST else tl.dot(x, tl.trans(w))
        if GATED:
            product, ups = of_rows(product) if WEIGHTS_FIRST else of_columns(product, HIP)
            up_scales = tl.load(scale_ptr + up_scale_at + k // WIDE)
            up += _scaled(ups, x_scales, up_scales, WEIGHTS_FIRST, ONE)
        acc += _scaled(product, x_scales, scales, WEIGHTS_FIRST, ONE)
    if WEIGHTS_FIRST:
        return tl.trans(acc), tl.trans(up)
    else:
        return acc, up
