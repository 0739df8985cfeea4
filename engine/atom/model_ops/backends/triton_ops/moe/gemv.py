"""Experts of few tokens, of which hardly two share an expert: two launches, from logits to the sum.

The time goes into reading the experts' matrices, so the whole card must read at once. Programs take
a few rows of one matrix, several programs to a multiprocessor, and multiply without the tensor core
(gemv_rows.py). W13 begins with the choice of experts: a program finds its expert in the token's
logits, which costs less than a launch and a path through memory, and one more program writes the
choice for w2. A shared expert's rows are further programs of the same launch. A program of w2 goes
through all of its token's experts, so its sum is complete, and the next norm may begin the next
product.

Matrices are plain, in MXFP4 (experts' alone) or in 8 bits (gemm/w8a16_rows.py). For 8 bits a
program of w13 is one warp, which holds the choice and the token without communication.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton

from atom.model_ops.backends.triton_ops.activation import gating
from atom.model_ops.backends.triton_ops.gemm.quantised_tiles import scale_constants
from atom.model_ops.backends.triton_ops.gemm.w8a16_rows import LANE, WAVE, unrolled
from atom.model_ops.backends.triton_ops.launch import compute_units, next_power_of_2
from atom.model_ops.backends.triton_ops.moe.gemv_kernels import (
    w2_kernel,
    w13_8bit_kernel,
    w13_kernel,
)
from atom.model_ops.quantised.mxfp4_interleaved import ROWS_TOGETHER
from atom.model_ops.routing import Routed, Routing, Scoring
from atom.model_ops.values import (
    EIGHT_BITS,
    FP4_FORMATS,
    ExpertsWeight,
    LinearWeight,
    MoEWeight,
    WeightFormat,
)

# Of a multiprocessor, so that memory never waits for one of them.
_PROGRAMS = 2
_W13_ROWS = 16  # of w1, and as many of w3, at most
_W2_ROWS = 4
_MXFP4_W2_ROWS = 8  # of a quarter of the bytes each
# Of 8-bit weights, w13 of one warp; half as many of w2 where more than two turns
# are read at once.
_W13_ROWS_8BIT, _W2_ROWS_8BIT = 4, 4
# Of w13: enough to keep a multiprocessor busy without concurrent turns.
_MANY_PROGRAMS = 16
# Experts that programs choose among themselves.
_CHOSEN_AMONG = 256


def takes(w: MoEWeight, tokens: int) -> bool:
    """Return whether there is one token, or so few that hardly two choose one expert, and whether
    the kernels support the matrices."""
    return (tokens == 1 or 4 * tokens * w.routing.top_k <= w.experts.count) and multiplies(w)


def multiplies(w: MoEWeight) -> bool:
    """Return whether the kernels support the matrices: with a gate, plain, in 8 bits whose scales a
    program's rows share, or the experts' in MXFP4."""
    alone = chooses(w.routing, w.experts.count) and not w.routing.renormalize
    if not w.experts.activation.has_gate:
        return False
    if w.experts.weighs_inputs and not alone:  # a program knows its own expert's score
        return False
    pairs = [[w.experts.gate_up], [w.experts.down]]  # of one launch each
    if w.shared is not None:
        if w.shared.gate is not None or w.shared.activation != w.experts.activation:
            return False
        pairs[0].append(w.shared.gate_up)
        pairs[1].append(w.shared.down)
    formats = {each.format for pair in pairs for each in pair}
    if formats <= set(FP4_FORMATS):
        return w.shared is None
    if len(formats) > 1 or not formats <= {WeightFormat.PLAIN, *EIGHT_BITS}:
        return False
    alike = all(_scales_8bit(pair[0]) == _scales_8bit(pair[-1]) for pair in pairs)
    return alike and all(_shares(each) for pair in pairs for each in pair)


def _shares(w: LinearWeight) -> bool:
    """Return whether a program's rows of 8-bit weights share their scales, w1's and w3's
    separately, as a lane's inputs do; True for a scale per output or none."""
    constants = _scales_8bit(w)
    tall, wide = constants["TALL"], constants["WIDE"]
    if not wide:
        return True
    most = max(_W13_ROWS_8BIT, _W2_ROWS_8BIT)
    return tall % most == 0 and w.outputs // 2 % most == 0 and wide % LANE.value == 0


