# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""activation(gate) · up over the two halves of a merged projection; without a gate, the square of
the positive part of one product."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from atom.model_ops.activations import Activation, ClampedSiLU, ClampedSwiGLU, Gating

_BLOCK = 1024
_SILU, _GELU, _CLAMPED, _RELU2, _CLAMPED_SILU = 0, 1, 2, 3, 4
_KINDS = {Activation.SILU: _SILU, Activation.GELU_TANH: _GELU, Activation.RELU2: _RELU2}


@triton.jit
def gated(
    gate, up, dtype: tl.constexpr, KIND: tl.constexpr, ALPHA: tl.constexpr, LIMIT: tl.constexpr
):
    """Combine the float32 results of w1 and w3, float32; the plain kinds are rounded to dtype in
    between, as in PyTorch. Without a gate the single product is `gate`, and `up` is unused."""
    # gpt-oss clamps before the sigmoid, and the gate from above alone: its sigmoid goes to 0 below
    # by itself.
    if KIND == 2:
        gate = tl.minimum(gate, LIMIT)
        up = tl.minimum(tl.maximum(up, -LIMIT), LIMIT)
        return (up + 1.0) * gate / (1.0 + tl.exp(-ALPHA * gate))
    elif KIND == 3:
        above = tl.maximum(gate, 0.0)
        return above * above
    elif KIND == 1:  # its tanh form: x · sigmoid(2 · √(2/π) · (x + 0.044715 · x³))
        inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
        return (gate / (1.0 + tl.exp(-inner))).to(dtype).to(tl.float32) * up
    else:
        if KIND == 4:  # DeepSeek V4's clamps the same way
            gate = tl.minimum(gate, LIMIT)
            up = tl.minimum(tl.maximum(up, -LIMIT), LIMIT)
        # x / (1 + e^-x): for x far below 0 the exponential is infinite and the quotient -0, never
        # NaN.
        return (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32) * up


@triton.jit
def _act_and_mul_kernel(
    x_ptr, out_ptr, INNER: tl.constexpr, BLOCK: tl.constexpr,
    KIND: tl.constexpr, ALPHA: tl.constexpr, LIMIT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < INNER
    # Both halves are in one row: a program reads two runs of it and writes one.
    gate = tl.load(x_ptr + row * 2 * INNER + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * 2 * INNER + INNER + at, mask=inside, other=0.0).to(tl.float32)
    dtype = out_ptr.dtype.element_ty
    result = gated(gate, up, dtype, KIND, ALPHA, LIMIT).to(dtype)
    tl.store(out_ptr + row * INNER + at, result, mask=inside)


def gating(activation: Gating) -> dict[str, float]:
    """Return a kernel's constants for `gated`."""
    if isinstance(activation, ClampedSwiGLU):
        return {"KIND": _CLAMPED, "ALPHA": activation.alpha, "LIMIT": activation.limit}
    if isinstance(activation, ClampedSiLU):
        return {"KIND": _CLAMPED_SILU, "ALPHA": 1.0, "LIMIT": activation.limit}
    return {"KIND": _KINDS[activation], "ALPHA": 1.0, "LIMIT": 0.0}


def gate_constants(activation: Gating) -> tuple[tl.constexpr, tl.constexpr, tl.constexpr]:
    """Return `gating` as a single argument of a kernel: kind, alpha and limit."""
    kind, alpha, limit = map(tl.constexpr, gating(activation).values())
    return kind, alpha, limit


def act_and_mul(x: torch.Tensor, activation: Gating) -> torch.Tensor:
    if activation is Activation.RELU2:
        return x.relu().square_()
    rows, inner = x.shape[0], x.shape[1] // 2
    out = torch.empty((rows, inner), dtype=x.dtype, device=x.device)
    _act_and_mul_kernel[(rows, triton.cdiv(inner, _BLOCK))](
        x, out, INNER=inner, BLOCK=_BLOCK, **gating(activation), num_warps=4
    )
    return out
