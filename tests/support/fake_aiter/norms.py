"""RMSNorm, with the residual and with quantisation; SiLU of gated MLPs."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from tests.support.fake_aiter.checks import HALF, Checks
from tests.support.fake_aiter.quant import quantised

_FUSED_WIDTH = 8192


def _check(checks: Checks, input: torch.Tensor, weight: torch.Tensor) -> None:
    checks.tensor("input", input, HALF, (None, None))
    checks.tensor("weight", weight, [input.dtype], (input.shape[1],))


def _normed(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """In float32."""
    wide = x.float()
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon) * weight.float()


def _alone(
    checks: Checks, input: torch.Tensor, weight: torch.Tensor, epsilon: float, **rest: Any
) -> torch.Tensor:
    _check(checks, input, weight)
    return _normed(input, weight, epsilon).to(input.dtype)


def _summed(
    checks: Checks,
    input: torch.Tensor,
    residual_in: torch.Tensor,
    residual_out: torch.Tensor,
    weight: torch.Tensor,
) -> torch.Tensor:
    _check(checks, input, weight)
    for name, tensor in (("residual_in", residual_in), ("residual_out", residual_out)):
        checks.tensor(name, tensor, [input.dtype], input.shape)
    total = input.float() + residual_in.float()
    residual_out.copy_(total)
    return total


def _with_add(
    checks: Checks,
    out: torch.Tensor,
    input: torch.Tensor,
    residual_in: torch.Tensor,
    residual_out: torch.Tensor,
    weight: torch.Tensor,
    epsilon: float,
    gemma_norm: bool = False,
    **rest: Any,
) -> None:
    checks.that(not gemma_norm, "the weight is not less one here")
    checks.tensor("out", out, [input.dtype], input.shape)
    total = _summed(checks, input, residual_in, residual_out, weight)
    out.copy_(_normed(total, weight, epsilon))


def _quantise(
    checks: Checks, normed: torch.Tensor, out: torch.Tensor, yscale: torch.Tensor, group: int
) -> None:
    checks.that(group == 0, "the double quantises by token")
    checks.tensor("out", out, [checks.fp8, torch.int8], normed.shape)
    checks.tensor("yscale", yscale, [torch.float32], (normed.shape[0], 1))
    codes, scale = quantised(normed, out.dtype)
    out.view(torch.uint8).copy_(codes.view(torch.uint8))
    yscale.copy_(scale)


def _with_dynamicquant(
    checks: Checks,
    out: torch.Tensor,
    input: torch.Tensor,
    yscale: torch.Tensor,
    weight: torch.Tensor,
    epsilon: float,
    group_size: int = 0,
    **rest: Any,
) -> None:
    _check(checks, input, weight)
    _quantise(checks, _normed(input, weight, epsilon), out, yscale, group_size)


def _with_add_dynamicquant(
    checks: Checks,
    out: torch.Tensor,
    input: torch.Tensor,
    residual_in: torch.Tensor,
    residual_out: torch.Tensor,
    yscale: torch.Tensor,
    weight: torch.Tensor,
    epsilon: float,
    group_size: int = 0,
    **rest: Any,
) -> None:
    total = _summed(checks, input, residual_in, residual_out, weight)
    _quantise(checks, _normed(total, weight, epsilon), out, yscale, group_size)


def _silu_and_mul(
    checks: Checks, out: torch.Tensor, input: torch.Tensor, limit: float = 0.0
) -> None:
    checks.tensor("input", input, HALF, (None, None))
    rows, width = input.shape
    checks.that(width % 16 == 0, "halves of 16 bytes are read")
    checks.tensor("out", out, [input.dtype], (rows, width // 2))
    checks.that(limit == 0.0, "the double does not clamp")
    gate, up = input.float().chunk(2, dim=1)
    out.copy_(F.silu(gate) * up)


RESULTS = {
    "rmsnorm2d_fwd": _alone,
    "rmsnorm2d_fwd_with_add": _with_add,
    "rmsnorm2d_fwd_with_dynamicquant": _with_dynamicquant,
    "rmsnorm2d_fwd_with_add_dynamicquant": _with_add_dynamicquant,
    "silu_and_mul": _silu_and_mul,
}
