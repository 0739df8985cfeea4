# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Experts: a product of each token with the gates and ups it chose, and one with their downs.

A pair is a token and one of its experts. Few pairs are not sorted: each program goes through all of
their ids and picks its expert's, which costs less than a launch. Where there are fewer pairs than
experts, programs belong to pairs, and the first pair of an expert computes for the others. Many
pairs are sorted by expert, by two kernels that count and place (expert_order.py), and tiles of rows
find their expert in the counts.

Experts of four bits become numbers of the activations' dtype tile by tile (packed_experts.py,
fp4_experts.py), or of fp8 where activations are in two codes of it (fp4_codes.py); those of eight
do where activations are not multiplied in fp8 (fp8_experts.py).

The downs' results come as one part per choice, [k, T, H], weighed; the next norm adds them up while
it reads them (norms.norm), or `_sum_kernel` does.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.activation import gated, gating
from atom.model_ops.backends.triton_ops.experts.expert_order import (
    Order,
    order_by_expert,
    pairs_of_expert,
    tile_of_order,
)
from atom.model_ops.backends.triton_ops.experts.expert_tiles import (
    EXPANDED_ROWS,
    ExpertTile,
    expert_tile,
)
from atom.model_ops.backends.triton_ops.experts.fp4_codes import multiply_fp4_codes
from atom.model_ops.backends.triton_ops.experts.fp4_experts import multiply_fp4
from atom.model_ops.backends.triton_ops.experts.fp8_experts import multiply_fp8
from atom.model_ops.backends.triton_ops.experts.packed_experts import multiply_packed
from atom.model_ops.backends.triton_ops.experts.twin_codes import multiplies_codes, twin_codes
from atom.model_ops.backends.triton_ops.launch import next_power_of_2, warps_for
from atom.model_ops.backends.triton_ops.products.expand_codes import expand_codes
from atom.model_ops.backends.triton_ops.products.expanded_linear import orders
from atom.model_ops.backends.triton_ops.products.quantise_inputs import (
    fp8_limit,
    quantise_groups,
    scaled_codes,
)
from atom.model_ops.backends.triton_ops.xcd_order import row_dies, row_tile
from atom.model_ops.routing import Routed
from atom.model_ops.values import (
    INT4_FORMATS,
    ExpertsWeight,
    LinearWeight,
    Pending,
    Stream,
    WeightFormat,
)

# Up to so many pairs programs look for their own; beyond, pairs are sorted.
_SEARCHED_PAIRS = 1024
# Up to so many tokens the sum is left to the next norm, which reads parts in float32.
_PARTS_TOKENS = 256
_SUM_BLOCK = 1024
# What the tensor core multiplies of fp8 at once, which shares a scale.
_FP8_INPUTS = 32


class Programs(enum.IntEnum):
    """What a program belongs to."""

    PAIR = 0
    EXPERT = 1
    TILE = 2  # of the pairs in order


class Packing(enum.IntEnum):
    """How many inputs a kernel takes at once."""

    NONE = 0
    INT4 = 1  # two, of a byte
    FP4 = 2  # likewise
    FP4_WORDS = 3  # eight, for activations in bfloat16
    FP8 = 4  # one, which the tensor core multiplies with activations in fp8
    FP4_CODES = 5  # eight, for activations in twin codes


@triton.jit
def _load_weights(at, mask, EVEN: tl.constexpr):
    if EVEN:
        return tl.load(at)
    else:
        return tl.load(at, mask=mask, other=0.0)


@triton.jit
def _in_numbers(codes, scale_ptr, row, known, k, K, dtype, TALL: tl.constexpr, WIDE: tl.constexpr):
    """Eight-bit codes [N, K] of these rows as numbers of dtype; the tile's inputs share a scale."""
    scale_at = scale_ptr + row // TALL * tl.cdiv(K, WIDE) + k // WIDE
    scale = tl.load(scale_at, mask=known, other=0.0)
    return (codes.to(tl.float32) * scale[:, None]).to(dtype)


