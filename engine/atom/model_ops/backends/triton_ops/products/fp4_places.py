# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Where codes and exponents of MXFP4 lie: row after row, or in tiles (quantised/fp4_tiles.py).

An output's and an input's share of a place are apart, so a kernel adds them once and steps along
the inputs. PIECE: how many of what a pointer counts a tile's row has.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def row_place(n, WIDTH: tl.constexpr, PIECE: tl.constexpr, TILED: tl.constexpr):
    """Row n of a matrix whose rows are WIDTH wide."""
    if TILED:
        return n // 64 * (64 * WIDTH) + n % 64 * PIECE
    else:
        return n * WIDTH


@triton.jit
def column_place(k, PIECE: tl.constexpr, TILED: tl.constexpr):
    if TILED:
        return k // PIECE * (64 * PIECE) + k % PIECE
    else:
        return k
