# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""RMSNorm, alone or fused with the residual addition before it: one program per token.

The addend may be the parts of a product that was split over its inner dimension
(gemm/split_k_linear.py): their sum needs no separate launch. Roundings are those of the reference:
sums in float32, back to the activation's dtype before the weight is multiplied in.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.launch import next_power_of_2, warps_for
from atom.model_ops.values import NormWeight, Pending, Stream


@triton.jit
def sum_in_tree(parts_ptr, at, part, inside, PARTS: tl.constexpr):
    """Add up PARTS values, 1, 2 or 4, that are `part` apart: ((0 + 1) + (2 + 3))."""
    total = tl.load(parts_ptr + at, mask=inside, other=0.0)
    if PARTS > 1:
        total += tl.load(parts_ptr + part + at, mask=inside, other=0.0)
    if PARTS > 2:
        upper = tl.load(parts_ptr + 2 * part + at, mask=inside, other=0.0)
        upper += tl.load(parts_ptr + 3 * part + at, mask=inside, other=0.0)
        total += upper
    return total


@triton.jit(do_not_specialize=["tokens"])
def _rms_norm_kernel(
    x_ptr, residual_ptr, weight_ptr, out_ptr, tokens, eps,
    HIDDEN: tl.constexpr, BLOCK: tl.constexpr, HAS_RESIDUAL: tl.constexpr, PARTS: tl.constexpr,
    IN_TREE: tl.constexpr,
):  # fmt: skip
    """Norm x, or what x, in parts or whole, adds to a residual. IN_TREE: parts are added as
    `sum_in_tree` does."""
    row = tl.program_id(0).to(tl.int64) * HIDDEN
    at = tl.arange(0, BLOCK)
    inside = at < HIDDEN
    dtype = out_ptr.dtype.element_ty
    # Parts of a split-K product are added here, in float32 and always in this order: no launch of
    # their own, and the same sum whatever else is in the step.
    if IN_TREE:
        x = sum_in_tree(x_ptr, row + at, tokens.to(tl.int64) * HIDDEN, inside, PARTS)
    else:
        x = tl.load(x_ptr + row + at, mask=inside, other=0.0)
        for part in tl.static_range(1, PARTS):
            x += tl.load(
                x_ptr + part * tokens.to(tl.int64) * HIDDEN + row + at, mask=inside, other=0.0
            )
    # Rounded to the model's dtype where PyTorch's product would have been.
    x = x.to(dtype)
    weight = tl.load(weight_ptr + at, mask=inside, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        residual = tl.load(residual_ptr + row + at, mask=inside, other=0.0)
        x = (x.to(tl.float32) + residual.to(tl.float32)).to(dtype)
        # In place: a program owns its row, so no other program reads the old residual.
        tl.store(residual_ptr + row + at, x, mask=inside)
    wide = x.to(tl.float32)
    mean_square = tl.sum(wide * wide, axis=0) / HIDDEN
    # Rounded before the weight, as transformers' LlamaRMSNorm does: its results are the oracle's.
    normed = (wide * tl.rsqrt(mean_square + eps)).to(dtype)
    result = (weight * normed.to(tl.float32)).to(dtype)
    tl.store(out_ptr + row + at, result, mask=inside)


def rms_norm(x: torch.Tensor, norm: NormWeight) -> torch.Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    _launch(x, None, norm, out, 1)
    return out


def norm(stream: Stream, norm: NormWeight) -> tuple[torch.Tensor, Stream]:
    pending, residual = stream.pending, stream.residual
    if pending is None:
        return rms_norm(residual, norm), stream
    if stream.pending_is is Pending.WHOLE:
        _launch(pending, residual, norm, pending, 1)
        return pending, Stream(residual)
    out = torch.empty_like(residual)
    _launch(pending, residual, norm, out, pending.shape[0])
    return out, Stream(residual)


@dataclass(frozen=True, slots=True)
class NormLaunch:
    """The launch of a norm: the number of x's parts, the order of their sum, and the warps of a
    program."""

    parts: int
    warps: int
    in_tree: bool = False


def _launch(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm: NormWeight,
    out: torch.Tensor,
    parts: int,
) -> None:
    hidden = out.shape[-1]
    # Few rows, and parts to add up: latency counts, so more threads; many rows: bandwidth does, and
    # 16 bytes a thread a load are enough.
    elements = 128 if parts > 1 else 256 if out.numel() // hidden < 64 else 512
    launch_norm(x, residual, norm, out, NormLaunch(parts, warps_for(hidden, elements, most=16)))


def launch_norm(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm: NormWeight,
    out: torch.Tensor,
    launch: NormLaunch,
) -> None:
    """Norm rows x [.., H], or [parts, .., H], into `out`; with a residual its sum with them, which
    is left in it."""
    hidden = out.shape[-1]
    rows = out.numel() // hidden
    _rms_norm_kernel[(rows,)](
        x, residual, norm.weight, out, rows, norm.eps,
        HIDDEN=hidden, BLOCK=next_power_of_2(hidden), HAS_RESIDUAL=residual is not None,
        PARTS=launch.parts, IN_TREE=launch.in_tree, num_warps=launch.warps,
    )  # fmt: skip
