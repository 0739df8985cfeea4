"""RMSNorm whose sum over a row has one order: a program has as many warps however many rows there
are. Parts that are pending are added as the tree that a product adds its leaves by."""

from __future__ import annotations

import torch

from atom.model_ops.backends.triton_ops.launch import warps_for
from atom.model_ops.backends.triton_ops.norms import NormLaunch, launch_norm
from atom.model_ops.values import NormWeight, Pending, Stream


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
    warps = warps_for(out.shape[-1], 256, most=16)
    launch_norm(x, residual, norm, out, NormLaunch(parts, warps, in_tree=True))
