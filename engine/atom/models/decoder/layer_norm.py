"""The RMS norms of a model's layers, built of what its spec says of them."""

from __future__ import annotations

import torch

from atom.model_ops.layernorm import RMSNorm
from atom.model_ops.linear import Build
from atom.models.decoder.spec import NormSpec


def build_norm(
    size: int, norm: NormSpec, build: Build, order: torch.Tensor | None = None
) -> RMSNorm:
    """Build a norm over `size` elements; order: in which they lie, if not as in the checkpoint."""
    return RMSNorm(size, norm.eps, ops=build.ops, unit_offset=norm.unit_offset, order=order)
