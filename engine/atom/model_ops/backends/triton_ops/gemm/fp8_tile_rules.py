"""Tiles of products with matrices of fp8, by the family of the shape.

Rules read off measurements on an H200 for matrices of 1,024 to 28,672 outputs: a product of few
tokens is bound by reading the matrix, so what matters is how many programs read and how much each
has in flight. Making numbers of codes costs instructions, so the library, which multiplies codes,
wins from fewer tokens on than it does with plain matrices (tile_families.py). None: the
library's product, or w8a8_gemm.py's.
"""

from __future__ import annotations

from atom.model_ops.backends.triton_ops.compile.tuning import LinearConfig, SkinnyConfig

_MANY_OUTPUTS = 16_384
_WIDE = 128  # inputs of a tile


def linear_rule(outputs: int, inner: int, tokens: int) -> LinearConfig | None:
    """For a matrix of fp8: of one token alone, where w8a16_gemv.py does not take it; of more
    w8a8_gemm.py's or the library's (scaled_mm.py)."""
    if tokens > 1 or outputs >= _MANY_OUTPUTS:
        return None
    if inner < 1024:
        return SkinnyConfig("dot", 16, _WIDE, 4, 4, 4)
    return SkinnyConfig("gemv", 8, 1024, 1, 4, 2)
