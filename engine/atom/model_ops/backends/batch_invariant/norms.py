# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""RMSNorm whose sum over a row has one order: a program has as many warps however many rows there
are. Parts that are pending are added as the tree that a product adds its leaves by."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.batch_invariant.linear import sum_leaves
from atom.model_ops.backends.triton_ops.launch import next_power_of_2, warps_for
from atom.model_ops.values import NormWeight, Pending, Stream


@triton.jit(do_not_specialize=["tokens"])
def _rms_norm_kernel(
    x_ptr, residual_ptr, weight_ptr, out_ptr, tokens, eps,
    HIDDEN: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Norm x, or what x, in parts or whole, adds to a residual."""
    row = tl.program_id(0).to(tl.int64) * HIDDEN
    lane = tl.arange(0, BLOCK)
    inside = lane < HIDDEN
    dtype = out_ptr.dtype.element_ty
    x = sum_leaves(x_ptr, row + lane, tokens.to(tl.int64) * HIDDEN, inside, PARTS).to(dtype)
    if residual_ptr is not None:
        residual = tl.load(residual_ptr + row + lane, mask=inside, other=0.0)
        x = (x.to(tl.float32) + residual.to(tl.float32)).to(dtype)
        tl.store(residual_ptr + row + lane, x, mask=inside)
    wide = x.to(tl.float32)
    mean_square = tl.sum(wide * wide, axis=0) / HIDDEN
    # Rounded before the weight, as the reference is.
    normed = (wide * tl.rsqrt(mean_square + eps)).to(dtype)
    weight = tl.load(weight_ptr + lane, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row + lane, (weight * normed.to(tl.float32)).to(dtype), mask=inside)


def rms_norm(x: torch.Tensor, norm: NormWeight) -> torch.Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    _launch(x, None, norm, out, 1)
    return out


def norm(stream: Stream, norm: NormWeight) -> tuple[torch.Tensor, Stream]:
    pending, residual = stream.pending, stream.residual
    if pending is None:
        return rms_norm(residual, norm), stream
    out = torch.empty_like(residual)
    parts = pending.shape[0] if stream.pending_is is Pending.PARTS else 1
    _launch(pending, residual, norm, out, parts)
    return out, Stream(residual)


def _launch(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm: NormWeight,
    out: torch.Tensor,
    parts: int,
) -> None:
    hidden = out.shape[-1]
    rows = out.numel() // hidden
    block = next_power_of_2(hidden)
    _rms_norm_kernel[(rows,)](
        x, residual, norm.weight, out, rows, norm.eps,
        HIDDEN=hidden, BLOCK=block, PARTS=parts, num_warps=warps_for(block, 256, most=16),
    )  # fmt: skip
