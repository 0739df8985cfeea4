# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The two kernels of low-batch experts: router's choice and w13; w2 and the weighted sum.

gemv.py describes their use. The kernels differ in the conversion of weights to numbers: plain and
MXFP4 rows by tile (gemv_rows.py), 8-bit ones by lane (gemm/w8a16_rows.py).
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.activation import gated
from atom.model_ops.backends.triton_ops.gemm.w8a16_rows import w8a16_rows
from atom.model_ops.backends.triton_ops.launch import next_power_of_2
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


@triton.jit
def _write_choice(
    logits_ptr, router_bias_ptr, score_bias_ptr, chosen_ptr, weights_ptr,
    EXPERTS: tl.constexpr, TOP_K: tl.constexpr, SIGMOID: tl.constexpr,
    RENORMALIZE: tl.constexpr, SCALE: tl.constexpr, WEIGHED: tl.constexpr,
):  # fmt: skip
    """Write a token's experts and weights down for the launch of w2. WEIGHED: weights of 1, since
    inputs had theirs."""
    PADDED: tl.constexpr = next_power_of_2(EXPERTS)
    TOP_K_PADDED: tl.constexpr = next_power_of_2(TOP_K)
    scores = expert_scores(logits_ptr, router_bias_ptr, EXPERTS, PADDED, SIGMOID)
    keys = choice_keys(scores, score_bias_ptr, EXPERTS, PADDED)
    choice = tl.arange(0, TOP_K_PADDED)
    ids = tl.zeros([TOP_K_PADDED], tl.int32)
    weights = tl.zeros([TOP_K_PADDED], tl.float32)
    # A maximum for each choice, of keys in registers: see topk_keys.py.
    for number in tl.static_range(TOP_K):
        best = tl.max(keys, axis=0)
        weight = tl.sum(tl.where(keys == best, scores, 0.0), axis=0)
        ids = tl.where(choice == number, expert_of(best, PADDED), ids)
        weights = tl.where(choice == number, weight, weights)
        keys = tl.where(keys == best, -1, keys)
    # 1e-20 keeps 0 / 0 out, as in DeepSeek's code.
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
    """sums [2 · ROWS] of w1 n and w3 n, written as one of N, in planes."""
    dtype = out_ptr.dtype.element_ty
    # The program has w1's sums and w3's of the same rows: the activation needs no other program.
    gate, up = tl.split(tl.trans(tl.reshape(sums, (2, ROWS))))
    if bias_ptr is not None:
        gate += tl.load(bias_ptr + n, mask=n < N, other=0.0).to(tl.float32)
        up += tl.load(bias_ptr + N + n, mask=n < N, other=0.0).to(tl.float32)
    gate = gate.to(dtype).to(tl.float32)  # rounded as the separate operations round
    result = gated(gate, up.to(dtype).to(tl.float32), dtype, KIND, ALPHA, LIMIT)
    # MXFP4's w2 reads the result in planes (gemv_rows.py), so it is written so.
    place = n % PLANES * (N // PLANES) + n // PLANES
    tl.store(out_ptr + place, result.to(dtype), mask=n < N)


@triton.jit
def _scales_of(N: tl.constexpr, K: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr):
    """Count the scales of a matrix [N, K]."""
    # WIDE 0: an output has one scale.
    COLUMNS: tl.constexpr = (K + WIDE - 1) // WIDE if WIDE else 1
    return (N + TALL - 1) // TALL * COLUMNS


@triton.jit
def _own_expert(
    logits_ptr, router_bias_ptr, score_bias_ptr, chosen_ptr, number, CHOOSES: tl.constexpr,
    EXPERTS: tl.constexpr, SIGMOID: tl.constexpr,
):  # fmt: skip
    """Find a token's expert by its number among the chosen ones, and the scores of all (0 if the
    choice was made before)."""
    PADDED: tl.constexpr = next_power_of_2(EXPERTS)
    if CHOOSES:
        # Every program chooses for itself: that is quicker than to wait for one that has written
        # it.
        scores = expert_scores(logits_ptr, router_bias_ptr, EXPERTS, PADDED, SIGMOID)
        keys = choice_keys(scores, score_bias_ptr, EXPERTS, PADDED)
        expert = nth_choice(keys, number, PADDED)
    else:
        scores = tl.zeros([PADDED], tl.float32)
        expert = tl.load(chosen_ptr + number)
    return expert, scores


@triton.jit
def _weigh(sums, scores, expert, SCALE: tl.constexpr):
    """Multiply by the expert's own score: a function that is linear in the token may be weighted
    before w2."""
    its = tl.arange(0, scores.shape[0]) == expert
    return sums * (tl.sum(tl.where(its, scores, 0.0), axis=0) * SCALE)


@triton.jit
def _own_token(
    x_ptr, out_ptr, logits_ptr, chosen_ptr,
    K: tl.constexpr, OUTPUTS: tl.constexpr, EXPERTS: tl.constexpr, TOP_K: tl.constexpr,
):  # fmt: skip
    """Return pointers to a program's token in inputs, outputs, logits and choice, and the token's
    index."""
    token = tl.program_id(1).to(tl.int64)
    return (
        x_ptr + token * K, out_ptr + token * OUTPUTS, logits_ptr + token * EXPERTS,
        chosen_ptr + token * TOP_K, token,
    )  # fmt: skip


@triton.jit
def _store_expert(
    sums, bias_ptr, expert, first, number, out_ptr, N: tl.constexpr, ROWS: tl.constexpr,
    KIND: tl.constexpr, ALPHA: tl.constexpr, LIMIT: tl.constexpr, PLANES: tl.constexpr,
):  # fmt: skip
    """Write the rows from `first` on of a token's expert of this number, activated."""
    biases = bias_ptr
    if bias_ptr is not None:
        biases += expert.to(tl.int64) * (2 * N)
    _activated(
        sums, biases, first + tl.arange(0, ROWS), out_ptr + number * N, N, ROWS, KIND, ALPHA,
        LIMIT, PLANES,
    )  # fmt: skip


@triton.jit
def w13_kernel(
    x_ptr, router, routed, experts, shared, out_ptr,
    K: tl.constexpr, N: tl.constexpr, SHARED: tl.constexpr, CHOOSES: tl.constexpr,
    EXPERTS: tl.constexpr, TOP_K: tl.constexpr, SIGMOID: tl.constexpr,
    RENORMALIZE: tl.constexpr, SCALE: tl.constexpr, WEIGHED: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_K: tl.constexpr, INTERLEAVED: tl.constexpr,
    KIND: tl.constexpr, ALPHA: tl.constexpr, LIMIT: tl.constexpr,
):  # fmt: skip
    """Map x [T, K], W [E, 2·N, K] plain or in MXFP4, a shared expert's [2·SHARED, K] → [T, TOP_K ·
    N + SHARED]. Program 0 of a token writes the choice if the kernel CHOOSES. router: logits, bias,
    score bias; routed: experts and weights; experts, shared: data, scales, bias. WEIGHED: these
    products are weighted, and not those of w2. In MXFP4 BLOCK_K is of int32 words, and rows may be
    INTERLEAVED by eight."""
    logits_ptr, router_bias_ptr, score_bias_ptr = router
    chosen_ptr, weights_ptr = routed
    w_ptr, scale_ptr, bias_ptr = experts
    shared_ptr, _, shared_bias_ptr = shared
    FP4: tl.constexpr = w_ptr.dtype.element_ty == tl.int32
    TILES: tl.constexpr = (N + ROWS - 1) // ROWS
    x_ptr, out_ptr, logits_ptr, chosen_ptr, token = _own_token(
        x_ptr, out_ptr, logits_ptr, chosen_ptr, K, TOP_K * N + SHARED, EXPERTS, TOP_K
    )
    # One program more than tiles: it alone writes the choice, and the others do not wait for it.
    program = tl.program_id(0) - 1
    row = tl.arange(0, 2 * ROWS)
    if program < 0:
        if CHOOSES:
            _write_choice(
                logits_ptr, router_bias_ptr, score_bias_ptr, chosen_ptr,
                weights_ptr + token * TOP_K, EXPERTS, TOP_K, SIGMOID, RENORMALIZE, SCALE, WEIGHED,
            )  # fmt: skip
    elif program < TOP_K * TILES:
        number = program // TILES
        expert, scores = _own_expert(
            logits_ptr, router_bias_ptr, score_bias_ptr, chosen_ptr, number, CHOOSES, EXPERTS,
            SIGMOID,
        )  # fmt: skip
        own = expert.to(tl.int64) * (2 * N)
        # An expert's tiles are neighbours: programs that run together read one matrix in order.
        first = program % TILES * ROWS
        if FP4:
            sums = mxfp4_w13_rows(
                x_ptr, w_ptr + own * (K // 8), scale_ptr + own * exponents_of(K, INTERLEAVED),
                first, K, N, ROWS, BLOCK_K, INTERLEAVED,
            )  # fmt: skip
        else:
            # Rows of w1 and of w3 side by side in one tile: the token is read once for both.
            n = first + row % ROWS
            rows, known = row // ROWS * N + n, n < N
            sums = plain_rows(x_ptr, w_ptr + own * K, rows, known, K, 2 * ROWS, BLOCK_K)
        if WEIGHED:
            sums = _weigh(sums, scores, expert, SCALE)
        _store_expert(
            sums,
            bias_ptr,
            expert,
            first,
            number,
            out_ptr,
            N,
            ROWS,
            KIND,
            ALPHA,
            LIMIT,
            8 if FP4 else 1,
        )
    else:
        if SHARED:
            # The shared expert's rows are the last programs of the same launch: no stream, no
            # second kernel.
            first = (program - TOP_K * TILES) * ROWS
            n = first + row % ROWS
            rows, known = row // ROWS * SHARED + n, n < SHARED
            sums = plain_rows(x_ptr, shared_ptr, rows, known, K, 2 * ROWS, BLOCK_K)
            _activated(
                sums, shared_bias_ptr, first + tl.arange(0, ROWS), out_ptr + TOP_K * N, SHARED,
                ROWS, KIND, ALPHA, LIMIT, 1,
            )  # fmt: skip


@triton.jit
def w13_8bit_kernel(
    x_ptr, router, routed, experts, shared, out_ptr,
    K: tl.constexpr, N: tl.constexpr, SHARED: tl.constexpr, CHOOSES: tl.constexpr,
    EXPERTS: tl.constexpr, TOP_K: tl.constexpr, SIGMOID: tl.constexpr,
    RENORMALIZE: tl.constexpr, SCALE: tl.constexpr, WEIGHED: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_K: tl.constexpr, UNROLL: tl.constexpr, TALL: tl.constexpr,
    WIDE: tl.constexpr, KIND: tl.constexpr, ALPHA: tl.constexpr, LIMIT: tl.constexpr,
):  # fmt: skip
    """`w13_kernel` of weights in fp8 or int8, a warp a program: it holds the choice and the token
    without a word to other warps. UNROLL, TALL, WIDE: see w8a16_rows.py."""
    logits_ptr, router_bias_ptr, score_bias_ptr = router
    chosen_ptr, weights_ptr = routed
    w_ptr, scale_ptr, bias_ptr = experts
    shared_ptr, shared_scale_ptr, shared_bias_ptr = shared
    TILES: tl.constexpr = (N + ROWS - 1) // ROWS
    x_ptr, out_ptr, logits_ptr, chosen_ptr, token = _own_token(
        x_ptr, out_ptr, logits_ptr, chosen_ptr, K, TOP_K * N + SHARED, EXPERTS, TOP_K
    )
    program = tl.program_id(0) - 1
    if program < 0:
        if CHOOSES:
            _write_choice(
                logits_ptr, router_bias_ptr, score_bias_ptr, chosen_ptr,
                weights_ptr + token * TOP_K, EXPERTS, TOP_K, SIGMOID, RENORMALIZE, SCALE, WEIGHED,
            )  # fmt: skip
    elif program < TOP_K * TILES:
        number = program // TILES
        expert, scores = _own_expert(
            logits_ptr, router_bias_ptr, score_bias_ptr, chosen_ptr, number, CHOOSES, EXPERTS,
            SIGMOID,
        )  # fmt: skip
        # 64 bits: 74 experts of DeepSeek-V3's size have 2^31 elements of w13.
        own = expert.to(tl.int64) * (2 * N)
        first = program % TILES * ROWS
        scales = scale_ptr + expert.to(tl.int64) * _scales_of(2 * N, K, TALL, WIDE)
        sums = w8a16_rows(
            x_ptr, w_ptr + own * K, scales, first, N, K, 2, ROWS, BLOCK_K, UNROLL, TALL, WIDE
        )
        sums = tl.reshape(sums, (2 * ROWS,))
        if WEIGHED:
            sums = _weigh(sums, scores, expert, SCALE)
        _store_expert(
            sums, bias_ptr, expert, first, number, out_ptr, N, ROWS, KIND, ALPHA, LIMIT, 1
        )
    else:
        if SHARED:
            # The shared expert's rows are the last programs of the same launch.
            first = (program - TOP_K * TILES) * ROWS
            sums = w8a16_rows(
                x_ptr, shared_ptr, shared_scale_ptr, first, SHARED, K, 2, ROWS, BLOCK_K, UNROLL,
                TALL, WIDE,
            )  # fmt: skip
            sums = tl.reshape(sums, (2 * ROWS,))
            _activated(
                sums, shared_bias_ptr, first + tl.arange(0, ROWS), out_ptr + TOP_K * N, SHARED,
                ROWS, KIND, ALPHA, LIMIT, 1,
            )  # fmt: skip


@triton.jit
def w2_kernel(
    x_ptr, routed, experts, shared, out_ptr,
    K: tl.constexpr, N: tl.constexpr, SHARED: tl.constexpr, TOP_K: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_SHARED: tl.constexpr,
    INTERLEAVED: tl.constexpr, UNROLL: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
    ALIGNED: tl.constexpr,
):  # fmt: skip
    """Map x [T, TOP_K · K + SHARED], W [E, N, K], a shared expert's [N, SHARED] → [T, N]. A tile
    has BLOCK_K inputs (of MXFP4: words) of every expert, side by side. TALL, WIDE: of 8-bit
    weights; the rest is as `w13_kernel`'s."""
    chosen_ptr, weights_ptr = routed
    w_ptr, scale_ptr, bias_ptr = experts
    shared_ptr, shared_scale_ptr, shared_bias_ptr = shared
    FP4: tl.constexpr = w_ptr.dtype.element_ty == tl.int32
    TOP_K_PADDED: tl.constexpr = next_power_of_2(TOP_K)
    token = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    known = (n < N)[:, None]
    x_ptr += token * (TOP_K * K + SHARED)
    chosen_ptr += token * TOP_K
    weights_ptr += token * TOP_K
    # TALL 0 means that weights are not 8-bit; the other branch is not compiled.
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
    # Each expert's bias by its weight: it is inside the expert, before the weighed sum.
    if bias_ptr is not None:
        for choice in tl.static_range(TOP_K):
            own = tl.load(chosen_ptr + choice).to(tl.int64) * N
            bias = tl.load(bias_ptr + own + n, mask=n < N, other=0.0).to(tl.float32)
            total += bias * tl.load(weights_ptr + choice)
    dtype = out_ptr.dtype.element_ty
    if SHARED:
        beside = x_ptr + TOP_K * K
        if TALL:
            shared_sums = w8a16_rows(
                beside, shared_ptr, shared_scale_ptr, tl.program_id(0) * ROWS, N, SHARED, 1, ROWS,
                BLOCK_SHARED, UNROLL, TALL, WIDE,
            )  # fmt: skip
            shared_sums = tl.reshape(shared_sums, (ROWS,))
        else:
            shared_sums = plain_rows(beside, shared_ptr, n, n < N, SHARED, ROWS, BLOCK_SHARED)
        if shared_bias_ptr is not None:
            shared_sums += tl.load(shared_bias_ptr + n, mask=n < N, other=0.0).to(tl.float32)
        # Rounded one by one, as the separate operations of a shared expert round.
        total = total.to(dtype).to(tl.float32) + shared_sums.to(dtype).to(tl.float32)
    tl.store(out_ptr + token * N + n, total.to(dtype), mask=n < N)
