"""Build the RMS norms of a model's layers from its spec."""

from __future__ import annotations

import torch

from atom.model_ops.layernorm import RMSNorm
from atom.model_ops.linear import Build
from atom.models.decoder.spec import NormSpec


def build_norm(
    size: int, norm: NormSpec, build: Build, order: torch.Tensor | None = None
) -> RMSNorm:
    """Build a norm over `size` elements; order: of the elements, if it differs from the
    checkpoint's."""
    return RMSNorm(size, norm.eps, ops=build.ops, unit_offset=norm.unit_offset, order=order)
