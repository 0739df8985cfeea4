"""Products Y = X · Wᵀ: tuned, and of 8-bit and fp4 matrices."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from tests.support.fake_aiter.checks import HALF, Checks
from tests.support.fake_aiter.quant import unshuffled

_FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def _mm(
    checks: Checks,
    inp: torch.Tensor,
    weights: torch.Tensor,
    bias: torch.Tensor | None,
    otype: torch.dtype | None,
    scale_a: torch.Tensor | None,
    scale_b: torch.Tensor | None,
    scale_c: torch.Tensor | None,
    self: Any = None,
) -> torch.Tensor:
    checks.tensor("inp", inp, HALF, strided=True)
    checks.tensor("weights", weights, [inp.dtype], (None, inp.shape[-1]), strided=True)
    if bias is not None:
        checks.tensor("bias", bias, [inp.dtype, torch.float32], (weights.shape[0],))
    checks.that(scale_a is None and scale_b is None and scale_c is None, "plain matrices alone")
    # Its kernels for few rows round to the inputs' dtype before they convert.
    checks.that(otype in (None, inp.dtype), f"gives no {otype}")
    out = F.linear(inp.float(), weights.float(), None if bias is None else bias.float())
    return out.to(otype or inp.dtype)


def _scaled(
    checks: Checks, XQ: torch.Tensor, WQ: torch.Tensor, x_scale: torch.Tensor, w_scale: torch.Tensor
) -> torch.Tensor:
    """Float32, of scales by token and by output."""
    tokens, outputs = XQ.shape[0], WQ.shape[0]
    checks.tensor("XQ", XQ, [checks.fp8, torch.int8], (None, None))
    checks.tensor("WQ", WQ, [XQ.dtype], (None, XQ.shape[1]))
    checks.tensor("x_scale", x_scale, [torch.float32], (tokens, 1))
    checks.tensor("w_scale", w_scale, [torch.float32])
    checks.that(tuple(w_scale.shape) in ((outputs, 1), (1, outputs)), "w_scale is no column")
    return (XQ.float() @ WQ.float().t()) * x_scale * w_scale.view(1, -1)


def _a8w8(
    checks: Checks,
    XQ: torch.Tensor,
    WQ: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
    splitK: int | None,
) -> torch.Tensor:
    checks.that(not getattr(WQ, "is_shuffled", False), "WQ is in tiles")
    checks.that(dtype in HALF, f"gives no {dtype}")
    out = _scaled(checks, XQ, WQ, x_scale, w_scale)
    if bias is not None:
        checks.tensor("bias", bias, [*HALF, torch.float32], (WQ.shape[0],))
        out = out + bias.float()
    return out.to(dtype)


def _a8w8_bpreshuffle(
    checks: Checks,
    XQ: torch.Tensor,
    WQ: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
    check: bool,
) -> torch.Tensor:
    checks.that(WQ.dtype is checks.fp8, f"WQ is {WQ.dtype}, and {checks.fp8} is wanted")
    checks.that(bias is None, "adds no bias")
    checks.that(dtype in HALF, f"gives no {dtype}")
    return _scaled(checks, XQ, unshuffled(WQ), x_scale, w_scale).to(dtype)


def _blocks(
    checks: Checks, XQ: torch.Tensor, WQ: torch.Tensor, x_scale: torch.Tensor, w_scale: torch.Tensor
) -> torch.Tensor:
    (tokens, inner), outputs = XQ.shape, WQ.shape[0]
    checks.tensor("XQ", XQ, [checks.fp8], (None, None))
    checks.tensor("WQ", WQ, [checks.fp8], (None, inner))
    checks.that(outputs % 128 == 0 and inner % 128 == 0, "W is no whole blocks")
    checks.tensor("x_scale", x_scale, [torch.float32], (tokens, inner // 128))
    checks.tensor("w_scale", w_scale, [torch.float32], (outputs // 128, inner // 128))
    x = XQ.float() * x_scale.repeat_interleave(128, 1)
    w = WQ.float() * w_scale.repeat_interleave(128, 0).repeat_interleave(128, 1)
    return x @ w.t()


def _a8w8_blockscale(
    checks: Checks,
    XQ: torch.Tensor,
    WQ: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    dtype: torch.dtype,
    isBpreshuffled: bool = False,
) -> torch.Tensor:
    checks.that(dtype in HALF and not isBpreshuffled, "not modelled")
    return _blocks(checks, XQ, WQ, x_scale, w_scale).to(dtype)


def _a8w8_blockscale_bpreshuffle(
    checks: Checks,
    XQ: torch.Tensor,
    WQ: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    dtype: torch.dtype,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    checks.that(dtype in HALF and out is None, "not modelled")
    by_columns = x_scale.view(x_scale.shape[1], x_scale.shape[0]).t().contiguous()
    return _blocks(checks, XQ, unshuffled(WQ), by_columns, w_scale).to(dtype)


def _a16wfp4(
    checks: Checks,
    x: torch.Tensor,
    w: torch.Tensor,
    w_scales: torch.Tensor,
    dtype: torch.dtype | None,
    **rest: Any,
) -> torch.Tensor:
    checks.on("gfx950")
    inner = x.shape[1]
    checks.tensor("x", x, [torch.bfloat16], (None, None))
    checks.tensor("w", w, [torch.uint8], (None, inner // 2))
    checks.tensor("w_scales", w_scales, [torch.uint8], (w.shape[0], inner // 32))
    values = torch.tensor((*_FP4, *(-value for value in _FP4)))
    pairs = torch.stack((w & 15, w >> 4), dim=-1).flatten(1)
    scale = torch.ldexp(torch.ones(w_scales.shape), w_scales.int() - 127)
    matrix = values[pairs.long()] * scale.repeat_interleave(32, 1)
    return (x.float() @ matrix.t()).to(dtype or torch.bfloat16)


RESULTS = {
    "mm": _mm,
    "gemm_a8w8": _a8w8,
    "gemm_a8w8_bpreshuffle": _a8w8_bpreshuffle,
    "gemm_a8w8_blockscale": _a8w8_blockscale,
    "gemm_a8w8_blockscale_bpreshuffle": _a8w8_blockscale_bpreshuffle,
    "gemm_a16wfp4": _a16wfp4,
}
