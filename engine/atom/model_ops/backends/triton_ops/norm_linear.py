# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""One token's residual addition, norm, product and gated activation in one kernel.

At one token a step is hundreds of launches that each last a microsecond or two. Here every program
takes some rows of W, has their weights on the way first, and meanwhile adds and norms the token
itself: a few kilobytes that all programs read from the cache. Program 0 writes the new residual,
to a tensor of its own: the others still read the old one. Roundings are those of the separate
kernels.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.launch import next_power_of_2

# A program holds its rows of W in registers: no wider than this.
_MAX_INNER = 8192
# Rows of W a program (a gated one takes as many again) and warps, measured on H200: 20 to 50
# weights a thread, several programs per multiprocessor.
_ROWS, _WARPS = 4, 8
_GATED_ROWS, _GATED_WARPS = 1, 4


@triton.jit
def _norm_linear_kernel(
    x_ptr, residual_ptr, norm_ptr, w_ptr, bias_ptr, out_ptr, residual_out_ptr, eps, N,
    K: tl.constexpr, BLOCK_K: tl.constexpr, ROWS: tl.constexpr, GATED: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    dtype = out_ptr.dtype.element_ty
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, BLOCK_K)
    inside = k < K
    within = (n < N)[:, None] & inside[None, :]
    w_at = w_ptr + n.to(tl.int64)[:, None] * K + k[None, :]
    weights = tl.load(w_at, mask=within, other=0.0, eviction_policy="evict_first")
    if GATED:
        up_at = w_at + N.to(tl.int64) * K
        up_weights = tl.load(up_at, mask=within, other=0.0, eviction_policy="evict_first")

    x = tl.load(x_ptr + k, mask=inside, other=0.0)
    if HAS_RESIDUAL:
        residual = tl.load(residual_ptr + k, mask=inside, other=0.0)
        x = (x.to(tl.float32) + residual.to(tl.float32)).to(dtype)
        if tl.program_id(0) == 0:
            tl.store(residual_out_ptr + k, x, mask=inside)
    wide = x.to(tl.float32)
    normed = (wide * tl.rsqrt(tl.sum(wide * wide, axis=0) / K + eps)).to(dtype).to(tl.float32)
    norm = tl.load(norm_ptr + k, mask=inside, other=0.0).to(tl.float32)
    normed = (norm * normed).to(dtype).to(tl.float32)[None, :]

    result = tl.sum(weights.to(tl.float32) * normed, axis=1)
    if HAS_BIAS:
        result += tl.load(bias_ptr + n, mask=n < N, other=0.0).to(tl.float32)
    if GATED:
        up = tl.sum(up_weights.to(tl.float32) * normed, axis=1)
        if HAS_BIAS:
            up += tl.load(bias_ptr + N + n, mask=n < N, other=0.0).to(tl.float32)
        gate = result.to(dtype).to(tl.float32)
        silu = (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32)
        result = silu * up.to(dtype).to(tl.float32)
    tl.store(out_ptr + n, result.to(dtype), mask=n < N)


def can_fuse(x: torch.Tensor) -> bool:
    """Whether the kernel takes x [1, in]: one token, complete (no parts), not too wide."""
    return x.dim() == 2 and x.shape[0] == 1 and x.shape[1] <= _MAX_INNER


def norm_linear(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm_weight: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    gated: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, residual [1, in], weight [out, in] (gated: gate's rows, then up's) → ([1, out], or half of
    it; the new residual)."""
    inner = x.shape[1]
    outputs = weight.shape[0] // 2 if gated else weight.shape[0]
    rows = _GATED_ROWS if gated else _ROWS
    out = torch.empty((1, outputs), dtype=x.dtype, device=x.device)
    residual_out = x if residual is None else torch.empty_like(x)
    _norm_linear_kernel[(triton.cdiv(outputs, rows),)](
        x, residual, norm_weight, weight, bias, out, residual_out, eps, outputs,
        K=inner, BLOCK_K=next_power_of_2(inner), ROWS=rows, GATED=gated,
        HAS_RESIDUAL=residual is not None, HAS_BIAS=bias is not None,
        num_warps=_GATED_WARPS if gated else _WARPS,
    )  # fmt: skip
    return out, residual_out
