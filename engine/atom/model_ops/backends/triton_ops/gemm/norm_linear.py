# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""One token's residual addition, norm, product and gated activation in one kernel.

At one token a step is hundreds of launches that each last a microsecond or two. Here every program
takes some rows of W, starts loading their weights first, and meanwhile adds and norms the token
itself: a few kilobytes that all programs read from the cache. Program 0 writes the new residual to
a separate tensor, since the others still read the old one. Roundings are those of the separate
kernels.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.gemm.quantised_tiles import scale_constants
from atom.model_ops.backends.triton_ops.launch import next_power_of_2
from atom.model_ops.values import LinearWeight, NormWeight, Pending, Stream, WeightFormat

# A program holds its rows of W in registers: no wider than this.
_MAX_INNER = 8192
# Rows of W a program (a gated one takes as many again) and warps, measured on H200: 20 to 50
# weights a thread, several programs per multiprocessor.
_ROWS, _WARPS = 4, 8
GATED_PROGRAM = 1, 4
# Of fp8 more rows: half the bytes leave less time for the norm, which each program computes.
_NARROW_ROWS, _NARROW_GATED_ROWS = 8, 4


@triton.jit
def normed_token(
    x_ptr, residual_ptr, norm_ptr, residual_out_ptr, eps, writes, k, inside,
    K: tl.constexpr, HAS_RESIDUAL: tl.constexpr, dtype: tl.constexpr,
):  # fmt: skip
    """Add the residual to the token [BLOCK_K] and norm it, as every program does again: cheaper
    than a launch, and than waiting for another. writes: whether this one keeps the new residual."""
    x = tl.load(x_ptr + k, mask=inside, other=0.0)
    if HAS_RESIDUAL:
        residual = tl.load(residual_ptr + k, mask=inside, other=0.0)
        x = (x.to(tl.float32) + residual.to(tl.float32)).to(dtype)
        # To another tensor than it was read from: other programs may not have read it yet.
        if writes:
            tl.store(residual_out_ptr + k, x, mask=inside)
    normed = x.to(tl.float32)
    if norm_ptr is not None:
        normed *= tl.rsqrt(tl.sum(normed * normed, axis=0) / K + eps)
        norm = tl.load(norm_ptr + k, mask=inside, other=0.0).to(tl.float32)
        normed = (norm * normed.to(dtype).to(tl.float32)).to(dtype).to(tl.float32)
    return normed


@triton.jit
def silu_gated(gate, up, dtype: tl.constexpr):
    """Give silu(gate) · up, rounded as the separate operations round."""
    gate = gate.to(dtype).to(tl.float32)
    silu = (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32)
    return silu * up.to(dtype).to(tl.float32)


@triton.jit
def _row_sums(
    weights, x, n, known, inside, k, scale_ptr, K: tl.constexpr,
    SCALED: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Rows n of W, [ROWS, BLOCK_K], times x [BLOCK_K] float32."""
    # Rows of a program share scales, so these go into x: BLOCK_K multiplications, not ROWS times as
    # many.
    if WIDE:
        row = tl.min(n, axis=0) // TALL * tl.cdiv(K, WIDE)
        x = x * tl.load(scale_ptr + row + k // WIDE, mask=inside, other=0.0)
    sums = tl.sum(weights.to(tl.float32) * x[None, :], axis=1)
    if SCALED and not WIDE:
        sums *= tl.load(scale_ptr + n, mask=known, other=0.0)
    return sums


@triton.jit
def _norm_linear_kernel(
    x_ptr, residual_ptr, norm_ptr, w_ptr, scale_ptr, bias_ptr, out_ptr, residual_out_ptr, eps, N,
    K: tl.constexpr, BLOCK_K: tl.constexpr, ROWS: tl.constexpr, GATED: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr, HAS_BIAS: tl.constexpr,
    SCALED: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """TALL, WIDE: outputs and inputs that share a scale, ROWS divide TALL; WIDE 0: an output has
    one."""
    dtype = out_ptr.dtype.element_ty
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, BLOCK_K)
    inside = k < K
    within = (n < N)[:, None] & inside[None, :]
    w_at = w_ptr + n.to(tl.int64)[:, None] * K + k[None, :]
    # First of all loads: the weights, most of the bytes, are on their way while the norm, which
    # waits for a reduction, is made.
    weights = tl.load(w_at, mask=within, other=0.0, eviction_policy="evict_first")
    if GATED:
        up_at = w_at + N.to(tl.int64) * K
        up_weights = tl.load(up_at, mask=within, other=0.0, eviction_policy="evict_first")

    normed = normed_token(
        x_ptr, residual_ptr, norm_ptr, residual_out_ptr, eps, tl.program_id(0) == 0, k, inside,
        K, HAS_RESIDUAL, dtype,
    )  # fmt: skip
    result = _row_sums(weights, normed, n, n < N, inside, k, scale_ptr, K, SCALED, TALL, WIDE)
    if HAS_BIAS:
        result += tl.load(bias_ptr + n, mask=n < N, other=0.0).to(tl.float32)
    if GATED:
        up = _row_sums(
            up_weights, normed, N + n, n < N, inside, k, scale_ptr, K, SCALED, TALL, WIDE
        )
        if HAS_BIAS:
            up += tl.load(bias_ptr + N + n, mask=n < N, other=0.0).to(tl.float32)
        result = silu_gated(result, up, dtype)
    tl.store(out_ptr + n, result.to(dtype), mask=n < N)


def can_fuse(stream: Stream, w: LinearWeight) -> bool:
    """Return whether the kernel supports the stream [1, in] (one token, no parts, not too wide) and
    the matrix: plain, or fp8 in which a program's rows share scales."""
    rows, inner = stream.residual.shape
    if rows != 1 or inner > _MAX_INNER or stream.pending_is is Pending.PARTS:
        return False
    if w.format is WeightFormat.FP8_BLOCKS:
        assert w.scales is not None
        return w.scales.block[0] % _NARROW_ROWS == 0
    return w.format in (WeightFormat.PLAIN, WeightFormat.FP8)


def norm_linear(
    stream: Stream, norm: NormWeight | None, w: LinearWeight, *, gated: bool
) -> tuple[torch.Tensor, Stream]:
    """Norm and multiply the stream [1, in] with w [out, in] (gated: gate's rows, then up's) → ([1,
    out], or half of it; the settled stream). norm: None if the input is normed already."""
    residual, inner = stream.residual, w.inputs
    outputs = w.outputs // 2 if gated else w.outputs
    if w.scales is None:
        rows, warps = GATED_PROGRAM if gated else (_ROWS, _WARPS)
    else:
        rows, warps = _NARROW_GATED_ROWS if gated else _NARROW_ROWS, _WARPS
    out = torch.empty((1, outputs), dtype=residual.dtype, device=residual.device)
    has_residual = stream.pending is not None
    x = residual if stream.pending is None else stream.pending
    settled = torch.empty_like(residual) if has_residual else residual
    _norm_linear_kernel[(triton.cdiv(outputs, rows),)](
        x, residual, norm and norm.weight, w.data, w.scales and w.scales.scale, w.bias, out,
        settled, 0.0 if norm is None else norm.eps, outputs,
        K=inner, BLOCK_K=next_power_of_2(inner), ROWS=rows, GATED=gated,
        HAS_RESIDUAL=has_residual, HAS_BIAS=w.bias is not None, **scale_constants(w),
        num_warps=warps,
    )  # fmt: skip
    return out, Stream(settled)
