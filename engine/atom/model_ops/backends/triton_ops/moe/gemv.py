# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Experts of so few tokens that hardly two share one: two launches, from logits to the sum.

Reading the experts' matrices is all there is to do, so what counts is that all of a card reads at
once. Programs take a few rows of one matrix, several of them a multiprocessor, and multiply without
the tensor core (gemv_rows.py). Gates and ups begin with the choice itself: a program finds its
expert in the token's logits, which costs less than a launch and a way through memory, and one more
writes the choice down for the downs. A shared expert's rows are further programs of the same
launch. A program of downs goes through all of its token's experts, so its sum is complete, and the
next norm may begin the next product.

Matrices are plain, in MXFP4 (experts' alone) or in codes of eight bits (gemm/w8a16_rows.py),
whose programs of gates and ups are a warp each: it holds the choice and the token without a word to
others.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.activation import gated, gating
from atom.model_ops.backends.triton_ops.gemm.quantised_tiles import scale_constants
from atom.model_ops.backends.triton_ops.gemm.w8a16_rows import LANE, WAVE, unrolled, w8a16_rows
from atom.model_ops.backends.triton_ops.launch import compute_units, next_power_of_2
from atom.model_ops.backends.triton_ops.moe.gemv_rows import mxfp4_w13_rows, plain_rows
from atom.model_ops.backends.triton_ops.moe.gemv_w2 import w2_rows
from atom.model_ops.backends.triton_ops.moe.gemv_w2_8bit import w2_rows_8bit
from atom.model_ops.backends.triton_ops.moe.topk_keys import (
    choice_keys,
    expert_of,
    expert_scores,
    nth_choice,
)
from atom.model_ops.backends.triton_ops.mxfp4_layout import exponents_of
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
_W13_ROWS = 16  # of gates, and as many of ups, at most
_W2_ROWS = 4
_MXFP4_W2_ROWS = 8  # of a quarter of the bytes each
# Of codes of eight bits, gates and ups of one warp; half as many downs where more than two turns
# are read at once.
_W13_ROWS_8BIT, _W2_ROWS_8BIT = 4, 4
# Of gates and ups: so many that a multiprocessor is busy with them without turns at once.
_MANY_PROGRAMS = 16
# Experts that programs choose among themselves.
_CHOSEN_AMONG = 256


@triton.jit
def _write_choice(
    logits_ptr, router_bias_ptr, score_bias_ptr, chosen_ptr, weights_ptr,
    EXPERTS: tl.constexpr, PADDED: tl.constexpr, TOP_K: tl.constexpr, TOP_K_PADDED: tl.constexpr,
    SIGMOID: tl.constexpr, RENORMALIZE: tl.constexpr, SCALE: tl.constexpr, WEIGHED: tl.constexpr,
):  # fmt: skip
    """WEIGHED: results are not, since inputs were."""
    scores = expert_scores(logits_ptr, router_bias_ptr, EXPERTS, PADDED, SIGMOID)
    keys = choice_keys(scores, score_bias_ptr, EXPERTS, PADDED)
    choice = tl.arange(0, TOP_K_PADDED)
    ids = tl.zeros([TOP_K_PADDED], tl.int32)
    weights = tl.zeros([TOP_K_PADDED], tl.float32)
    for number in tl.static_range(TOP_K):
        best = tl.max(keys, axis=0)
        weight = tl.sum(tl.where(keys == best, scores, 0.0), axis=0)
        ids = tl.where(choice == number, expert_of(best, PADDED), ids)
        weights = tl.where(choice == number, weight, weights)
        keys = tl.where(keys == best, -1, keys)
    if RENORMALIZE:
        weights = weights / (tl.sum(weights, axis=0) + 1e-20)
    tl.store(chosen_ptr + choice, ids, mask=choice < TOP_K)
    if WEIGHED:
        tl.store(weights_ptr + choice, weights * 0.0 + 1.0, mask=choice < TOP_K)
    else:
        tl.store(weights_ptr + choice, weights * SCALE, mask=choice < TOP_K)


@triton.jit
def _activated(
    sums, bias_ptr, n, out_ptr, N: tl.constexpr, ROWS: tl.constexpr,
    KIND: tl.constexpr, ALPHA: tl.constexpr, LIMIT: tl.constexpr, PLANES: tl.constexpr,
):  # fmt: skip
    """sums [2 · ROWS] of gates n and ups n, written as one of N, in planes."""
    dtype = out_ptr.dtype.element_ty
    gate, up = tl.split(tl.trans(tl.reshape(sums, (2, ROWS))))
    if bias_ptr is not None:
        gate += tl.load(bias_ptr + n, mask=n < N, other=0.0).to(tl.float32)
        up += tl.load(bias_ptr + N + n, mask=n < N, other=0.0).to(tl.float32)
    gate = gate.to(dtype).to(tl.float32)  # rounded as the separate operations round
    result = gated(gate, up.to(dtype).to(tl.float32), dtype, KIND, ALPHA, LIMIT)
    place = n % PLANES * (N // PLANES) + n // PLANES
    tl.store(out_ptr + place, result.to(dtype), mask=n < N)


@triton.jit
def _scales_of(N: tl.constexpr, K: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr):
    """Count the scales of a matrix [N, K]."""
    COLUMNS: tl.constexpr = (K + WIDE - 1) // WIDE if WIDE else 1
    return (N + TALL - 1) // TALL * COLUMNS


@triton.jit
def _w13_kernel(
    x_ptr, logits_ptr, router_bias_ptr, score_bias_ptr, chosen_ptr, weights_ptr,
    w_ptr, scale_ptr, bias_ptr, shared_ptr, shared_scale_ptr, shared_bias_ptr, out_ptr,
    K: tl.constexpr, N: tl.constexpr, SHARED: tl.constexpr, CHOOSES: tl.constexpr,
    EXPERTS: tl.constexpr, PADDED: tl.constexpr, TOP_K: tl.constexpr, TOP_K_PADDED: tl.constexpr,
    SIGMOID: tl.constexpr, RENORMALIZE: tl.constexpr, SCALE: tl.constexpr, WEIGHED: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_K: tl.constexpr, FP4: tl.constexpr, INTERLEAVED: tl.constexpr,
    PLANES: tl.constexpr, UNROLL: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
    KIND: tl.constexpr, ALPHA: tl.constexpr, LIMIT: tl.constexpr,
):  # fmt: skip
    """x [T, K], W [E, 2·N, K], a shared expert's [2·SHARED, K] → [T, TOP_K · N + SHARED]. Program 0
    of a token writes down what it CHOOSES. WEIGHED: products are, and not those of downs. FP4:
    BLOCK_K is of words, and rows lie by eight (INTERLEAVED) or one by one. UNROLL, TALL, WIDE: of
    8-bit weights (w8a16_rows); TALL 0: there are none."""
    TILES: tl.constexpr = (N + ROWS - 1) // ROWS
    token = tl.program_id(1).to(tl.int64)
    program = tl.program_id(0) - 1
    row = tl.arange(0, 2 * ROWS)
    x_ptr += token * K
    out_ptr += token * (TOP_K * N + SHARED)
    logits_ptr += token * EXPERTS
    chosen_ptr += token * TOP_K
    if program < 0:
        if CHOOSES:
            _write_choice(
                logits_ptr, router_bias_ptr, score_bias_ptr, chosen_ptr,
                weights_ptr + token * TOP_K, EXPERTS, PADDED, TOP_K, TOP_K_PADDED, SIGMOID,
                RENORMALIZE, SCALE, WEIGHED,
            )  # fmt: skip
    elif program < TOP_K * TILES:
        number = program // TILES
        if CHOOSES:
            scores = expert_scores(logits_ptr, router_bias_ptr, EXPERTS, PADDED, SIGMOID)
            keys = choice_keys(scores, score_bias_ptr, EXPERTS, PADDED)
            expert = nth_choice(keys, number, PADDED)
        else:
            expert = tl.load(chosen_ptr + number)
        own = expert.to(tl.int64) * (2 * N)
        first = program % TILES * ROWS
        if FP4:
            sums = mxfp4_w13_rows(
                x_ptr, w_ptr + own * (K // 8), scale_ptr + own * exponents_of(K, INTERLEAVED),
                first, K, N, ROWS, BLOCK_K, INTERLEAVED,
            )  # fmt: skip
        elif TALL:
            scales = scale_ptr + expert.to(tl.int64) * _scales_of(2 * N, K, TALL, WIDE)
            sums = w8a16_rows(
                x_ptr, w_ptr + own * K, scales, first, N, K, 2, ROWS, BLOCK_K, UNROLL, TALL, WIDE
            )
            sums = tl.reshape(sums, (2 * ROWS,))
        else:
            n = first + row % ROWS
            rows, known = row // ROWS * N + n, n < N
            sums = plain_rows(x_ptr, w_ptr + own * K, rows, known, K, 2 * ROWS, BLOCK_K)
        if WEIGHED:
            its = tl.arange(0, PADDED) == expert
            sums *= tl.sum(tl.where(its, scores, 0.0), axis=0) * SCALE
        biases = bias_ptr
        if bias_ptr is not None:
            biases += own
        _activated(
            sums, biases, first + tl.arange(0, ROWS), out_ptr + number * N, N, ROWS, KIND, ALPHA,
            LIMIT, PLANES,
        )  # fmt: skip
    else:
        if SHARED:
            first = (program - TOP_K * TILES) * ROWS
            n = first + row % ROWS
            rows, known = row // ROWS * SHARED + n, n < SHARED
            if TALL:
                sums = w8a16_rows(
                    x_ptr, shared_ptr, shared_scale_ptr, first, SHARED, K, 2, ROWS, BLOCK_K, UNROLL,
                    TALL, WIDE,
                )  # fmt: skip
                sums = tl.reshape(sums, (2 * ROWS,))
            else:
                sums = plain_rows(x_ptr, shared_ptr, rows, known, K, 2 * ROWS, BLOCK_K)
            _activated(
                sums, shared_bias_ptr, first + tl.arange(0, ROWS), out_ptr + TOP_K * N, SHARED,
                ROWS, KIND, ALPHA, LIMIT, 1,
            )  # fmt: skip


@triton.jit
def _w2_kernel(
    x_ptr, chosen_ptr, weights_ptr, w_ptr, scale_ptr, bias_ptr, shared_ptr, shared_scale_ptr,
    shared_bias_ptr, out_ptr, K: tl.constexpr, N: tl.constexpr, SHARED: tl.constexpr,
    TOP_K: tl.constexpr, TOP_K_PADDED: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_SHARED: tl.constexpr, FP4: tl.constexpr,
    INTERLEAVED: tl.constexpr, UNROLL: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
    ALIGNED: tl.constexpr,
):  # fmt: skip
    """x [T, TOP_K · K + SHARED], W [E, N, K], a shared expert's [N, SHARED] → [T, N]. A tile has
    BLOCK_K inputs (FP4: words) of every expert, side by side. INTERLEAVED, UNROLL, TALL, WIDE: as
    _w13_kernel's."""
    token = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    known = (n < N)[:, None]
    x_ptr += token * (TOP_K * K + SHARED)
    chosen_ptr += token * TOP_K
    weights_ptr += token * TOP_K
    if TALL:
        total = w2_rows_8bit(
            x_ptr, chosen_ptr, weights_ptr, w_ptr, scale_ptr, tl.program_id(0) * ROWS, N, K,
            TOP_K, TOP_K_PADDED, ROWS, BLOCK_K, UNROLL, TALL, WIDE, ALIGNED,
        )  # fmt: skip
    else:
        total = w2_rows(
            x_ptr, chosen_ptr, weights_ptr, w_ptr, scale_ptr, n, known, N, K, TOP_K, TOP_K_PADDED,
            ROWS, BLOCK_K, FP4, INTERLEAVED, ALIGNED,
        )  # fmt: skip
    if bias_ptr is not None:
        for choice in tl.static_range(TOP_K):
            own = tl.load(chosen_ptr + choice).to(tl.int64) * N
            bias = tl.load(bias_ptr + own + n, mask=n < N, other=0.0).to(tl.float32)
            total += bias * tl.load(weights_ptr + choice)
    dtype = out_ptr.dtype.element_ty
    if SHARED:
        beside = x_ptr + TOP_K * K
        if TALL:
            shared = w8a16_rows(
                beside, shared_ptr, shared_scale_ptr, tl.program_id(0) * ROWS, N, SHARED, 1, ROWS,
                BLOCK_SHARED, UNROLL, TALL, WIDE,
            )  # fmt: skip
            shared = tl.reshape(shared, (ROWS,))
        else:
            shared = plain_rows(beside, shared_ptr, n, n < N, SHARED, ROWS, BLOCK_SHARED)
        if shared_bias_ptr is not None:
            shared += tl.load(shared_bias_ptr + n, mask=n < N, other=0.0).to(tl.float32)
        total = total.to(dtype).to(tl.float32) + shared.to(dtype).to(tl.float32)
    tl.store(out_ptr + token * N + n, total.to(dtype), mask=n < N)


def takes(w: MoEWeight, tokens: int) -> bool:
    """Whether there are so few tokens that hardly two choose one expert, or there is one, and
    the kernels multiply with such matrices."""
    return (tokens == 1 or 4 * tokens * w.routing.top_k <= w.experts.count) and multiplies(w)


def multiplies(w: MoEWeight) -> bool:
    """Whether matrices are of a kind that the kernels multiply with: plain, in codes of eight bits
    whose scales a program's rows share, or the experts' in MXFP4."""
    alone = chooses(w.routing, w.experts.count) and not w.routing.renormalize
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
    """Whether a program's rows of codes share their scales, gates' and ups' apart, and a lane's
    inputs do; nothing of what has a scale per output or none."""
    constants = _scales_8bit(w)
    tall, wide = constants["TALL"], constants["WIDE"]
    if not wide:
        return True
    most = max(_W13_ROWS_8BIT, _W2_ROWS_8BIT)
    return tall % most == 0 and w.outputs // 2 % most == 0 and wide % LANE.value == 0


def _scales_8bit(w: LinearWeight) -> dict[str, int]:
    """A kernel's TALL and WIDE: 0 of what is not in codes of eight bits."""
    if w.format not in EIGHT_BITS:
        return {"TALL": 0, "WIDE": 0}
    constants = scale_constants(w)
    return {"TALL": constants["TALL"], "WIDE": constants["WIDE"]}


def planes_of(w: ExpertsWeight) -> int:
    """In which the kernels read a token (gemv_rows.py)."""
    return 8 if _is_fp4(w.down) else 1


def chooses(routing: Routing, experts: int) -> bool:
    """Whether the kernels find experts in the logits themselves."""
    return not routing.is_grouped and experts <= _CHOSEN_AMONG


@dataclass(frozen=True, slots=True)
class GemvTile:
    """rows: of a matrix a program, of gates and ups each; block: inputs of a tile, or words; of
    downs, of all of a token's experts together; unroll: turns at once, of codes of eight bits."""

    rows: int
    block: int
    num_warps: int = 4
    unroll: int = 1


def w13_tile(w: MoEWeight, tokens: int, element_bytes: int) -> GemvTile:
    """As many rows as leave programs enough: each makes its choice again."""
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
    """Inputs of each expert in a tile of downs."""
    return max(32, block // next_power_of_2(w.routing.top_k))


def _rows(most: int, w: MoEWeight, outputs: int) -> int:
    least = _PROGRAMS * compute_units(w.experts.down.data.device)
    while most > 1 and outputs < least * most:
        most //= 2
    return most


def moe_gemv(
    x: torch.Tensor, logits: torch.Tensor, w: MoEWeight, routed: Routed | None
) -> torch.Tensor:
    """The sum of what each token's experts, and a shared one, make of it: x [T, H], in planes of
    the experts' format; logits [1, T, E], which decide unless it is decided → [T, H]."""
    tokens, size = x.shape[0], x.element_size()
    active, routed = w13_gemv(x, logits, w, routed, w13_tile(w, tokens, size))
    return downs(active, w, routed, w2_tile(w, tokens, size))


def w13_gemv(
    x: torch.Tensor, logits: torch.Tensor, w: MoEWeight, routed: Routed | None, tile: GemvTile
) -> tuple[torch.Tensor, Routed]:
    """What the activation makes of them [T, k · I + S], a shared expert's last; and the choice."""
    tokens, top_k, decides = x.shape[0], w.routing.top_k, routed is None
    if routed is None:
        ids = torch.empty((tokens, top_k), dtype=torch.int32, device=x.device)
        routed = Routed(ids, torch.empty_like(ids, dtype=torch.float32))
    stack, routing, experts = w.experts.gate_up, w.routing, w.experts.count
    inner, shared = w.experts.down.inputs, 0 if w.shared is None else w.shared.down.inputs
    out = torch.empty((tokens, top_k * inner + shared), dtype=x.dtype, device=x.device)
    tiles = top_k * triton.cdiv(inner, tile.rows) + triton.cdiv(shared, tile.rows)
    own = w.shared and w.shared.gate_up
    _w13_kernel[(1 + tiles, tokens)](
        x, logits, w.router.matrix.bias, w.router.correction, routed.ids, routed.weights,
        _words(stack), stack.scales and stack.scales.scale, stack.bias,
        own and own.data, own and own.scales and own.scales.scale, own and own.bias, out,
        K=x.shape[1], N=inner, SHARED=shared, CHOOSES=decides,
        EXPERTS=experts, PADDED=next_power_of_2(experts), TOP_K=top_k,
        TOP_K_PADDED=next_power_of_2(top_k), SIGMOID=routing.scoring is Scoring.SIGMOID,
        RENORMALIZE=routing.renormalize, SCALE=routing.scale, WEIGHED=w.experts.weighs_inputs,
        ROWS=tile.rows, BLOCK_K=tile.block, FP4=_is_fp4(stack), INTERLEAVED=_is_interleaved(stack),
        PLANES=planes_of(w.experts), UNROLL=tile.unroll, **_scales_8bit(stack),
        **gating(w.experts.activation), num_warps=tile.num_warps,
    )  # fmt: skip
    return out, routed


def downs(x: torch.Tensor, w: MoEWeight, routed: Routed, tile: GemvTile) -> torch.Tensor:
    """The weighed sum [T, H] of what `w13_gemv` gave."""
    tokens, top_k = routed.ids.shape
    stack = w.experts.down
    is_fp4, interleaved = _is_fp4(stack), _is_interleaved(stack)
    inner, hidden, chosen = stack.inputs, stack.outputs, next_power_of_2(top_k)
    out = torch.empty((tokens, hidden), dtype=x.dtype, device=x.device)
    own = w.shared and w.shared.down
    width = inner // 8 if is_fp4 else inner
    _w2_kernel[(triton.cdiv(hidden, tile.rows), tokens)](
        x, routed.ids, routed.weights, _words(stack), stack.scales and stack.scales.scale,
        stack.bias, own and own.data, own and own.scales and own.scales.scale, own and own.bias,
        out,
        K=inner, N=hidden, SHARED=x.shape[1] - top_k * inner, TOP_K=top_k, TOP_K_PADDED=chosen,
        ROWS=tile.rows, BLOCK_K=_of_expert(tile.block, w), BLOCK_SHARED=tile.block, FP4=is_fp4,
        INTERLEAVED=interleaved, UNROLL=tile.unroll, **_scales_8bit(stack),
        ALIGNED=min(8 if interleaved else 16, width & -width),
        num_warps=tile.num_warps,
    )  # fmt: skip
    return out


def _is_fp4(w: LinearWeight) -> bool:
    return w.format in FP4_FORMATS


def _is_interleaved(w: LinearWeight) -> bool:
    return w.format is WeightFormat.MXFP4_INTERLEAVED


def _words(w: LinearWeight) -> torch.Tensor:
    return w.data.view(torch.int32) if _is_fp4(w) else w.data
