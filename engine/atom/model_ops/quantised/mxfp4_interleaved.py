"""Stacks of MXFP4 with interleaved groups of eight rows, so that the data that a program reads at
once is contiguous.

Within eight rows, the codes of 128 inputs are stored row after row, then those of the next 128; the
last 64 may be half as wide. Their exponents are stored in the same way, eight of a row at a time,
the last of them padded. Called by backends that prepare stacks for such kernels.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F

from atom.model_ops.values import LinearWeight, Scales, WeightFormat

ROWS_TOGETHER = 8  # rows
_CODES, _EXPONENTS = 64, 8  # of a row side by side, in bytes
_GROUP = 32  # inputs
_LEAST = 64  # inputs; a row has a multiple of them


def can_interleave(w: LinearWeight) -> bool:
    """Return whether w, of MXFP4, has whole groups of eight rows (gate_proj's and up_proj's each)
    and inputs that runs divide."""
    rows = w.outputs if w.gating is None else w.outputs // 2
    return w.format is WeightFormat.MXFP4 and rows % ROWS_TOGETHER == 0 and w.inputs % _LEAST == 0


def interleaved(w: LinearWeight) -> LinearWeight:
    """Convert a stack of MXFP4 that `can_interleave` to MXFP4_INTERLEAVED."""
    scales = w.scales
    assert scales is not None
    whole = F.pad(scales.scale, (0, -scales.scale.shape[-1] % _EXPONENTS))
    scale = _by_eight(whole, _EXPONENTS)
    scales = replace(scales, format=WeightFormat.MXFP4_INTERLEAVED, scale=scale)
    return replace(w, data=_by_eight(w.data, _CODES), scales=scales)


def in_rows(data: torch.Tensor, scales: Scales) -> tuple[torch.Tensor, Scales]:
    """Convert a stack from MXFP4_INTERLEAVED to MXFP4."""
    groups = 2 * data.shape[-1] // _GROUP
    scale = _by_row(scales.scale, _EXPONENTS)[..., :groups]
    return _by_row(data, _CODES), replace(scales, format=WeightFormat.MXFP4, scale=scale)


def _by_eight(stored: torch.Tensor, run: int) -> torch.Tensor:
    width = stored.shape[-1]
    eights = stored.reshape(-1, ROWS_TOGETHER, width)
    moved = torch.empty(
        (len(eights), ROWS_TOGETHER * width), dtype=stored.dtype, device=stored.device
    )
    for piece, target in zip(
        eights.split(run, -1), moved.split(ROWS_TOGETHER * run, -1), strict=True
    ):
        target.copy_(piece.flatten(1))
    return moved.reshape(stored.shape)


def _by_row(stored: torch.Tensor, run: int) -> torch.Tensor:
    width = stored.shape[-1]
    eights = stored.reshape(-1, ROWS_TOGETHER * width)
    pieces = (
        piece.unflatten(1, (ROWS_TOGETHER, -1)) for piece in eights.split(ROWS_TOGETHER * run, -1)
    )
    return torch.cat(list(pieces), -1).reshape(stored.shape)
