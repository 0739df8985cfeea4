# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Arrange a step's tokens for products with words of int4: in the words' order, with their sums.

Without this kernel, tiles of outputs would each repeat the work for the same tokens. A tile of
inputs is written nibble by nibble, and within a nibble word by word, its two halves next to each
other, so that a product with a word's halves meets its inputs without an exchange between lanes.
Zero points, which all of a group's codes share, are multiplied with the group's sum instead of
subtracted from each code.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

# Of bfloat16, whose codes are so small there (packed_int32.py) that products would leave float32.
_LARGER = 2.0**60
# Of a program, at most: a warp holds so many of a tile's inputs.
_TOKENS = 8


@triton.jit(do_not_specialize=["tokens"])
def _packed_inputs_kernel(
    x_ptr, order_ptr, out_ptr, total_ptr, tokens, K, padded,
    BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr, CHUNK: tl.constexpr, LARGER: tl.constexpr,
):  # fmt: skip
    """Map x [T, K] → [T, padded] and the sum of each CHUNK, a part of BLOCK_K. order_ptr: the input
    for each place, None if the order is unchanged."""
    row = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    real, row = (row < tokens)[:, None], row.to(tl.int64)[:, None]
    first, lane = tl.program_id(1) * BLOCK_K, tl.arange(0, BLOCK_K)
    dtype = out_ptr.dtype.element_ty
    place = first + lane
    known = place < K
    if order_ptr is not None:
        place = tl.load(order_ptr + place, mask=known, other=0)
    mask = real & known[None, :]
    x = tl.load(x_ptr + row * K + place[None, :], mask=mask, other=0.0).to(tl.float32)
    # Inputs are written nibble by nibble, as int4_tile gives the weights: reordered once here
    # instead of in every program of the product.
    word, half, nibble = lane // 8, lane // 4 % 2, lane % 4
    at = row * padded + (first + nibble * (BLOCK_K // 4) + 2 * word + half)[None, :]
    # Bare codes are subnormal in bfloat16; x made 2^60 times as large brings products back among
    # normal float32. Odd nibbles stay shifted left, so their inputs are a 16th.
    if LARGER != 1.0:
        larger = x * tl.where(nibble % 2 == 0, LARGER, LARGER / 16)[None, :]
        tl.store(out_ptr + at, larger.to(dtype), mask=real)
    else:
        tl.store(out_ptr + at, x.to(dtype), mask=real)
    # In float32 from the read values, not from the written ones: zero points are then exact.
    totals = tl.sum(tl.reshape(x, (BLOCK_T, BLOCK_K // CHUNK, CHUNK)), axis=2)
    chunk = first // CHUNK + tl.arange(0, BLOCK_K // CHUNK)[None, :]
    tl.store(total_ptr + row * (padded // CHUNK) + chunk, totals, mask=real)


def packed_inputs(
    x: torch.Tensor, order: torch.Tensor | None, block_k: int, chunk: int, *, larger: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Map x [T, in] contiguous → (the same in tiles of block_k inputs, 0 beyond the last; sums of
    each `chunk` of them, float32). larger: bfloat16 is multiplied by 2^60."""
    tokens, inner = x.shape
    tiles = triton.cdiv(inner, block_k)
    out = torch.empty((tokens, tiles * block_k), dtype=x.dtype, device=x.device)
    totals = torch.empty((tokens, tiles * block_k // chunk), device=x.device)
    block_t = min(_TOKENS, triton.next_power_of_2(tokens))
    _packed_inputs_kernel[(triton.cdiv(tokens, block_t), tiles)](
        x, order, out, totals, tokens, inner, tiles * block_k,
        BLOCK_T=block_t, BLOCK_K=block_k, CHUNK=chunk,
        LARGER=_LARGER if larger and x.dtype is torch.bfloat16 else 1.0, num_warps=1,
    )  # fmt: skip
    return out, totals
