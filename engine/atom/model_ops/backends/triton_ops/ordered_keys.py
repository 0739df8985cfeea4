# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Floats as unsigned numbers of the same order, so that a search may go through their bits."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def ordered_key(x):
    """Unsigned numbers in the order of floats."""
    bits = x.to(tl.float32).to(tl.uint32, bitcast=True)
    # Of negative floats all bits are turned over, of others the sign alone: unsigned order is then
    # the floats' order, -0 just below 0.
    return tl.where(bits >> 31 == 1, ~bits, bits | 0x80000000)