@triton.jit
def _multiply(
    rows, real, n, x_ptr, w_ptr, scale_ptr, K: tl.constexpr, N: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GATED: tl.constexpr, EVEN: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Rows of x with rows n of an expert's W (gated: and rows N + n): [M, N] float32, twice. WIDE:
    inputs that share a scale with TALL rows, 0 where W is plain."""
    dtype = x_ptr.dtype.element_ty
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    up = acc
    lane = tl.arange(0, BLOCK_K)
    x_rows = x_ptr + rows.to(tl.int64)[:, None] * K + lane[None, :]
    w_rows = w_ptr + n.to(tl.int64)[:, None] * K + lane[None, :]
    up_rows = w_rows + N * K
    for k in range(0, K, BLOCK_K):
        x_mask, w_mask = real[:, None], (n < N)[:, None]
        if not EVEN:
            inside = (k + lane < K)[None, :]
            x_mask, w_mask = x_mask & inside, w_mask & inside
        x = tl.load(x_rows + k, mask=x_mask, other=0.0)
        w = _load_weights(w_rows + k, w_mask, EVEN)
        if WIDE:
            w = _in_numbers(w, scale_ptr, n, n < N, k, K, dtype, TALL, WIDE)
        acc = tl.dot(x, tl.trans(w), acc, input_precision="ieee")
        if GATED:
            w = _load_weights(up_rows + k, w_mask, EVEN)
            if WIDE:
                w = _in_numbers(w, scale_ptr, N + n, n < N, k, K, dtype, TALL, WIDE)
            up = tl.dot(x, tl.trans(w), up, input_precision="ieee")
    return acc, up


@triton.jit
def _tile(
    pairs, real, n, expert, x_ptr, x_scale_ptr, w_ptr, scale_ptr, zero_ptr, inputs_ptr, index_ptr,
    bias_ptr, weights_ptr, out_ptr, out_scale_ptr, tokens, K: tl.constexpr, N: tl.constexpr,
    TOP_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GATED: tl.constexpr, EVEN: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
    COLUMNS: tl.constexpr, ORDERS: tl.constexpr, PACKED: tl.constexpr, FP8_MOST: tl.constexpr,
    TILED: tl.constexpr, WEIGHED: tl.constexpr,
    KIND: tl.constexpr, ALPHA: tl.constexpr, LIMIT: tl.constexpr,
):  # fmt: skip
    """One expert's product for these pairs [M], written for each. WEIGHED: times their weights,
    which is the same as of its inputs. out_scale_ptr: where results are written in fp8, those of a
    tile with one scale."""
    own = expert.to(tl.int64) * N
    if GATED:
        own = own * 2
    rows = pairs // TOP_K if GATED else pairs
    scales = scale_ptr
    if WIDE:
        height = 2 * N if GATED else N
        scales += expert.to(tl.int64) * tl.cdiv(height, TALL) * COLUMNS
    if PACKED == 3:
        result, up = multiply_fp4(
            rows, real, n, x_ptr, w_ptr + own * (K // 8), scales, K, N, BLOCK_M, BLOCK_N, BLOCK_K,
            GATED,
        )  # fmt: skip
    elif PACKED == 5:
        result, up = multiply_fp4_codes(
            rows, real, n, x_ptr, x_scale_ptr, w_ptr + own * (K // 8), scales, K, N, BLOCK_M,
            BLOCK_N, BLOCK_K, GATED, TILED,
        )  # fmt: skip
    elif PACKED == 4:
        result, up = multiply_fp8(
            rows, real, n, x_ptr, x_scale_ptr, w_ptr + own * K, scales, K, N, BLOCK_M, BLOCK_N,
            BLOCK_K, GATED, TALL, WIDE,
        )  # fmt: skip
    elif PACKED > 0:
        zeros, inputs, index = zero_ptr, inputs_ptr, index_ptr
        if zero_ptr is not None:
            zeros += own // 2 * COLUMNS
        if inputs_ptr is not None:
            inputs += expert.to(tl.int64) * (ORDERS * K)
        if index_ptr is not None:
            index += expert.to(tl.int64) * (ORDERS * K)
        result, up = multiply_packed(
            rows, real, n, x_ptr, w_ptr + own * (K // 2), scales, zeros, inputs, index, K, N,
            BLOCK_M, BLOCK_N, BLOCK_K, GATED, WIDE, COLUMNS, ORDERS, PACKED == 2,
        )  # fmt: skip
    else:
        result, up = _multiply(
            rows, real, n, x_ptr, w_ptr + own * K, scales, K, N, BLOCK_M, BLOCK_N, BLOCK_K, GATED,
            EVEN, TALL, WIDE,
        )  # fmt: skip
    if GATED and WEIGHED:
        weights = tl.load(weights_ptr + pairs, mask=real, other=0.0)[:, None]
        result, up = result * weights, up * weights
    if bias_ptr is not None:
        result += tl.load(bias_ptr + own + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    if GATED:
        # Activations that are written in fp8 were bfloat16 (`_packing`).
        dtype = out_ptr.dtype.element_ty if out_scale_ptr is None else tl.bfloat16
        if bias_ptr is not None:
            up += tl.load(bias_ptr + own + N + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
        gate = result.to(dtype).to(tl.float32)  # rounded as the separate operations round
        result = gated(gate, up.to(dtype).to(tl.float32), dtype, KIND, ALPHA, LIMIT)
        at = pairs.to(tl.int64)
        if out_scale_ptr is not None:
            known = tl.where((n < N)[None, :], result.to(dtype).to(tl.float32), 0.0)
            result, scales = scaled_codes(known, FP8_MOST, out_ptr.dtype.element_ty)
            group = tl.min(n, axis=0) // BLOCK_N
            tl.store(out_scale_ptr + at * tl.cdiv(N, BLOCK_N) + group, scales, mask=real)
    else:
        if WEIGHED:
            result *= tl.load(weights_ptr + pairs, mask=real, other=0.0)[:, None]
        at = (pairs % TOP_K).to(tl.int64) * tokens + pairs // TOP_K
    out_at = out_ptr + at[:, None] * N + n[None, :]
    tl.store(out_at, result.to(out_ptr.dtype.element_ty), mask=real[:, None] & (n < N)[None, :])


@triton.jit(do_not_specialize=["tokens"])
def _experts_kernel(
    x_ptr, x_scale_ptr, w_ptr, scale_ptr, zero_ptr, inputs_ptr, index_ptr, bias_ptr, chosen_ptr,
    weights_ptr, order_ptr, counts_ptr, out_ptr, out_scale_ptr, tokens,
    K: tl.constexpr, N: tl.constexpr,
    PROGRAMS: tl.constexpr, EXPERTS: tl.constexpr, EXPERTS_PADDED: tl.constexpr,
    TOP_K: tl.constexpr, SEARCH: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GATED: tl.constexpr, EVEN: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
    COLUMNS: tl.constexpr, ORDERS: tl.constexpr, PACKED: tl.constexpr, FP8_MOST: tl.constexpr,
    TILED: tl.constexpr, DIES: tl.constexpr, WEIGHED: tl.constexpr,
    KIND: tl.constexpr, ALPHA: tl.constexpr, LIMIT: tl.constexpr,
):  # fmt: skip
    """GATED: x [T, K], W [E, 2·N, K] → [P, N]; else x [P, K], W [E, N, K] → [k, T, N]; one
    of the two is WEIGHED. x_scale_ptr, out_scale_ptr: where x and the result are of codes
    (fp8_experts.py), whose largest is FP8_MOST. TALL, WIDE: outputs and inputs that share a scale;
    COLUMNS: scales of a row; inputs_ptr, index_ptr, ORDERS: see packed_experts.py. PACKED: see
    `Packing`.
    """
    count = tokens * TOP_K
    # Neighbours share rows of x, and an expert's matrix stays in the cache from tile to tile.
    n = row_tile(0, DIES) * BLOCK_N + tl.arange(0, BLOCK_N)
    if PROGRAMS == 2:
        expert, first, end = tile_of_order(
            counts_ptr, row_tile(1, DIES), EXPERTS, EXPERTS_PADDED, BLOCK_M
        )
        if expert < EXPERTS:
            at = first + tl.arange(0, BLOCK_M)
            real = at < end
            pairs = tl.load(order_ptr + at, mask=real, other=0)
            _tile(
                pairs, real, n, expert, x_ptr, x_scale_ptr, w_ptr, scale_ptr, zero_ptr, inputs_ptr,
                index_ptr, bias_ptr, weights_ptr, out_ptr, out_scale_ptr, tokens, K, N, TOP_K,
                BLOCK_M, BLOCK_N, BLOCK_K, GATED, EVEN, TALL, WIDE, COLUMNS, ORDERS, PACKED,
                FP8_MOST, TILED, WEIGHED, KIND, ALPHA, LIMIT,
            )  # fmt: skip
    else:
        expert = tl.program_id(1)
        if PROGRAMS == 0:
            expert = tl.load(chosen_ptr + tl.program_id(1))
        pairs, found = pairs_of_expert(chosen_ptr, expert, 0, count, BLOCK_M, SEARCH)
        if PROGRAMS == 0:
            leader = tl.max(tl.where(tl.arange(0, BLOCK_M) == 0, pairs, 0), axis=0)
            found = tl.where(leader == tl.program_id(1), found, 0)
        for first in range(0, found, BLOCK_M):
            if first > 0:
                pairs, _ = pairs_of_expert(chosen_ptr, expert, first, count, BLOCK_M, SEARCH)
            real = first + tl.arange(0, BLOCK_M) < found
            _tile(
                pairs, real, n, expert, x_ptr, x_scale_ptr, w_ptr, scale_ptr, zero_ptr, inputs_ptr,
                index_ptr, bias_ptr, weights_ptr, out_ptr, out_scale_ptr, tokens, K, N, TOP_K,
                BLOCK_M, BLOCK_N, BLOCK_K, GATED, EVEN, TALL, WIDE, COLUMNS, ORDERS, PACKED,
                FP8_MOST, TILED, WEIGHED, KIND, ALPHA, LIMIT,
            )  # fmt: skip


@triton.jit(do_not_specialize=["tokens"])
def _sum_kernel(
    parts_ptr, shared_ptr, out_ptr, tokens, H, PARTS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Add up one token's parts, and what all tokens went through."""
    row = tl.program_id(0).to(tl.int64) * H
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < H
    total = tl.load(parts_ptr + row + at, mask=inside, other=0.0).to(tl.float32)
    for part in tl.static_range(1, PARTS):
        part_at = parts_ptr + part * tokens.to(tl.int64) * H + row + at
        total += tl.load(part_at, mask=inside, other=0.0).to(tl.float32)
    dtype = out_ptr.dtype.element_ty
    if shared_ptr is not None:
        shared = tl.load(shared_ptr + row + at, mask=inside, other=0.0).to(tl.float32)
        total = total.to(dtype).to(tl.float32) + shared
    tl.store(out_ptr + row + at, total.to(dtype), mask=inside)


def experts(x: torch.Tensor, w: ExpertsWeight, routed: Routed) -> torch.Tensor:
    return _sum(expert_parts(x, w, routed), None, x.dtype)


def add_experts(
    stream: Stream,
    x: torch.Tensor,
    w: ExpertsWeight,
    routed: Routed,
    shared: torch.Tensor | None,
) -> Stream:
    parts = expert_parts(x, w, routed)
    if shared is None and parts.dtype is torch.float32 and x.shape[0] <= _PARTS_TOKENS:
        return Stream(stream.residual, parts, Pending.PARTS)
    return stream.plus(_sum(parts, shared, x.dtype))


def _sum(parts: torch.Tensor, shared: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    chosen, tokens, hidden = parts.shape
    out = torch.empty((tokens, hidden), dtype=dtype, device=parts.device)
    _sum_kernel[(tokens, triton.cdiv(hidden, _SUM_BLOCK))](
        parts, shared, out, tokens, hidden, PARTS=chosen, BLOCK=_SUM_BLOCK,
        num_warps=warps_for(_SUM_BLOCK, 256),
    )  # fmt: skip
    return out


@dataclass(frozen=True, slots=True)
class _Plan:
    """How a step's pairs are divided over programs; tile and order are for both products.
    weighs_inputs: see ExpertsWeight."""

    routed: Routed
    weighs_inputs: bool
    dtype: torch.dtype  # of activations
    programs: Programs
    rows: int  # programs, but for the tiles of a matrix' rows
    tile: ExpertTile
    order: Order | None

    @property
    def search(self) -> int:
        """Ids that a program looks at at a time."""
        return 16 if self.routed.ids.numel() <= 16 else 256


def _plan(w: ExpertsWeight, routed: Routed, tile: ExpertTile, dtype: torch.dtype) -> _Plan:
    pairs, step = routed.ids.numel(), (routed, w.weighs_inputs, dtype)
    if pairs > _SEARCHED_PAIRS:
        order = order_by_expert(routed.ids, w.count)
        return _Plan(*step, Programs.TILE, pairs // tile.block_m + w.count, tile, order)
    if pairs < w.count and not routed.is_partial:  # a pair may be another rank's
        return _Plan(*step, Programs.PAIR, pairs, tile, None)
    return _Plan(*step, Programs.EXPERT, w.count, tile, None)


def expert_parts(
    x: torch.Tensor, w: ExpertsWeight, routed: Routed, tile: ExpertTile | None = None
) -> torch.Tensor:
    """[k, T, H] that add up to the result: float32, or of many tokens x's dtype."""
    tokens, chosen = routed.ids.shape
    tile = tile or expert_tile(w.down, routed.ids.numel(), x.element_size())
    plan = _plan(w, routed, tile, x.dtype)
    active = _active(w.down, plan, x.device)
    _launch(_Activations(x), _multiplied(w.gate_up, plan), active, plan, gating(w.activation))
    wide = torch.float32 if tokens <= _PARTS_TOKENS else x.dtype
    make = torch.zeros if routed.is_partial else torch.empty  # pairs of other ranks write nothing
    parts = make((chosen, tokens, w.down.outputs), dtype=wide, device=x.device)
    _launch(active, _multiplied(w.down, plan), _Activations(parts), plan, None)
    return parts


@dataclass(frozen=True, slots=True)
class _Activations:
    """What a stack is multiplied with or gives: numbers, or codes with the scales of their groups,
    [rows, groups] float32."""

    data: torch.Tensor
    scales: torch.Tensor | None = None


def _active(down: LinearWeight, plan: _Plan, device: torch.device) -> _Activations:
    """Room for what gates and ups give: codes at once where a tile of them is a group."""
    tile, pairs, inner = plan.tile, plan.routed.ids.numel(), down.inputs
    in_codes = _packing(plan.dtype, down) is Packing.FP8
    if not in_codes or tile.block_n != _block_k(down, tile):
        return _Activations(torch.empty((pairs, inner), dtype=plan.dtype, device=device))
    codes = torch.empty((pairs, inner), dtype=down.data.dtype, device=device)
    groups = triton.cdiv(inner, tile.block_n)
    return _Activations(codes, torch.empty((pairs, groups), dtype=torch.float32, device=device))


def _multiplied(w: LinearWeight, plan: _Plan) -> LinearWeight:
    """The stack that is multiplied with: a plain one for a moment, where codes are slower."""
    rows = plan.routed.ids.numel() / w.data.shape[0]
    ordered = w.format is WeightFormat.INT4_ORDERED  # by expert, which no plain kernel reads by
    coded = w.format is WeightFormat.PLAIN or ordered or rows < EXPANDED_ROWS
    if coded or _packing(plan.dtype, w) is Packing.FP8:
        return w
    assert w.scales is not None
    return expand_codes(w, w.scales.dtype)


def _launch(
    x: _Activations,
    w: LinearWeight,
    out: _Activations,
    plan: _Plan,
    activation: dict[str, float] | None,
) -> None:
    routed, tile, order, scales = plan.routed, plan.tile, plan.order, w.scales
    tokens, chosen = routed.ids.shape
    count, columns, inner = w.data.shape[0], out.data.shape[-1], w.inputs
    tall, wide = (1, 0) if scales is None else scales.block
    inputs, index = (None, None) if scales is None else orders(scales)
    block_k, packing = _block_k(w, tile), _packing(plan.dtype, w)
    data, scale = _as_read(w, packing)
    if packing is Packing.FP8 and x.scales is None:
        x = _Activations(*quantise_groups(x.data, w.data.dtype, block_k))
    elif packing is Packing.FP4_CODES:
        x = _Activations(*twin_codes(x.data))
    column_tiles, codes = triton.cdiv(columns, tile.block_n), out.scales is not None
    _experts_kernel[(column_tiles, plan.rows)](
        x.data, x.scales, data, scale, scales and scales.zero, inputs, index,
        w.bias,
        routed.ids, routed.weights, order and order.pairs, order and order.counts,
        out.data, out.scales, tokens, K=inner, N=columns,
        PROGRAMS=int(plan.programs), EXPERTS=count, EXPERTS_PADDED=next_power_of_2(count),
        TOP_K=chosen, SEARCH=plan.search,
        BLOCK_M=tile.block_m, BLOCK_N=tile.block_n, BLOCK_K=block_k,
        GATED=activation is not None, TALL=tall, WIDE=wide,
        COLUMNS=0 if scale is None else scale.shape[-1],
        ORDERS=0 if inputs is None else inputs.shape[-2],
        PACKED=int(packing), FP8_MOST=fp8_limit(out.data.dtype) if codes else 0.0,
        TILED=scales is not None and scales.tiled,
        WEIGHED=(activation is not None) == plan.weighs_inputs,
        # Only tiles of sorted pairs read an expert's matrix more than once.
        DIES=row_dies(x.data.device, column_tiles) if plan.programs is Programs.TILE else 1,
        EVEN=columns % tile.block_n == 0 and inner % block_k == 0,
        **(activation or {"KIND": 0, "ALPHA": 1.0, "LIMIT": 0.0}),
        num_warps=tile.num_warps, num_stages=tile.num_stages,
        **({"maxnreg": tile.registers} if tile.registers else {}),
    )  # fmt: skip


def _as_read(w: LinearWeight, packing: Packing) -> tuple[torch.Tensor, torch.Tensor | None]:
    """A matrix' data and scales, by what a kernel reads at once."""
    scale = None if w.scales is None else w.scales.scale
    if packing not in (Packing.FP4_WORDS, Packing.FP4_CODES) or scale is None:
        return w.data, scale
    pairs = packing is Packing.FP4_CODES
    return w.data.view(torch.int32), scale.view(torch.int16) if pairs else scale


def _packing(dtype: torch.dtype, w: LinearWeight) -> Packing:
    """How w is read where it is multiplied with activations of dtype."""
    in_words = dtype is torch.bfloat16
    if w.format is WeightFormat.MXFP4:
        if multiplies_codes(w):
            return Packing.FP4_CODES
        return Packing.FP4_WORDS if in_words else Packing.FP4
    if w.format in INT4_FORMATS:
        return Packing.INT4
    if w.format not in (WeightFormat.FP8, WeightFormat.FP8_BLOCKS) or not in_words:
        return Packing.NONE
    assert w.scales is not None
    wide = w.scales.block[1]
    narrow = w.format is WeightFormat.FP8_BLOCKS and wide % _FP8_INPUTS
    return Packing.NONE if narrow else Packing.FP8


def _block_k(w: LinearWeight, tile: ExpertTile) -> int:
    """Inputs of a tile: that share a scale, or in whole groups where two share a byte."""
    if w.format not in (WeightFormat.FP8_BLOCKS, *INT4_FORMATS, WeightFormat.MXFP4):
        return tile.block_k
    assert w.scales is not None
    wide = w.scales.block[1]
    if w.format is not WeightFormat.FP8_BLOCKS and tile.block_k % wide == 0:
        return tile.block_k
    return math.gcd(tile.block_k, wide)
