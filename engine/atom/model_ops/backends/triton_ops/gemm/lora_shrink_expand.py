# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Low-rank products of rows with their own adapters: shrink, then expand into the base's product.

Shapes: x [T, in], y [T, out] (rows of wider tensors, their elements contiguous), a [slots, parts ·
R, in], b [slots, out, R], slots [T] int32, -1 for a token without an adapter. Tiles: tokens sorted
by slot, once a step, so most tiles have one adapter or two; a captured step may hold any. A program
that shrinks has one adapter, and ends at once if none of its tokens has it; one that expands
processes those of its tokens, and adds to y once. Bound: for decodes the memory that matrices are
read from, once for each tile of tokens with the adapter. With few tokens inputs are divided among
programs, and their sums added in one order. Precision: products of the model's elements are summed
in float32; the shrunk values keep 16 bits of them (`product`), and y is rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.launch import head_lanes, next_power_of_2
from atom.model_ops.backends.triton_ops.linear_attention.chunked_delta_rule import product
from atom.model_ops.values import LoraWeight
from atom.utils.forward_context import LoraTokens

_FEW_TOKENS = 64
_INPUTS = 256  # of a program that has few tokens
_SHRUNK = 64  # columns of a program's shrunk values
_RANKS = 64  # of an adapter that a program multiplies with at once
_OUTPUTS = 128
_DENSE_SLOTS = 64  # more are of experts
_ORDER = "lora_order"  # of a step's tokens, in the values computed once a step


@triton.jit(do_not_specialize=["tokens", "x_stride"])
def _shrink_kernel(
    x_ptr, a_ptr, slots_ptr, order_ptr, parts_ptr, tokens, x_stride,
    IN: tl.constexpr, SHRUNK: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr, PART_K: tl.constexpr,
):  # fmt: skip
    """SHRUNK: of all parts of the matrix; PART_K: inputs of a program."""
    place = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    slot = tl.program_id(1)
    own = tl.load(slots_ptr + place, mask=place < tokens, other=-1) == slot
    if tl.max(own.to(tl.int32), axis=0) == 0:
        return
    token = tl.load(order_ptr + place, mask=own, other=0)
    blocks: tl.constexpr = (SHRUNK + BLOCK_R - 1) // BLOCK_R
    row = tl.program_id(2) % blocks * BLOCK_R + tl.arange(0, BLOCK_R)
    part = tl.program_id(2) // blocks
    at_x = x_ptr + token[:, None] * x_stride
    at_a = a_ptr + (slot.to(tl.int64) * SHRUNK + row[:, None]) * IN
    total = tl.zeros([BLOCK_T, BLOCK_R], dtype=tl.float32)
    for begin in range(part * PART_K, min((part + 1) * PART_K, IN), BLOCK_K):
        k = (begin + tl.arange(0, BLOCK_K))[None, :]
        x = tl.load(at_x + k, mask=own[:, None] & (k < IN), other=0.0)
        a = tl.load(at_a + k, mask=(row[:, None] < SHRUNK) & (k < IN), other=0.0)
        total = tl.dot(x, tl.trans(a), total, input_precision="ieee")
    at = (part.to(tl.int64) * tokens + place[:, None]) * SHRUNK + row[None, :]
    tl.store(parts_ptr + at, total, mask=own[:, None] & (row[None, :] < SHRUNK))


@triton.jit
def _expand_slot(
    total, shrunk, slot, number, b_ptr, row, lane, within, OUT: tl.constexpr, RANK: tl.constexpr
):
    """Add some lanes of b of the slot `number`, times the shrunk values of its tokens."""
    at_b = b_ptr + (number * OUT + row.to(tl.int64)) * RANK
    factors = tl.load(at_b[:, None] + lane[None, :], mask=within, other=0.0)
    own = tl.where((slot == number)[None, :], shrunk, 0.0)
    return product(factors, own, total)


@triton.jit
def _expand_projection(
    total, sums, plane, slot, b_ptr, row,
    OUT: tl.constexpr, BEGIN: tl.constexpr, END: tl.constexpr, RANK: tl.constexpr,
    LANES: tl.constexpr, PARTS: tl.constexpr, SPARSE: tl.constexpr,
):  # fmt: skip
    """Add b · shrunk values for a projection's rows. sums: pointers [T] to its shrunk values, whose
    parts are a plane apart; slot: of each token, in order."""
    lane = tl.arange(0, LANES)
    first = tl.min(row, axis=0)
    # A tile of other projections has no rows of this one.
    ranks = tl.where((first < END) & (first + row.shape[0] > BEGIN), RANK, 0)
    rows = (row >= BEGIN) & (row < END)
    least = tl.min(tl.where(slot >= 0, slot, 1 << 30), axis=0)
    for begin in range(0, ranks, LANES):
        held = (slot[None, :] >= 0) & (begin + lane[:, None] < RANK)
        shrunk = tl.zeros([LANES, slot.shape[0]], dtype=tl.float32)
        for part in tl.static_range(PARTS):
            at = sums[None, :] + part * plane + begin + lane[:, None]
            shrunk += tl.load(at, mask=held, other=0.0)
        within = rows[:, None] & (begin + lane[None, :] < RANK)
        for number in range(least, tl.max(slot, axis=0) + 1):
            if SPARSE:
                if tl.max((slot == number).to(tl.int32), axis=0) > 0:
                    total = _expand_slot(
                        total, shrunk, slot, number, b_ptr, row, begin + lane, within, OUT, RANK
                    )
            else:
                total = _expand_slot(
                    total, shrunk, slot, number, b_ptr, row, begin + lane, within, OUT, RANK
                )
    return total


