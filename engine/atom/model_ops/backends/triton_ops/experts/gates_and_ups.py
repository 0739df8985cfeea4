# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Gates and ups as rows of one tile: one product of the tensor core is wider than two, and reads
activations once."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def matrix_rows(tile, N: tl.constexpr, BLOCK: tl.constexpr, GATED: tl.constexpr):
    """Rows of W of a tile of its outputs, [B]; GATED: gates' rows with ups' behind them, which are
    N further, [2B]. Behind the last output is the last again, which needs no mask."""
    if GATED:
        number = tl.arange(0, 2 * BLOCK)
        return tl.minimum(tile * BLOCK + number % BLOCK, N - 1) + number // BLOCK * N
    else:
        return tl.minimum(tile * BLOCK + tl.arange(0, BLOCK), N - 1)


@triton.jit
def halves(both, AXIS: tl.constexpr):
    """[2B, M] by axis 0, [M, 2B] by axis 1 → its first half and its second."""
    if AXIS == 0:
        shape: tl.constexpr = (2, both.shape[0] // 2, both.shape[1])
        return tl.split(tl.permute(tl.reshape(both, shape), (1, 2, 0)))
    else:
        shape: tl.constexpr = (both.shape[0], 2, both.shape[1] // 2)
        return tl.split(tl.permute(tl.reshape(both, shape), (0, 2, 1)))
