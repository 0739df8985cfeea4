# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""activation(gate) · up over the two halves of a merged projection."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from atom.model_ops.values import Activation

_BLOCK = 1024


@triton.jit
def _act_and_mul_kernel(
    x_ptr, out_ptr, INNER: tl.constexpr, BLOCK: tl.constexpr, GELU: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < INNER
    gate = tl.load(x_ptr + row * 2 * INNER + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * 2 * INNER + INNER + at, mask=inside, other=0.0).to(tl.float32)
    if GELU:  # its tanh form: x · sigmoid(2 · √(2/π) · (x + 0.044715 · x³))
        inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
        active = gate / (1.0 + tl.exp(-inner))
    else:
        active = gate / (1.0 + tl.exp(-gate))
    active = active.to(out_ptr.dtype.element_ty)  # rounded as in PyTorch
    result = (active.to(tl.float32) * up).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * INNER + at, result, mask=inside)


def act_and_mul(x: torch.Tensor, activation: Activation) -> torch.Tensor:
    rows, inner = x.shape[0], x.shape[1] // 2
    out = torch.empty((rows, inner), dtype=x.dtype, device=x.device)
    _act_and_mul_kernel[(rows, triton.cdiv(inner, _BLOCK))](
        x, out, INNER=inner, BLOCK=_BLOCK, GELU=activation is Activation.GELU_TANH, num_warps=4
    )
    return out
