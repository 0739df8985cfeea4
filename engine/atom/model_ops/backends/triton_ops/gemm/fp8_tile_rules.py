"""Tiles of products with matrices of fp8, by the family of the shape.

The rules come from measurements on an H200 for matrices of 1,024 to 28,672 outputs. A product of
few tokens is bound by reading the matrix, so the number of programs and their bytes in flight
matter. Converting codes to numbers costs instructions. So the library, which multiplies codes, wins
from fewer tokens on than with plain matrices (tile_families.py). None: the library's product, or
w8a8_gemm.py's.
"""

from __future__ import annotations

from atom.model_ops.backends.triton_ops.compile.tuning import LinearConfig, SkinnyConfig

_MANY_OUTPUTS = 16_384
_WIDE = 128  # inputs of a tile


def linear_rule(outputs: int, inner: int, tokens: int) -> LinearConfig | None:
    """Choose a configuration for a matrix of fp8 and one token, if w8a16_gemv.py does not take it;
    None for more tokens, which w8a8_gemm.py or the library multiplies (scaled_mm.py)."""
    if tokens > 1 or outputs >= _MANY_OUTPUTS:
        return None
    if inner < 1024:
        return SkinnyConfig("dot", 16, _WIDE, 4, 4, 4)
    return SkinnyConfig("gemv", 8, 1024, 1, 4, 2)
