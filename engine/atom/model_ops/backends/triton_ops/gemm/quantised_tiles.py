# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Shared parts of products with quantised matrices: their tiles, and the end of a split product.

A product of few tokens has few tiles. So its inner dimension is divided among programs, whose
float32 parts the next norm adds up, or a small kernel if there is no norm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.launch import compute_units, next_power_of_2
from atom.model_ops.backends.triton_ops.xcd_order import product_dies
from atom.model_ops.values import LinearWeight, WeightFormat

# The narrowest tile of tokens that the tensor core multiplies.
_MIN_TOKENS = 16
MOST_SPLITS = 16
# Tiles of the inner dimension that a slice has at least.
LEAST_TILES = 4
_CHUNK = 1024


@dataclass(frozen=True, slots=True)
class QuantisedTile:
    """slice: inputs of each of `splits` parts; dies: for `product_tile`."""

    block_t: int
    block_n: int
    block_k: int
    splits: int
    slice: int
    num_warps: int
    num_stages: int
    dies: int = 1

    def grid(self, tokens: int, outputs: int) -> tuple[int, int, int]:
        return triton.cdiv(tokens, self.block_t), triton.cdiv(outputs, self.block_n), self.splits


def choose_tile(
    x: torch.Tensor, w: LinearWeight, block_k: int, least_n: int = 32, most_t: int = 128
) -> QuantisedTile:
    """Choose wide tiles for many tokens; for few, as many programs as keep the memory busy.
    least_n: outputs of a tile; most_t: its tokens."""
    tokens, outputs = x.shape[0], w.outputs
    block_t = max(_MIN_TOKENS, min(most_t, next_power_of_2(tokens)))
    block_n = max(least_n, 128 if block_t >= 64 else 64 if block_t == 32 else 32)
    wanted, tiles = 2 * compute_units(x.device), triton.cdiv(w.inputs, block_k)
    programs = triton.cdiv(tokens, block_t) * triton.cdiv(outputs, block_n)
    splits = 1
    while splits < MOST_SPLITS and programs * splits < wanted:
        if tiles // (2 * splits) < LEAST_TILES:
            break
        splits *= 2
    return QuantisedTile(
        block_t=block_t,
        block_n=block_n,
        block_k=block_k,
        splits=splits,
        slice=triton.cdiv(tiles, splits) * block_k,
        num_warps=8 if block_t >= 128 else 4,
        num_stages=3 if block_t < 64 else 2,
        dies=product_dies(x.device, triton.cdiv(tokens, block_t)),
    )


def scale_constants(w: LinearWeight) -> dict[str, Any]:
    """Return the constants of a matrix' scales for kernels of few tokens: SCALED, TALL and WIDE."""
    if w.scales is None:
        return {"SCALED": False, "TALL": 1, "WIDE": 0}
    tall, wide = w.scales.block
    blocks = w.format is WeightFormat.FP8_BLOCKS
    return {"SCALED": True, "TALL": tall, "WIDE": wide if blocks else 0}


def new_parts(x: torch.Tensor, outputs: int, tile: QuantisedTile) -> torch.Tensor:
    """Allocate [T, out] in x's dtype, or float32 [splits, T, out]."""
    shape = (x.shape[0], outputs) if tile.splits == 1 else (tile.splits, x.shape[0], outputs)
    dtype = x.dtype if tile.splits == 1 else torch.float32
    return torch.empty(shape, dtype=dtype, device=x.device)


@triton.jit
def store_part(
    acc, bias_ptr, parts_ptr, t, n, tokens, N, part, HAS_BIAS: tl.constexpr
):  # acc [tokens, outputs] float32
    # Of the first part alone: parts are added up.
    if HAS_BIAS:
        bias = tl.load(bias_ptr + n, mask=n < N, other=0.0).to(tl.float32)
        acc += tl.where(part == 0, bias, 0.0)[None, :]
    # parts [S, T, N] in float32: the norm that adds them reads whole rows.
    at = parts_ptr + (part * tokens.to(tl.int64) + t[:, None]) * N + n[None, :]
    mask = (t < tokens)[:, None] & (n < N)[None, :]
    tl.store(at, acc.to(parts_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["total", "splits"])
def _sum_kernel(parts_ptr, out_ptr, total, splits, CHUNK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * CHUNK + tl.arange(0, CHUNK)
    inside = at < total
    acc = tl.load(parts_ptr + at, mask=inside, other=0.0)
    # In the order of parts; with atomics a sum would depend on which program was first.
    for part in range(1, splits):
        acc += tl.load(parts_ptr + part * total.to(tl.int64) + at, mask=inside, other=0.0)
    tl.store(out_ptr + at, acc.to(out_ptr.dtype.element_ty), mask=inside)


def whole(parts: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the whole product: the sum of parts, or a whole product unchanged."""
    if parts.dim() == 2:
        return parts
    out = torch.empty(parts.shape[1:], dtype=dtype, device=parts.device)
    _sum_kernel[(triton.cdiv(out.numel(), _CHUNK),)](
        parts, out, out.numel(), parts.shape[0], CHUNK=_CHUNK
    )
    return out
