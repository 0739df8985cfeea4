# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Rotation of queries and keys of an image encoder, in place: every element is read and written
once.

A program takes a few tokens and some neighbouring heads [TOKENS, HEADS, LANES / 2]. The halves of a
head are loaded apart, since element i rotates with i + D / 2, and both are then in one thread. The
tile bounds registers alone: the kernel is bound by memory.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.launch import head_lanes

_TOKENS, _HEADS = 4, 8


@triton.jit(do_not_specialize=["tokens"])
def _rotate_heads_kernel(
    x_ptr, cos_ptr, sin_ptr, tokens, row_stride,
    COUNT: tl.constexpr, D: tl.constexpr, TOKENS: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """COUNT: heads of a token; row_stride: from a token's heads to the next one's."""
    HALF: tl.constexpr = D // 2
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    lane = tl.arange(0, head_lanes(D) // 2)
    turned = (token < tokens)[:, None] & (lane < HALF)[None, :]
    # One load of a token's angles serves all heads of the program.
    angle = token[:, None] * HALF + lane[None, :]
    cos = tl.load(cos_ptr + angle, mask=turned, other=0.0)[:, None, :]
    sin = tl.load(sin_ptr + angle, mask=turned, other=0.0)[:, None, :]
    inside = turned[:, None, :] & (head < COUNT)[None, :, None]
    at = x_ptr + token[:, None, None] * row_stride + head[None, :, None] * D + lane[None, None, :]
    first = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(at + HALF, mask=inside, other=0.0).to(tl.float32)
    dtype = x_ptr.dtype.element_ty
    tl.store(at, (first * cos - second * sin).to(dtype), mask=inside)
    tl.store(at + HALF, (second * cos + first * sin).to(dtype), mask=inside)


def rotate_heads(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    tokens, count, dim = x.shape
    grid = triton.cdiv(tokens, _TOKENS), triton.cdiv(count, _HEADS)
    _rotate_heads_kernel[grid](
        x, cos, sin, tokens, x.stride(0),
        COUNT=count, D=dim, TOKENS=_TOKENS, HEADS=_HEADS, num_warps=4,
    )  # fmt: skip
