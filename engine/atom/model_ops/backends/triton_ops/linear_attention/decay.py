# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Kernels of states compute with this how much one forgets at a token."""

from __future__ import annotations

import triton
import triton.language as tl

LINEAR_FROM = 20.0  # softplus(x) is x in float32


@triton.jit
def softplus(x, LINEAR_FROM: tl.constexpr):
    """Compute log(1 + e^x); LINEAR_FROM: from here on the result is x."""
    # The exponential of a large one would be infinite.
    return tl.where(x > LINEAR_FROM, x, tl.log(1.0 + tl.exp(tl.minimum(x, LINEAR_FROM))))


@triton.jit
def log_decay(a, a_log, LINEAR_FROM: tl.constexpr):
    """Compute -exp(a_log) · softplus(a); LINEAR_FROM: where softplus is its argument."""
    return -tl.exp(a_log) * softplus(a, LINEAR_FROM)
