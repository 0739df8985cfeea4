# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Experts: a product of each token with the w13 (gate_up_proj) of its chosen experts, and one with
their w2 (down_proj). For experts without a gate, w13 is w1 alone.

A pair is a token and one of its experts. Pairs of few tokens are not sorted: each program goes
through all of their ids and picks its expert's, which costs less than a launch. If there are fewer
pairs than experts, programs belong to pairs, and the first pair of an expert computes for the
others. Pairs of many tokens are sorted by expert (sort_by_expert.py), as are those whose tokens are
quantised by a launch anyway, and tiles of rows find their expert in the counts.

Experts of four bits are converted tile by tile to the activations' dtype (grouped_int4.py,
grouped_mxfp4.py), or to fp8 if activations are in two fp8 terms (mxfp4_hi_lo.py); experts of eight
bits are converted if activations are not multiplied in fp8 (grouped_fp8.py).

w2's results are one part per choice, [k, T, H], weighted; the next norm adds them up while it reads
them (norms.norm), or `_sum_kernel` does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from atom.model_ops.activations import ClampedSwiGLU, Gating
from atom.model_ops.backends.triton_ops.activation import gate_constants
from atom.model_ops.backends.triton_ops.gemm.dequantise_matrix import dequantise
from atom.model_ops.backends.triton_ops.gemm.linear import prepare_linear
from atom.model_ops.backends.triton_ops.gemm.packed_bytes_gemm import orders
from atom.model_ops.backends.triton_ops.launch import warps_for
from atom.model_ops.backends.triton_ops.moe.grouped_kernel import (
    Packing,
    Programs,
    searched_gemm_kernel,
    sorted_gemm_kernel,
)
from atom.model_ops.backends.triton_ops.moe.grouped_tiles import (
    ExpertTile,
    dequantised_rows,
    expert_tile,
)
from atom.model_ops.backends.triton_ops.moe.sort_and_quantise import sort_and_split
from atom.model_ops.backends.triton_ops.moe.sort_by_expert import Order, order_by_expert
from atom.model_ops.backends.triton_ops.nvidia.fp8_hi_lo import (
    empty_hi_lo,
    split_activations,
    takes_hi_lo,
)
from atom.model_ops.backends.triton_ops.nvidia.tma_tiles import (
    has_tma,
    row_descriptor,
    stack_descriptor,
)
from atom.model_ops.backends.triton_ops.quantise_activations import quantise_groups
from atom.model_ops.backends.triton_ops.xcd_order import row_dies
from atom.model_ops.quantised.mxfp4_interleaved import interleaved
from atom.model_ops.routing import Routed
from atom.model_ops.values import (
    INT4_FORMATS,
    ExpertsWeight,
    LinearWeight,
    Pending,
    Stream,
    WeightFormat,
)

# Tokens from which pairs are sorted; with fewer, programs look for their own, which costs less than
# a launch.
_SORTED_TOKENS = 64
# Up to this many tokens the next norm computes the sum, from parts in float32.
_PARTS_TOKENS = 256
_SUM_BLOCK = 1024
# The fp8 inputs that the tensor core multiplies at once, which share a scale.
_FP8_INPUTS = 32


