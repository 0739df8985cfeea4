# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Few tokens' residual addition, norm and router's product in one kernel.

A router's matrix is small (half a megabyte for 128 experts), but too large for one multiprocessor.
Each program takes a few of its rows, starts loading them first, and meanwhile adds and norms the
token itself, which all read from the cache. The first program of a token writes the new residual,
to a separate tensor, and the norm's result. Logits are float32 sums of values rounded as in the
separate kernels.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.launch import next_power_of_2
from atom.model_ops.values import LinearWeight, NormWeight, Pending, Stream

# A program holds its rows of the matrix in registers: no wider than this.
MOST_INPUTS = 8192
_HELD = 16_384  # elements of the matrix a program
_WARPS = 8


@triton.jit(do_not_specialize=["tokens"])
def _norm_router_kernel(
    x_ptr, residual_ptr, norm_ptr, w_ptr, logits_ptr, normed_ptr, residual_out_ptr, tokens, eps, E,
    K: tl.constexpr, BLOCK_K: tl.constexpr, ROWS: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    PARTS: tl.constexpr, PLANES: tl.constexpr,
):  # fmt: skip
    """PLANES: input k of the norm's result is written as number k // PLANES of plane k % PLANES."""
    dtype = normed_ptr.dtype.element_ty
    token = tl.program_id(1).to(tl.int64)
    e = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, BLOCK_K)
    inside = k < K
    within = (e < E)[:, None] & inside[None, :]
    # First, so that the router's rows are on their way while the token is normed.
    weights = tl.load(w_ptr + e[:, None] * K + k[None, :], mask=within, other=0.0)

    x = tl.load(x_ptr + token * K + k, mask=inside, other=0.0)
    # Parts of the product before, in one order: see norms.py.
    for part in tl.static_range(1, PARTS):
        part_at = x_ptr + (part * tokens.to(tl.int64) + token) * K
        x += tl.load(part_at + k, mask=inside, other=0.0)
    x = x.to(dtype)
    if HAS_RESIDUAL:
        residual = tl.load(residual_ptr + token * K + k, mask=inside, other=0.0)
        x = (x.to(tl.float32) + residual.to(tl.float32)).to(dtype)
        # The others still read the old one, so it has a separate tensor.
        if tl.program_id(0) == 0:
            tl.store(residual_out_ptr + token * K + k, x, mask=inside)
    wide = x.to(tl.float32)
    wide *= tl.rsqrt(tl.sum(wide * wide, axis=0) / K + eps)
    norm = tl.load(norm_ptr + k, mask=inside, other=0.0).to(tl.float32)
    normed = (norm * wide.to(dtype).to(tl.float32)).to(dtype)
    if tl.program_id(0) == 0:
        # In planes where the experts' MXFP4 wants the token so: reordered once, read by every
        # program of w13.
        place = k % PLANES * (K // PLANES) + k // PLANES
        tl.store(normed_ptr + token * K + place, normed, mask=inside)
    # float32, not on the tensor core: 16-bit logits would decide between close experts by rounding.
    logits = tl.sum(weights.to(tl.float32) * normed.to(tl.float32)[None, :], axis=1)
    tl.store(logits_ptr + token * E + e, logits, mask=e < E)


def norm_router(
    stream: Stream, norm: NormWeight, w: LinearWeight, planes: int = 1
) -> tuple[torch.Tensor, torch.Tensor, Stream]:
    """Return the norm's result [T, H], in `planes` planes; logits [1, T, E] float32, without bias;
    and the settled stream."""
    residual = stream.residual
    tokens, hidden = residual.shape
    x = residual if stream.pending is None else stream.pending
    has_residual = stream.pending is not None
    normed = torch.empty_like(residual)
    settled = torch.empty_like(residual) if has_residual else residual
    logits = torch.empty((1, tokens, w.outputs), dtype=torch.float32, device=residual.device)
    block = next_power_of_2(hidden)
    rows = max(1, min(4, _HELD // block))
    _norm_router_kernel[(triton.cdiv(w.outputs, rows), tokens)](
        x, residual, norm.weight, w.data, logits, normed, settled, tokens, norm.eps, w.outputs,
        K=hidden, BLOCK_K=block, ROWS=rows, HAS_RESIDUAL=has_residual,
        PARTS=x.shape[0] if stream.pending_is is Pending.PARTS else 1, PLANES=planes,
        num_warps=_WARPS,
    )  # fmt: skip
    return normed, logits, Stream(settled)
