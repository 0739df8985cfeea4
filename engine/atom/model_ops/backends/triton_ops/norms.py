# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""RMSNorm, alone or fused with the residual addition before it: one program per token.

Roundings are those of the reference: sums in float32, back to the activation's dtype before the
weight is multiplied in.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.launch import next_power_of_2, warps_for


@triton.jit
def _rms_norm_kernel(
    x_ptr, residual_ptr, weight_ptr, out_ptr, eps,
    HIDDEN: tl.constexpr, BLOCK: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * HIDDEN
    at = tl.arange(0, BLOCK)
    inside = at < HIDDEN
    x = tl.load(x_ptr + row + at, mask=inside, other=0.0)
    weight = tl.load(weight_ptr + at, mask=inside, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        residual = tl.load(residual_ptr + row + at, mask=inside, other=0.0)
        x = (x.to(tl.float32) + residual.to(tl.float32)).to(out_ptr.dtype.element_ty)
        tl.store(residual_ptr + row + at, x, mask=inside)
    wide = x.to(tl.float32)
    mean_square = tl.sum(wide * wide, axis=0) / HIDDEN
    normed = (wide * tl.rsqrt(mean_square + eps)).to(out_ptr.dtype.element_ty)
    result = (weight * normed.to(tl.float32)).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row + at, result, mask=inside)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    _launch(x, None, weight, out, eps)
    return out


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    _launch(x, residual, weight, x, eps)
    return x, residual


def _launch(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    out: torch.Tensor,
    eps: float,
) -> None:
    hidden = x.shape[-1]
    rows = x.numel() // hidden
    block = next_power_of_2(hidden)
    # Few rows: latency counts, so more threads; many rows: bandwidth does, and 16 bytes a thread
    # a load are enough.
    warps = warps_for(block, 256 if rows < 64 else 512, most=16)
    _rms_norm_kernel[(rows,)](
        x, residual, weight, out, eps,
        HIDDEN=hidden, BLOCK=block, HAS_RESIDUAL=residual is not None, num_warps=warps,
    )  # fmt: skip