@triton.jit(do_not_specialize=["tokens"])
def _sum_kernel(
    parts_ptr, shared_ptr, out_ptr, tokens, H, PARTS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Add up one token's parts, and the shared expert's result."""
    row = tl.program_id(0).to(tl.int64) * H
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < H
    # Choices in their order, in float32.
    total = tl.load(parts_ptr + row + at, mask=inside, other=0.0).to(tl.float32)
    for part in tl.static_range(1, PARTS):
        part_at = parts_ptr + part * tokens.to(tl.int64) * H + row + at
        total += tl.load(part_at, mask=inside, other=0.0).to(tl.float32)
    dtype = out_ptr.dtype.element_ty
    if shared_ptr is not None:
        shared = tl.load(shared_ptr + row + at, mask=inside, other=0.0).to(tl.float32)
        total = total.to(dtype).to(tl.float32) + shared
    tl.store(out_ptr + row + at, total.to(dtype), mask=inside)


def prepare_experts(w: LinearWeight) -> LinearWeight:
    w = prepare_linear(w)
    return interleaved(w) if takes_hi_lo(w) else w


def experts(x: torch.Tensor, w: ExpertsWeight, routed: Routed) -> torch.Tensor:
    return sum_choices(expert_parts(x, w, routed), x.dtype)


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
    return stream.plus(sum_choices(parts, x.dtype, shared))


def sum_choices(
    parts: torch.Tensor, dtype: torch.dtype, shared: torch.Tensor | None = None
) -> torch.Tensor:
    """Add up each token's parts [k, T, H] in order, and the shared expert's result [T, H]."""
    chosen, tokens, hidden = parts.shape
    out = torch.empty((tokens, hidden), dtype=dtype, device=parts.device)
    _sum_kernel[(tokens, triton.cdiv(hidden, _SUM_BLOCK))](
        parts, shared, out, tokens, hidden, PARTS=chosen, BLOCK=_SUM_BLOCK,
        num_warps=warps_for(_SUM_BLOCK, 256),
    )  # fmt: skip
    return out


@dataclass(frozen=True, slots=True)
class _Plan:
    """The division of a step's pairs over programs; tile and order are for both products.
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
        """Return the number of ids that a program reads at a time."""
        return 16 if self.routed.ids.numel() <= 16 else 256


def expert_parts(
    x: torch.Tensor, w: ExpertsWeight, routed: Routed, tile: ExpertTile | None = None
) -> torch.Tensor:
    """Compute [k, T, H] parts that add up to the result: float32, or with many tokens x's dtype."""
    tile = tile or expert_tile(w.down, routed.ids.numel(), x.element_size())
    plan, given = _planned(x, w, routed, tile)
    wide = torch.float32 if x.shape[0] <= _PARTS_TOKENS else x.dtype
    return _multiply(given, w, plan, wide)


def sorted_expert_parts(
    x: torch.Tensor, w: ExpertsWeight, routed: Routed, tile: ExpertTile
) -> torch.Tensor:
    """Compute `expert_parts` of plain stacks, in float32, with sorted pairs and this tile for any
    number of tokens."""
    order = order_by_expert(routed.ids, w.count)
    rows = routed.ids.numel() // tile.block_m + w.count
    plan = _Plan(routed, w.weighs_inputs, x.dtype, Programs.TILE, rows, tile, order)
    return _multiply(_Activations(x), w, plan, torch.float32)


def _multiply(
    given: _Activations, w: ExpertsWeight, plan: _Plan, dtype: torch.dtype
) -> torch.Tensor:
    """Give both products' parts [k, T, H] in a dtype."""
    routed, device = plan.routed, given.data.device
    tokens, chosen = routed.ids.shape
    active = _active(w, plan, device)
    _launch(given, _multiplied(w.gate_up, plan), active, plan, w.activation)
    make = torch.zeros if routed.is_partial else torch.empty  # pairs of other ranks do not write
    parts = make((chosen, tokens, w.down.outputs), dtype=dtype, device=device)
    _launch(active, _multiplied(w.down, plan), _Activations(parts), plan, None)
    return parts


def multiply_rows(x: torch.Tensor, w: LinearWeight, ids: torch.Tensor) -> torch.Tensor:
    """Multiply each row of x [P, K] with the matrix that its id [P] names → [P, N] in x's dtype:
    the second product of as many tokens with one choice each, without weights."""
    pairs, count = len(x), w.data.shape[0]
    tile = expert_tile(w, pairs, x.element_size())
    routed = Routed(ids[:, None], ids[:, None], is_partial=True)
    plan = _Plan(routed, True, x.dtype, Programs.EXPERT, count, tile, None)
    if pairs >= _SORTED_TOKENS:
        order = order_by_expert(routed.ids, count)
        rows = pairs // tile.block_m + count
        plan = replace(plan, programs=Programs.TILE, rows=rows, order=order)
        x = x[order.pairs.clamp(0, pairs - 1)]
    out = torch.zeros((1, pairs, w.outputs), dtype=x.dtype, device=x.device)
    _launch(_Activations(x.contiguous()), _multiplied(w, plan), _Activations(out), plan, None)
    return out[0]


@dataclass(frozen=True, slots=True)
class _Activations:
    """The activations that a stack is multiplied with, or its results: numbers, or codes with the
    scales of their groups, [rows, groups] float32."""

    data: torch.Tensor
    scales: torch.Tensor | None = None


def _planned(
    x: torch.Tensor, w: ExpertsWeight, routed: Routed, tile: ExpertTile
) -> tuple[_Plan, _Activations]:
    """Return the division, and the activations as w13's inputs."""
    pairs = routed.ids.numel()
    plan = _Plan(routed, w.weighs_inputs, x.dtype, Programs.EXPERT, w.count, tile, None)
    is_coded = _kind(w.gate_up, plan) is Packing.MXFP4_HI_LO  # by a launch that sorts as well
    if is_coded or routed.ids.shape[0] >= _SORTED_TOKENS:
        plan = replace(plan, programs=Programs.TILE, rows=pairs // tile.block_m + w.count)
        if is_coded:
            codes, scales, order = sort_and_split(x, routed.ids, w.count)
            return replace(plan, order=order), _Activations(codes, scales)
        return replace(plan, order=order_by_expert(routed.ids, w.count)), _Activations(x)
    if pairs < w.count and not routed.is_partial:  # a pair may be another rank's
        plan = replace(plan, programs=Programs.PAIR, rows=pairs)
    return plan, _Activations(x)


def _active(w: ExpertsWeight, plan: _Plan, device: torch.device) -> _Activations:
    """Allocate w13's results: quantised at once if a tile is a group, and as hi/lo terms if the
    activation's limit is a scale for all."""
    down, tile, pairs = w.down, plan.tile, plan.routed.ids.numel()
    inner, kind = down.inputs, _kind(down, plan)
    if kind is Packing.MXFP4_HI_LO and isinstance(w.activation, ClampedSwiGLU):
        return _Activations(*empty_hi_lo(pairs, inner, device))
    if kind is not Packing.FP8 or tile.block_n != _block_k(down, tile):
        return _Activations(torch.empty((pairs, inner), dtype=plan.dtype, device=device))
    codes = torch.empty((pairs, inner), dtype=down.data.dtype, device=device)
    groups = triton.cdiv(inner, tile.block_n)
    return _Activations(codes, torch.empty((pairs, groups), dtype=torch.float32, device=device))


def _dequantises(w: LinearWeight, plan: _Plan) -> bool:
    """Return whether the stack is temporarily dequantised, because quantised weights are slower."""
    rows = plan.routed.ids.numel() / w.data.shape[0]
    # Inputs in another order are ordered by expert, which no plain kernel reads by.
    kept = w.format in (WeightFormat.PLAIN, WeightFormat.INT4_ORDERED) or rows < dequantised_rows(w)
    return not kept and _packing(plan.dtype, w) is not Packing.FP8


def _kind(w: LinearWeight, plan: _Plan) -> Packing:
    return Packing.NONE if _dequantises(w, plan) else _packing(plan.dtype, w)


def _multiplied(w: LinearWeight, plan: _Plan) -> LinearWeight:
    if not _dequantises(w, plan):
        return w
    assert w.scales is not None
    return dequantise(w, w.scales.dtype)


def _launch(
    x: _Activations,
    w: LinearWeight,
    out: _Activations,
    plan: _Plan,
    activation: Gating | None,
) -> None:
    routed, tile, order, scales = plan.routed, plan.tile, plan.order, w.scales
    tokens, chosen = routed.ids.shape
    matrices = 2 if activation is not None and activation.has_gate else 1
    count, columns, inner = w.data.shape[0], w.outputs // matrices, w.inputs
    tall, wide = (1, 0) if scales is None else scales.block
    inputs, index = (None, None) if scales is None else orders(scales)
    block_k, packing = _block_k(w, tile), _packing(plan.dtype, w)
    data, scale = _as_read(w, packing)
    if packing is Packing.FP8 and x.scales is None:
        x = _Activations(*quantise_groups(x.data, w.data.dtype, block_k))
    elif packing is Packing.MXFP4_HI_LO and x.scales is None:
        x = _Activations(*split_activations(x.data))
    block_n = tile.block_n * (2 if activation is None and tile.wide_w2 else 1)
    column_tiles, codes = triton.cdiv(columns, block_n), out.scales is not None
    own_tile = replace(tile, block_n=block_n, block_k=block_k)
    stack = data, scale, scales and scales.zero, inputs, index, w.bias
    constants = {
        "K": inner, "N": columns, "TOP_K": chosen, "BLOCK_M": tile.block_m, "BLOCK_N": block_n,
        "BLOCK_K": block_k, "TALL": tall, "WIDE": wide,
        "COLUMNS": 0 if scale is None else scale.shape[-1],
        "ORDERS": 0 if inputs is None else inputs.shape[-2], "PACKED": int(packing),
        "HIP": torch.version.hip is not None,
        "WEIGHED": (activation is not None) == plan.weighs_inputs,
        "num_warps": tile.num_warps, "num_stages": tile.num_stages,
        **({"maxnreg": tile.registers} if tile.registers else {}),
    }  # fmt: skip
    gate = None if activation is None else gate_constants(activation)
    grid = (column_tiles, plan.rows)
    if order is None:
        searched_gemm_kernel[grid](
            (x.data, x.scales), stack, (routed.ids, routed.weights), (out.data, out.scales),
            tokens, gate, PROGRAMS=int(plan.programs), SEARCH=plan.search, **constants,
        )  # fmt: skip
        return
    sorted_gemm_kernel[grid](
        (x.data, x.scales), stack, (routed.weights, order.pairs, order.counts),
        (out.data, out.scales),
        *_descriptors(x.data, data, own_tile, matrices, in_order=activation is None),
        tokens, gate, EXPERTS=count, HI_LO=codes and out.data.shape[-1] > columns,
        # Only tiles of sorted pairs read an expert's matrix more than once.
        DIES=row_dies(x.data.device, column_tiles), **constants,
    )  # fmt: skip


def _descriptors(
    x: torch.Tensor, w: torch.Tensor, tile: ExpertTile, matrices: int, *, in_order: bool
) -> tuple[TensorDescriptor | None, TensorDescriptor | None]:
    """Make TMA descriptors: of x if its rows are pairs in order, and of w, with one or two
    matrices."""
    if not tile.by_tma or not has_tma(w.device, w.shape[-1] * w.element_size()):
        return None, None
    w_desc = stack_descriptor(w, matrices, tile.block_n, tile.block_k)
    return row_descriptor(x, tile.block_m, tile.block_k) if in_order else None, w_desc


def _as_read(w: LinearWeight, packing: Packing) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return a matrix' data and scales in the units that a kernel reads at once."""
    scale = None if w.scales is None else w.scales.scale
    if packing not in (Packing.MXFP4_INT32, Packing.MXFP4_HI_LO) or scale is None:
        return w.data, scale
    in_fours = packing is Packing.MXFP4_HI_LO
    return w.data.view(torch.int32), scale.view(torch.int32) if in_fours else scale


def _packing(dtype: torch.dtype, w: LinearWeight) -> Packing:
    """Return the packing in which w is read for a product with activations of dtype."""
    in_words = dtype is torch.bfloat16
    if w.format is WeightFormat.MXFP4_INTERLEAVED:
        return Packing.MXFP4_HI_LO
    if w.format is WeightFormat.MXFP4:
        return Packing.MXFP4_INT32 if in_words else Packing.MXFP4_BYTES
    if w.format in INT4_FORMATS:
        return Packing.INT4
    if w.format not in (WeightFormat.FP8, WeightFormat.FP8_BLOCKS) or not in_words:
        return Packing.NONE
    assert w.scales is not None
    wide = w.scales.block[1]
    narrow = w.format is WeightFormat.FP8_BLOCKS and wide % _FP8_INPUTS
    return Packing.NONE if narrow else Packing.FP8


def _block_k(w: LinearWeight, tile: ExpertTile) -> int:
    """Return the inputs of a tile: those that share a scale, or whole groups if two inputs share a
    byte."""
    if w.format not in (WeightFormat.FP8_BLOCKS, *INT4_FORMATS, WeightFormat.MXFP4):
        return tile.block_k
    assert w.scales is not None
    wide = w.scales.block[1]
    if w.format is not WeightFormat.FP8_BLOCKS and tile.block_k % wide == 0:
        return tile.block_k
    return math.gcd(tile.block_k, wide)
