# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Low-rank products of rows that have adapters of their own: shrink, then expand into the base's.

Shapes: x [T, in], y [T, out] (rows of wider tensors, their elements contiguous), a [slots, parts ·
R, in], b [slots, out, R], slots [T] int32, -1 of a token without an adapter. Tiles: a program has
some tokens that are neighbours and one adapter, and ends at once where none of them has it; so
nothing is sorted, and a captured step may hold any adapters. Prompts' neighbours have the same one.
Bound: of decodes the memory that matrices are read from, once for each tile of tokens that has the
adapter. Inputs are divided among programs where tokens are few, and their sums added in one order.
Precision: products of the model's elements are summed in float32; what is shrunk keeps 16 bits of
them (`product`), and y is rounded once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.launch import head_lanes, next_power_of_2
from atom.model_ops.backends.triton_ops.linear_attention.chunked_delta_rule import product
from atom.model_ops.values import LoraWeight
from atom.utils.forward_context import LoraTokens

_FEW_TOKENS = 64
_INPUTS = 1024  # of a program that has few tokens
_SHRUNK = 64  # columns of what a program shrinks to
_RANKS = 64  # of an adapter that a program multiplies with at once
_OUTPUTS = 128


@triton.jit(do_not_specialize=["tokens", "x_stride"])
def _shrink_kernel(
    x_ptr, a_ptr, slots_ptr, parts_ptr, tokens, x_stride,
    IN: tl.constexpr, SHRUNK: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr, PART_K: tl.constexpr,
):  # fmt: skip
    """SHRUNK: of all parts of the matrix; PART_K: inputs of a program."""
    token = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    slot = tl.program_id(1)
    own = tl.load(slots_ptr + token, mask=token < tokens, other=-1) == slot
    if tl.max(own.to(tl.int32), axis=0) == 0:
        return
    blocks: tl.constexpr = (SHRUNK + BLOCK_R - 1) // BLOCK_R
    row = tl.program_id(2) % blocks * BLOCK_R + tl.arange(0, BLOCK_R)
    part = tl.program_id(2) // blocks
    at_x = x_ptr + token.to(tl.int64)[:, None] * x_stride
    at_a = a_ptr + (slot.to(tl.int64) * SHRUNK + row[:, None]) * IN
    total = tl.zeros([BLOCK_T, BLOCK_R], dtype=tl.float32)
    for begin in range(part * PART_K, min((part + 1) * PART_K, IN), BLOCK_K):
        k = (begin + tl.arange(0, BLOCK_K))[None, :]
        x = tl.load(at_x + k, mask=own[:, None] & (k < IN), other=0.0)
        a = tl.load(at_a + k, mask=(row[:, None] < SHRUNK) & (k < IN), other=0.0)
        total = tl.dot(x, tl.trans(a), total, input_precision="ieee")
    place = (part.to(tl.int64) * tokens + token[:, None]) * SHRUNK + row[None, :]
    tl.store(parts_ptr + place, total, mask=own[:, None] & (row[None, :] < SHRUNK))


@triton.jit
def _expand_projection(
    total, sums, plane, own, b, row,
    BEGIN: tl.constexpr, END: tl.constexpr, RANK: tl.constexpr, LANES: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    """Add b · what is shrunk, of the rows that are a projection's. sums: pointers [T] of what is
    shrunk for it, whose parts lie a plane apart; b: pointers of each row's."""
    lane = tl.arange(0, LANES)
    first = tl.min(row, axis=0)
    # A tile of other projections alone has nothing of this one.
    ranks = tl.where((first < END) & (first + row.shape[0] > BEGIN), RANK, 0)
    for begin in range(0, ranks, LANES):
        held = own[None, :] & (begin + lane[:, None] < RANK)
        shrunk = tl.zeros([LANES, own.shape[0]], dtype=tl.float32)
        for part in range(PARTS):
            at = sums[None, :] + part * plane + begin + lane[:, None]
            shrunk += tl.load(at, mask=held, other=0.0)
        within = ((row >= BEGIN) & (row < END))[:, None] & (begin + lane[None, :] < RANK)
        factors = tl.load(b[:, None] + begin + lane[None, :], mask=within, other=0.0)
        total = product(factors, shrunk, total)
    return total


@triton.jit(do_not_specialize=["tokens", "y_stride"])
def _expand_kernel(
    parts_ptr, b_ptr, slots_ptr, y_ptr, tokens, y_stride,
    ROWS: tl.constexpr, RANK: tl.constexpr, LANES: tl.constexpr, PARTS: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """ROWS: of the matrix' projections, one below the other; LANES: of a rank at once; PARTS: sums
    that make what is shrunk."""
    token = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    slot = tl.program_id(1)
    own = tl.load(slots_ptr + token, mask=token < tokens, other=-1) == slot
    if tl.max(own.to(tl.int32), axis=0) == 0:
        return
    out: tl.constexpr = _end(ROWS, len(ROWS))
    row = tl.program_id(2) * BLOCK_N + tl.arange(0, BLOCK_N)
    sums = parts_ptr + token.to(tl.int64) * (len(ROWS) * RANK)
    plane = tokens.to(tl.int64) * (len(ROWS) * RANK)
    total = tl.zeros([BLOCK_N, BLOCK_T], dtype=tl.float32)
    for projection in tl.static_range(len(ROWS)):
        total = _expand_projection(
            total, sums + projection * RANK, plane, own,
            b_ptr + (slot.to(tl.int64) * out + row) * RANK, row,
            _end(ROWS, projection), _end(ROWS, projection + 1), RANK, LANES, PARTS,
        )  # fmt: skip
    place = y_ptr + token.to(tl.int64)[None, :] * y_stride + row[:, None]
    told = own[None, :] & (row[:, None] < out)
    y = tl.load(place, mask=told, other=0.0).to(tl.float32) + total
    tl.store(place, y.to(y_ptr.dtype.element_ty), mask=told)


@triton.constexpr_function
def _end(rows: tuple[int, ...], count: int) -> int:
    """Find the row behind the first projections."""
    return sum(rows[:count])


def add_lora(y: torch.Tensor, x: torch.Tensor, w: LoraWeight, tokens: LoraTokens) -> torch.Tensor:
    """See `Ops.add_lora`."""
    count, inputs = x.shape
    slots, shrunk = w.a.shape[:2]
    few = count <= _FEW_TOKENS
    parts = triton.cdiv(inputs, _INPUTS) if few else 1
    sums = torch.empty((parts, count, shrunk), dtype=torch.float32, device=x.device)
    block_t = 16 if few else 64
    block_r = min(_SHRUNK, head_lanes(shrunk))
    tiles = triton.cdiv(count, block_t)
    _shrink_kernel[(tiles, slots, parts * triton.cdiv(shrunk, block_r))](
        x, w.a, tokens.slots, sums, count, x.stride(0),
        IN=inputs, SHRUNK=shrunk, BLOCK_T=block_t, BLOCK_R=block_r,
        BLOCK_K=64, PART_K=_INPUTS if few else inputs, num_warps=4,
    )  # fmt: skip
    block_n = min(_OUTPUTS, max(16, next_power_of_2(y.shape[1])))
    _expand_kernel[(tiles, slots, triton.cdiv(y.shape[1], block_n))](
        sums, w.b, tokens.slots, y, count, y.stride(0),
        ROWS=w.rows, RANK=w.rank, LANES=min(_RANKS, head_lanes(w.rank)), PARTS=parts,
        BLOCK_T=block_t, BLOCK_N=block_n, num_warps=4,
    )  # fmt: skip
    return y
