# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""silu(gate) · up over the two halves of a merged projection."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK = 1024


@triton.jit
def _silu_and_mul_kernel(x_ptr, out_ptr, INNER: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < INNER
    gate = tl.load(x_ptr + row * 2 * INNER + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * 2 * INNER + INNER + at, mask=inside, other=0.0).to(tl.float32)
    silu = (gate / (1.0 + tl.exp(-gate))).to(out_ptr.dtype.element_ty)  # rounded as in PyTorch
    result = (silu.to(tl.float32) * up).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * INNER + at, result, mask=inside)


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    rows, inner = x.shape[0], x.shape[1] // 2
    out = torch.empty((rows, inner), dtype=x.dtype, device=x.device)
    _silu_and_mul_kernel[(rows, triton.cdiv(inner, _BLOCK))](
        x, out, INNER=inner, BLOCK=_BLOCK, num_warps=4
    )
    return out
