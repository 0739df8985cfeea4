# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""W1 and w3 as rows of one tile: one product is wider than two, and reads activations once.

They alternate in such runs that one thread has both in its registers, and splitting them needs no
exchange. For a result's rows a run is eight. For its columns an NVIDIA card's thread has both of
two halves, which are also the fastest to read; AMD's, whose warps are next to each other, has both
of neighbours.
"""

from __future__ import annotations

import triton
import triton.language as tl

_RUN = tl.constexpr(8)  # of rows


@triton.jit
def _alternating(n, N: tl.constexpr, RUN: tl.constexpr):
    # Made of pointers, once before the loop: the loads themselves come in the order wanted, and
    # nothing is moved in registers afterwards.
    both = tl.reshape(tl.join(n, n + N), (n.shape[0] // RUN, RUN, 2))
    return tl.reshape(tl.permute(both, (0, 2, 1)), (2 * n.shape[0],))


@triton.jit
def as_rows(n, N: tl.constexpr):
    """Rows n [B] of w1 in W → theirs and w3's, which are N further, [2B]: for a result whose
    rows they are."""
    return _alternating(n, N, _RUN)


@triton.jit
def of_rows(both):
    """Map [2B, M] → w1's and w3's, [B, M] each."""
    B: tl.constexpr = both.shape[0] // 2
    M: tl.constexpr = both.shape[1]
    # On NVIDIA's tensor cores a thread has rows of a result that are eight apart: where w1 and w3
    # alternate by eight it has both of a row, and the split moves nothing between threads.
    runs = tl.reshape(both, (B // _RUN, 2, _RUN, M))
    gate, up = tl.split(tl.permute(runs, (0, 2, 3, 1)))
    return tl.reshape(gate, (B, M)), tl.reshape(up, (B, M))


@triton.jit
def as_columns(n, N: tl.constexpr, HIP: tl.constexpr):
    """`as_rows`, for a result whose columns they are. HIP: on an AMD card."""
    # NVIDIA: halves, which a warp's threads hold both of. AMD: neighbours, since warps stand side
    # by side along columns and halves would be in two of them.
    RUN: tl.constexpr = 1 if HIP else n.shape[0]
    return _alternating(n, N, RUN)


@triton.jit
def of_columns(both, HIP: tl.constexpr):
    """Map [M, 2B] → w1's and w3's, [M, B] each."""
    M: tl.constexpr = both.shape[0]
    B: tl.constexpr = both.shape[1] // 2
    RUN: tl.constexpr = 1 if HIP else B
    runs = tl.reshape(both, (M, B // RUN, 2, RUN))
    gate, up = tl.split(tl.permute(runs, (0, 1, 3, 2)))
    return tl.reshape(gate, (M, B)), tl.reshape(up, (M, B))