def _scales_8bit(w: LinearWeight) -> dict[str, int]:
    """Return a kernel's TALL and WIDE: 0 for matrices that are not in 8 bits."""
    if w.format not in EIGHT_BITS:
        return {"TALL": 0, "WIDE": 0}
    constants = scale_constants(w)
    return {"TALL": constants["TALL"], "WIDE": constants["WIDE"]}


def planes_of(w: ExpertsWeight) -> int:
    """Return the planes in which the kernels read a token (gemv_rows.py)."""
    return 8 if _is_fp4(w.down) else 1


def chooses(routing: Routing, experts: int) -> bool:
    """Return whether the kernels find experts in the logits themselves."""
    return not routing.is_grouped and experts <= _CHOSEN_AMONG


@dataclass(frozen=True, slots=True)
class GemvTile:
    """rows: of a matrix a program, of w1 and w3 each; block: inputs of a tile, or words; of w2, of
    all of a token's experts together; unroll: turns at once, of 8-bit weights."""

    rows: int
    block: int
    num_warps: int = 4
    unroll: int = 1


def w13_tile(w: MoEWeight, tokens: int, element_bytes: int) -> GemvTile:
    """Choose w13's tile: as many rows as leave enough programs, since each program repeats the
    choice of experts."""
    outputs = w.routing.top_k * w.experts.down.inputs
    outputs += 0 if w.shared is None else w.shared.down.inputs
    if w.experts.gate_up.format in EIGHT_BITS:
        block, rows = WAVE * LANE.value, _rows(_W13_ROWS_8BIT, w, tokens * outputs)
        units = compute_units(w.experts.gate_up.data.device)
        few = tokens * outputs < rows * _MANY_PROGRAMS * units
        turns = unrolled(w.experts.gate_up.inputs, block) if few else 1
        return GemvTile(rows, block, num_warps=1, unroll=turns)
    rows = _rows(_W13_ROWS, w, tokens * outputs)
    if _is_interleaved(w.experts.gate_up):
        rows = max(ROWS_TOGETHER, rows)
    block = 64 if _is_fp4(w.experts.gate_up) else 512 // element_bytes
    return GemvTile(rows, block)


def w2_tile(w: MoEWeight, tokens: int, element_bytes: int) -> GemvTile:
    down, turns = w.experts.down, 1
    most, block = _W2_ROWS, 2048 // element_bytes
    if _is_fp4(down):
        most, block = _MXFP4_W2_ROWS, 512
    elif down.format in EIGHT_BITS:
        most, block = _W2_ROWS_8BIT, 4 * WAVE * LANE.value
        turns = unrolled(down.inputs, _of_expert(block, w))
        most = most // 2 if turns > 2 else most
    return GemvTile(_rows(most, w, tokens * down.outputs), block, unroll=turns)


