# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Products of one token with matrices of fp8, with the norm and the gated activation on request.

The time goes into reading the matrix: a program takes a few of its rows, and adds and norms the
token on the way (w8a16_rows.py). Warps are along the inputs. The first program writes the new
residual to a separate tensor, since the others still read the old one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.gemm.quantised_tiles import scale_constants
from atom.model_ops.backends.triton_ops.gemm.w8a16_rows import LANE, WAVE, unrolled, w8a16_rows
from atom.model_ops.backends.triton_ops.launch import compute_units, next_power_of_2
from atom.model_ops.values import LinearWeight, NormWeight, Stream, WeightFormat

_ROWS, _MOST_WARPS = 8, 4  # of a program, at most
# Rows of w1, and as many of w3: one warp, which waits for no other.
_GATED_ROWS, _GATED_WARPS, _GATED_TURNS = 4, 1, 2
# Programs of a multiprocessor that are wanted before one takes more rows.
_PROGRAMS = 4


@triton.jit
def _w8a16_gemv_kernel(
    x_ptr, residual_ptr, norm_ptr, w_ptr, scale_ptr, bias_ptr, out_ptr, residual_out_ptr, eps,
    N: tl.constexpr, K: tl.constexpr, GATED: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr, UNROLL: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Map x [K], W [N, K], or of gate_proj and up_proj [2 · N, K] → [N]. UNROLL, TALL, WIDE: as
    w8a16_rows'."""
    dtype = out_ptr.dtype.element_ty
    PARTS: tl.constexpr = 2 if GATED else 1
    first = tl.program_id(0) * ROWS
    n = first + tl.arange(0, ROWS)
    # Rows of w1 and w3 by the same program: their activation needs no other's result.
    sums = w8a16_rows(
        x_ptr, w_ptr, scale_ptr, first, N, K, PARTS, ROWS, BLOCK_K, UNROLL, TALL, WIDE,
        residual_ptr, norm_ptr, residual_out_ptr, eps,
    )  # fmt: skip
    if bias_ptr is not None:
        at = tl.arange(0, PARTS)[:, None] * N + n[None, :]
        sums += tl.load(bias_ptr + at, mask=(n < N)[None, :], other=0.0).to(tl.float32)
    if GATED:
        # The two parts are the slow axis of a thread's values; transposed, a split is free.
        gate, up = tl.split(tl.trans(sums))
        gate = gate.to(dtype).to(tl.float32)  # rounded as the separate operations round
        silu = (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32)
        result = silu * up.to(dtype).to(tl.float32)
    else:
        result = tl.reshape(sums, (ROWS,))
    tl.store(out_ptr + n, result.to(dtype), mask=n < N)


@dataclass(frozen=True, slots=True)
class W8A16Tile:
    """rows: of a program, of w1 and w3 each; block: inputs of a turn; unroll: turns at once."""

    rows: int
    block: int
    num_warps: int
    unroll: int


def w8a16_tile(w: LinearWeight, *, normed: bool, gated: bool) -> W8A16Tile:
    """Choose the tile. normed: each program norms the token, so more rows share that work."""
    rows, wave, outputs = _ROWS, WAVE * LANE.value, w.outputs
    if gated:
        return W8A16Tile(_GATED_ROWS, _GATED_WARPS * wave, _GATED_WARPS, _GATED_TURNS)
    while rows > 4 and not normed and outputs < rows * _PROGRAMS * compute_units(w.data.device):
        rows //= 2
    warps = max(1, min(_MOST_WARPS, next_power_of_2(w.inputs) // wave))
    turns = 1 if normed else unrolled(w.inputs, warps * wave)
    return W8A16Tile(rows, warps * wave, warps, turns)


def takes(w: LinearWeight, *, gated: bool) -> bool:
    """Return whether the matrix is of fp8 and a program's rows share their scales, w1's and w3's
    separately, as a lane's inputs do."""
    if w.format is not WeightFormat.FP8_BLOCKS:
        return w.format is WeightFormat.FP8
    assert w.scales is not None
    tall, wide = w.scales.block
    apart = w.outputs // 2 if gated else 0
    return tall % _ROWS == 0 and apart % _ROWS == 0 and wide % LANE.value == 0


def w8a16_linear(x: torch.Tensor, w: LinearWeight) -> torch.Tensor:
    """Map x [1, in] contiguous, w that `takes` → [1, out]."""
    return norm_w8a16_linear(Stream(x), None, w, gated=False)[0]


def norm_w8a16_linear(
    stream: Stream, norm: NormWeight | None, w: LinearWeight, *, gated: bool
) -> tuple[torch.Tensor, Stream]:
    """Norm and multiply the stream [1, in], without parts, with a w that `takes` accepts (gated:
    gate's rows, then up's) → ([1, out], or half of it; the settled stream). norm: None if the input
    is normed already."""
    residual, pending, scales = stream.residual, stream.pending, w.scales
    assert scales is not None
    tile, constants = w8a16_tile(w, normed=norm is not None, gated=gated), scale_constants(w)
    outputs = w.outputs // 2 if gated else w.outputs
    out = torch.empty((1, outputs), dtype=residual.dtype, device=residual.device)
    settled = None if pending is None else torch.empty_like(residual)
    _w8a16_gemv_kernel[(triton.cdiv(outputs, tile.rows),)](
        residual if pending is None else pending, None if pending is None else residual,
        norm and norm.weight, w.data, scales.scale, w.bias, out, settled,
        0.0 if norm is None else norm.eps,
        N=outputs, K=w.inputs, GATED=gated, ROWS=tile.rows, BLOCK_K=tile.block,
        UNROLL=tile.unroll, TALL=constants["TALL"], WIDE=constants["WIDE"],
        num_warps=tile.num_warps,
    )  # fmt: skip
    return out, Stream(residual if settled is None else settled)