@triton.jit(do_not_specialize=["tokens", "y_stride"])
def _expand_kernel(
    parts_ptr, b_ptr, slots_ptr, order_ptr, y_ptr, tokens, y_stride,
    ROWS: tl.constexpr, RANK: tl.constexpr, LANES: tl.constexpr, PARTS: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, SPARSE: tl.constexpr,
):  # fmt: skip
    """ROWS: of the matrix' projections, one after the other; LANES: of a rank at once; PARTS: sums
    that make the shrunk values; SPARSE: a tile has few of the slots between its first and its
    last."""
    place = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    slot = tl.load(slots_ptr + place, mask=place < tokens, other=-1)
    if tl.max(slot, axis=0) < 0:
        return
    out: tl.constexpr = _end(ROWS, len(ROWS))
    token = tl.load(order_ptr + place, mask=slot >= 0, other=0)
    row = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    at_y = y_ptr + token[None, :] * y_stride + row[:, None]
    told = (slot[None, :] >= 0) & (row[:, None] < out)
    y = tl.load(at_y, mask=told, other=0.0)
    sums = parts_ptr + place.to(tl.int64) * (len(ROWS) * RANK)
    plane = tokens.to(tl.int64) * (len(ROWS) * RANK)
    total = tl.zeros([BLOCK_N, BLOCK_T], dtype=tl.float32)
    for projection in tl.static_range(len(ROWS)):
        total = _expand_projection(
            total, sums + projection * RANK, plane, slot, b_ptr, row,
            out, _end(ROWS, projection), _end(ROWS, projection + 1), RANK, LANES, PARTS, SPARSE,
        )  # fmt: skip
    tl.store(at_y, (y.to(tl.float32) + total).to(y_ptr.dtype.element_ty), mask=told)


@triton.constexpr_function
def _end(rows: tuple[int, ...], count: int) -> int:
    """Return the end row of the first projections."""
    return sum(rows[:count])


def add_lora(
    product: Callable[[], torch.Tensor], x: torch.Tensor, w: LoraWeight, tokens: LoraTokens
) -> torch.Tensor:
    """See `Ops.add_lora`."""
    few = x.shape[0] <= _FEW_TOKENS
    parts = triton.cdiv(x.shape[1], _INPUTS) if few else 1
    sums = torch.empty((parts, len(x), w.a.shape[1]), dtype=torch.float32, device=x.device)
    order = _order(tokens)
    with _beside(few) as join:
        _shrink(x, w, order, sums)
    y = product()
    join()
    _expand(y, w, order, sums)
    return y


@dataclass(frozen=True, slots=True)
class _Order:
    """Tokens by slot: slots [T] int32 in order, tokens [T] int64 that have them; tile: tokens of a
    program."""

    slots: torch.Tensor
    tokens: torch.Tensor
    tile: int

    @property
    def tiles(self) -> int:
        return triton.cdiv(len(self.slots), self.tile)


def _order(tokens: LoraTokens) -> _Order:
    """Sort a step's tokens, once."""
    found: _Order | None = tokens.per_step.get(_ORDER)
    if found is None:
        slots, order = tokens.slots.sort(stable=True)
        found = _Order(slots, order, 16 if len(slots) <= _FEW_TOKENS else 64)
        tokens.per_step[_ORDER] = found
    return found


def _shrink(x: torch.Tensor, w: LoraWeight, order: _Order, sums: torch.Tensor) -> None:
    (count, inputs), (parts, _, shrunk) = x.shape, sums.shape
    block_r = min(_SHRUNK, head_lanes(shrunk))
    _shrink_kernel[(order.tiles, w.a.shape[0], parts * triton.cdiv(shrunk, block_r))](
        x, w.a, order.slots, order.tokens, sums, count, x.stride(0),
        IN=inputs, SHRUNK=shrunk, BLOCK_T=order.tile, BLOCK_R=block_r,
        BLOCK_K=128 if order.tile == 16 else 64, PART_K=_INPUTS if parts > 1 else inputs,
        num_warps=4, num_stages=3,
    )  # fmt: skip


def _expand(y: torch.Tensor, w: LoraWeight, order: _Order, sums: torch.Tensor) -> None:
    count, outputs = y.shape
    block_n = min(_OUTPUTS, max(16, next_power_of_2(outputs)))
    _expand_kernel[(order.tiles, triton.cdiv(outputs, block_n))](
        sums, w.b, order.slots, order.tokens, y, count, y.stride(0),
        ROWS=w.rows, RANK=w.rank, LANES=min(_RANKS, head_lanes(w.rank)), PARTS=sums.shape[0],
        BLOCK_T=order.tile, BLOCK_N=block_n, SPARSE=w.b.shape[0] > _DENSE_SLOTS, num_warps=4,
    )  # fmt: skip


@contextmanager
def _beside(few: bool) -> Iterator[Callable[[], None]]:
    """Open a context whose kernels run concurrently with later ones until the yielded function is
    called: for few tokens in a graph, where neither fills the device, and a second stream costs the
    host nothing."""
    if not (few and torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
        yield lambda: None
        return
    main, side = torch.cuda.current_stream(), _side_stream()
    side.wait_stream(main)
    with torch.cuda.stream(side):
        yield lambda: main.wait_stream(side)


@cache
def _side_stream() -> torch.cuda.Stream:
    return torch.cuda.Stream()