def _of_expert(block: int, w: MoEWeight) -> int:
    """Return the inputs of each expert in a tile of w2."""
    return max(32, block // next_power_of_2(w.routing.top_k))


def _rows(most: int, w: MoEWeight, outputs: int) -> int:
    least = _PROGRAMS * compute_units(w.experts.down.data.device)
    while most > 1 and outputs < least * most:
        most //= 2
    return most


def moe_gemv(
    x: torch.Tensor, logits: torch.Tensor, w: MoEWeight, routed: Routed | None
) -> torch.Tensor:
    """Compute the sum of each token's experts and of the shared expert: x [T, H], in planes of the
    experts' format; logits [1, T, E], which decide unless `routed` does → [T, H]."""
    tokens, size = x.shape[0], x.element_size()
    active, routed = w13_gemv(x, logits, w, routed, w13_tile(w, tokens, size))
    return w2_gemv(active, w, routed, w2_tile(w, tokens, size))


def w13_gemv(
    x: torch.Tensor, logits: torch.Tensor, w: MoEWeight, routed: Routed | None, tile: GemvTile
) -> tuple[torch.Tensor, Routed]:
    """Compute the experts' activations [T, k · I + S], a shared expert's last, and the choice of
    experts."""
    tokens, top_k, decides = x.shape[0], w.routing.top_k, routed is None
    if routed is None:
        ids = torch.empty((tokens, top_k), dtype=torch.int32, device=x.device)
        routed = Routed(ids, torch.empty_like(ids, dtype=torch.float32))
    stack, routing, experts = w.experts.gate_up, w.routing, w.experts.count
    inner, shared = w.experts.down.inputs, 0 if w.shared is None else w.shared.down.inputs
    out = torch.empty((tokens, top_k * inner + shared), dtype=x.dtype, device=x.device)
    tiles = top_k * triton.cdiv(inner, tile.rows) + triton.cdiv(shared, tile.rows)
    constants = {
        "K": x.shape[1], "N": inner, "SHARED": shared, "CHOOSES": decides, "EXPERTS": experts,
        "TOP_K": top_k, "SIGMOID": routing.scoring is Scoring.SIGMOID,
        "RENORMALIZE": routing.renormalize, "SCALE": routing.scale,
        "WEIGHED": w.experts.weighs_inputs, "ROWS": tile.rows, "BLOCK_K": tile.block,
        **gating(w.experts.activation), "num_warps": tile.num_warps,
    }  # fmt: skip
    kernel: Any = w13_kernel
    if stack.format in EIGHT_BITS:
        kernel, constants = w13_8bit_kernel, constants | _scales_8bit(stack)
        constants["UNROLL"] = tile.unroll
    else:
        constants["INTERLEAVED"] = _is_interleaved(stack)
    router = logits, w.router.matrix.bias, w.router.e_score_correction_bias
    kernel[(1 + tiles, tokens)](
        x, router, (routed.ids, routed.weights), _pointers(stack),
        _pointers(None if w.shared is None else w.shared.gate_up), out, **constants,
    )  # fmt: skip
    return out, routed


def w2_gemv(x: torch.Tensor, w: MoEWeight, routed: Routed, tile: GemvTile) -> torch.Tensor:
    """Compute the weighted sum [T, H] of the results of `w13_gemv`."""
    tokens, top_k = routed.ids.shape
    stack = w.experts.down
    is_fp4, interleaved = _is_fp4(stack), _is_interleaved(stack)
    inner, hidden = stack.inputs, stack.outputs
    out = torch.empty((tokens, hidden), dtype=x.dtype, device=x.device)
    width = inner // 8 if is_fp4 else inner
    w2_kernel[(triton.cdiv(hidden, tile.rows), tokens)](
        x, (routed.ids, routed.weights), _pointers(stack),
        _pointers(None if w.shared is None else w.shared.down), out,
        K=inner, N=hidden, SHARED=x.shape[1] - top_k * inner, TOP_K=top_k, ROWS=tile.rows,
        BLOCK_K=_of_expert(tile.block, w), BLOCK_SHARED=tile.block, INTERLEAVED=interleaved,
        UNROLL=tile.unroll, **_scales_8bit(stack),
        ALIGNED=min(8 if interleaved else 16, width & -width), num_warps=tile.num_warps,
    )  # fmt: skip
    return out


def _is_fp4(w: LinearWeight) -> bool:
    return w.format in FP4_FORMATS


def _is_interleaved(w: LinearWeight) -> bool:
    return w.format is WeightFormat.MXFP4_INTERLEAVED


def _pointers(
    w: LinearWeight | None,
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """Return data, scales and bias of a stack or matrix as kernels take them; MXFP4 as int32
    words."""
    if w is None:
        return None, None, None
    data = w.data.view(torch.int32) if _is_fp4(w) else w.data
    return data, None if w.scales is None else w.scales.scale, w.bias
