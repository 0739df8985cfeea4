"""Tiles of products whose shape no table knows, by the family of the shape.

Rules read off the tables that were measured on an H200 for matrices of 1,024 to 28,672 outputs: a
product of few tokens is bound by reading the matrix, so what matters is how many programs read and
how much each has in flight. Matrices of fp8 have rules of their own: making numbers of codes costs
instructions, so the library, which multiplies codes, wins from fewer tokens on. None: the library's
product, or scaled_linear.py's.
"""

from __future__ import annotations

from atom.model_ops.backends.triton_ops.tuning import LinearConfig, SkinnyConfig, SplitConfig

# From so many outputs on there are tiles enough for every multiprocessor, whatever their shape.
_HEAD = 65_536
_MANY_OUTPUTS = 16_384
_WIDE, _NARROW = 128, 64  # inputs of a tile


def linear_rule(outputs: int, inner: int, tokens: int) -> LinearConfig | None:
    """For up to 64 tokens and a plain matrix."""
    if tokens <= 2 and inner <= 2048 and outputs < _HEAD:
        return SkinnyConfig("gemv", 4 if outputs >= 4096 else 2, 512, 1, 2, 2)
    if tokens <= 8 and outputs >= _HEAD:
        return SkinnyConfig("dot", 32 if inner > 1024 else 16, _WIDE, 4, 4, 2)
    if tokens <= 8 and outputs < _MANY_OUTPUTS:
        return SkinnyConfig("dot", 16, _NARROW if inner < 2048 else _WIDE, 4, 4, 4)
    if tokens > 64 or inner % _WIDE:
        return None
    if outputs >= _HEAD and outputs % 128 == 0:
        return SplitConfig(128, _NARROW, 1, tokens <= 32, 4, 3)
    if tokens <= 32 and outputs % 64 == 0 and 4096 <= outputs < _MANY_OUTPUTS:
        return SplitConfig(64, _WIDE, 1, True, 4, 5)
    return None


def addend_rule(outputs: int, inner: int, tokens: int) -> SplitConfig | None:
    """For a plain product that a norm adds to the residual, and may get in parts."""
    if tokens < 2 or outputs % 64 or outputs >= _MANY_OUTPUTS:
        return None
    most = 64 if inner >= 8192 or outputs < 4096 else 32
    if tokens > most or (tokens <= 8 and inner >= 8192):
        return None
    splits = 4 if outputs < 4096 else 2
    if inner % (splits * _WIDE):
        return None
    if tokens > 32 and outputs <= 2048:
        return SplitConfig(32, _WIDE, splits, False, 4, 4, 64)
    return SplitConfig(64, _WIDE, splits, True, 4, 5, 64)


def gated_rule(outputs: int, inner: int, tokens: int) -> SplitConfig | None:
    """For a plain product with its activation; outputs: gates and ups together."""
    if tokens < 2 or tokens > 64 or inner % _WIDE or outputs % 256:
        return None
    if tokens <= 32:
        return SplitConfig(64, _NARROW, 1, True, 4, 4, 64)
    if outputs < _MANY_OUTPUTS:
        return SplitConfig(32, _WIDE, 1, False, 4, 4, 64)
    return SplitConfig(128, _NARROW, 1, False, 4, 4, 64)


def narrow_linear_rule(outputs: int, inner: int, tokens: int) -> LinearConfig | None:
    """For a matrix of fp8: of one token alone, more are the library's."""
    if tokens > 1 or outputs >= _MANY_OUTPUTS:
        return None
    if inner < 1024:
        return SkinnyConfig("dot", 16, _WIDE, 4, 4, 4)
    return SkinnyConfig("gemv", 8, 1024, 1, 4, 2)


def narrow_addend_rule(outputs: int, inner: int, tokens: int) -> SplitConfig | None:
    """For a matrix of fp8 whose product a norm adds: the library divides no inner dimension."""
    splits = 4
    if tokens < 2 or tokens > 64 or outputs % 128 or outputs >= _MANY_OUTPUTS:
        return None
    if inner % (splits * _WIDE):
        return None
    if tokens <= 32:
        return SplitConfig(64, _WIDE, splits, True, 4, 4, 64)
    return SplitConfig(128, _WIDE, splits, True, 8, 3, 64)
