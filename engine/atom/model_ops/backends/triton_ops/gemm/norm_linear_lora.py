# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Kernels for a token with an adapter: sum, norm, product, low-rank product, activation.

One is the kernel of norm_linear.py with the adapter in it; the other has no norm, and allows many
inputs. The first programs shrink: each has some rows of a, as the others have of W, and publishes
their products with the token. The others multiply by W, and then read the shrunk values, which have
mostly arrived by then. A published number marks its own arrival: all places first hold a bit
pattern that no product has, so no counter or barrier is needed. The first programs run first on
every device that we know of, so no program waits for one that does not run.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
import triton
import triton.language as tl

from atom.model_ops.activations import Activation, Gating
from atom.model_ops.backends.triton_ops.activation import act_and_mul
from atom.model_ops.backends.triton_ops.gemm import norm_linear as alone
from atom.model_ops.backends.triton_ops.gemm.linear import linear
from atom.model_ops.backends.triton_ops.gemm.lora_shrink_expand import add_lora
from atom.model_ops.backends.triton_ops.launch import head_lanes, next_power_of_2
from atom.model_ops.backends.triton_ops.norms import norm as settle_and_norm
from atom.model_ops.values import LinearWeight, LoraWeight, NormWeight, Stream, WeightFormat
from atom.utils.forward_context import LoraTokens

# Rows of W a program and warps: fewer than without an adapter, whose numbers take registers. Inputs
# that are multiplied at once, if no norm needs all of them.
_PROGRAM = 2, 4
_BLOCK_K = 2048
# Of an adapter, which a program holds besides its rows of W.
_MAX_RANK = 64
# Each number is told in so many places, one for every so many programs: thousands of programs that
# read one place would wait for each other.
COPIES: tl.constexpr = tl.constexpr(16)
# Numbers that a step's shrinks may publish before another tensor is allocated.
_TOLD = 1 << 17
_NUMBERS = "lora_numbers"  # of a step, in the values computed once a step
# All bits: a NaN that no operation makes, of which the card's own has other bits.
UNTOLD: tl.constexpr = tl.constexpr(-1)


@triton.jit
def _tell(shrunk_ptr, row, value, told, PLACE: tl.constexpr):
    """Write numbers [ROWS] to their places, past the caches of this program's die."""
    bits = value.to(tl.int32, bitcast=True)
    bits = tl.where(bits == UNTOLD, 0x7FC00000, bits)
    for copy in range(COPIES):
        tl.atomic_xchg(shrunk_ptr + copy * PLACE + row, bits, mask=told, sem="relaxed")


@triton.jit
def _told(at, wanted):
    """Wait for numbers at pointers [N, R] until each one `wanted` is there."""
    bits = tl.load(at, mask=wanted, other=0, volatile=True)
    while tl.sum((bits == UNTOLD).to(tl.int32)) > 0:
        bits = tl.load(at, mask=wanted, other=0, volatile=True)
    # Several threads hold a number, and the sum has seen what one of them read: once more, behind
    # it.
    bits = tl.load(at, mask=wanted, other=0, volatile=True)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _asked(
    b_ptr, shrunk_ptr, slot, n, known, OUT: tl.constexpr, RANK: tl.constexpr,
    LANES: tl.constexpr, ENDS: tl.constexpr,
):  # fmt: skip
    """Ask for rows n of b, and find the numbers that each of them is multiplied by: rows, pointers,
    which are wanted. None are where slot is -1."""
    place: tl.constexpr = _place(len(ENDS) * RANK)
    lane = tl.arange(0, LANES)
    wanted = known[:, None] & (lane < tl.where(slot >= 0, RANK, 0))[None, :]
    at_b = b_ptr + (slot.to(tl.int64) * OUT + n)[:, None] * RANK + lane[None, :]
    b = tl.load(at_b, mask=wanted, other=0.0).to(tl.float32)
    projection = tl.zeros_like(n)
    for which in tl.static_range(len(ENDS) - 1):
        projection += (n >= ENDS[which]).to(tl.int32)
    own = shrunk_ptr + tl.program_id(0) % COPIES * place
    return b, own + projection[:, None] * RANK + lane[None, :], wanted


@triton.jit
def _row_sums(at, known, x_ptr, K: tl.constexpr, BLOCK_K: tl.constexpr):
    """Multiply rows at pointers [ROWS, 1] by a token → float32 [ROWS]."""
    total = tl.zeros([at.shape[0], BLOCK_K], dtype=tl.float32)
    for begin in tl.static_range(0, K, BLOCK_K):
        k = begin + tl.arange(0, BLOCK_K)
        within = known[:, None] & (k < K)[None, :]
        row = tl.load(at + k[None, :], mask=within, other=0.0, eviction_policy="evict_first")
        x = tl.load(x_ptr + k, mask=k < K, other=0.0).to(tl.float32)
        total += row.to(tl.float32) * x[None, :]
    return tl.sum(total, axis=1)


@triton.jit
def _linear_lora_kernel(
    x_ptr, w_ptr, bias_ptr, a_ptr, b_ptr, slot_ptr, shrunk_ptr, out_ptr, N,
    K: tl.constexpr, BLOCK_K: tl.constexpr, ROWS: tl.constexpr, HAS_BIAS: tl.constexpr,
    RANK: tl.constexpr, LANES: tl.constexpr, ENDS: tl.constexpr,
):  # fmt: skip
    """Multiply a token that is normed already; ENDS as below."""
    shrunk_rows: tl.constexpr = len(ENDS) * RANK
    shrinkers: tl.constexpr = (shrunk_rows + ROWS - 1) // ROWS
    slot = tl.load(slot_ptr)
    program = tl.program_id(0)
    if program < shrinkers:
        row = program * ROWS + tl.arange(0, ROWS)
        known = row < tl.where(slot >= 0, shrunk_rows, 0)
        at = a_ptr + (slot.to(tl.int64) * shrunk_rows + row)[:, None] * K
        sums = _row_sums(at, known, x_ptr, K, BLOCK_K)
        _tell(shrunk_ptr, row, sums, known, _place(shrunk_rows))
    else:
        n = (program - shrinkers) * ROWS + tl.arange(0, ROWS)
        known = n < N
        result = _row_sums(w_ptr + n.to(tl.int64)[:, None] * K, known, x_ptr, K, BLOCK_K)
        if HAS_BIAS:
            result += tl.load(bias_ptr + n, mask=known, other=0.0).to(tl.float32)
        out: tl.constexpr = ENDS[len(ENDS) - 1]
        b, told_at, wanted = _asked(b_ptr, shrunk_ptr, slot, n, known, out, RANK, LANES, ENDS)
        result += tl.sum(b * _told(told_at, wanted), axis=1)
        tl.store(out_ptr + n, result.to(out_ptr.dtype.element_ty), mask=known)


@triton.jit
def _norm_linear_lora_kernel(
    x_ptr, residual_ptr, norm_ptr, w_ptr, bias_ptr, a_ptr, b_ptr, slot_ptr, shrunk_ptr, out_ptr,
    residual_out_ptr, eps, N,
    K: tl.constexpr, BLOCK_K: tl.constexpr, ROWS: tl.constexpr, GATED: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr, HAS_BIAS: tl.constexpr,
    RANK: tl.constexpr, LANES: tl.constexpr, ENDS: tl.constexpr,
):  # fmt: skip
    """ENDS: the end row of each of the matrix' projections. N: rows of W, half of them if GATED."""
    shrunk_rows: tl.constexpr = len(ENDS) * RANK
    shrinkers: tl.constexpr = (shrunk_rows + ROWS - 1) // ROWS
    slot = tl.load(slot_ptr)
    program = tl.program_id(0)
    dtype = out_ptr.dtype.element_ty
    k = tl.arange(0, BLOCK_K)
    inside = k < K
    if program < shrinkers:
        row = program * ROWS + tl.arange(0, ROWS)
        known = row < tl.where(slot >= 0, shrunk_rows, 0)
        at = a_ptr + (slot.to(tl.int64) * shrunk_rows + row)[:, None] * K + k[None, :]
        a = tl.load(at, mask=known[:, None] & inside[None, :], other=0.0)
        token = alone.normed_token(
            x_ptr, residual_ptr, norm_ptr, residual_out_ptr, eps, False, k, inside,
            K, HAS_RESIDUAL, dtype,
        )  # fmt: skip
        _tell(
            shrunk_ptr,
            row,
            tl.sum(a.to(tl.float32) * token[None, :], axis=1),
            known,
            _place(shrunk_rows),
        )
    else:
        n = (program - shrinkers) * ROWS + tl.arange(0, ROWS)
        known = n < N
        within = known[:, None] & inside[None, :]
        # As in norm_linear.py weights are on their way while the token is normed: nothing that they
        # wait for may be before them, the slot neither.
        at = w_ptr + n.to(tl.int64)[:, None] * K + k[None, :]
        weights = tl.load(at, mask=within, other=0.0, eviction_policy="evict_first")
        if GATED:
            up_at = at + N.to(tl.int64) * K
            up_weights = tl.load(up_at, mask=within, other=0.0, eviction_policy="evict_first")
        token = alone.normed_token(
            x_ptr, residual_ptr, norm_ptr, residual_out_ptr, eps, program == shrinkers, k, inside,
            K, HAS_RESIDUAL, dtype,
        )  # fmt: skip
        out: tl.constexpr = ENDS[len(ENDS) - 1]
        if GATED:
            # Rows of gate and up in turn, so that both are waited for at once.
            turn = tl.arange(0, 2 * ROWS)
            gate_row = (program - shrinkers) * ROWS + turn // 2
            b, told_at, wanted = _asked(
                b_ptr, shrunk_ptr, slot, gate_row + turn % 2 * N, gate_row < N,
                out, RANK, LANES, ENDS,
            )  # fmt: skip
        else:
            b, told_at, wanted = _asked(b_ptr, shrunk_ptr, slot, n, known, out, RANK, LANES, ENDS)
        result = tl.sum(weights.to(tl.float32) * token[None, :], axis=1)
        if HAS_BIAS:
            result += tl.load(bias_ptr + n, mask=known, other=0.0).to(tl.float32)
        if GATED:
            up = tl.sum(up_weights.to(tl.float32) * token[None, :], axis=1)
            if HAS_BIAS:
                up += tl.load(bias_ptr + N + n, mask=known, other=0.0).to(tl.float32)
        added = tl.sum(b * _told(told_at, wanted), axis=1)
        if GATED:
            added, up_added = tl.split(tl.reshape(added, [ROWS, 2]))
            result = alone.silu_gated(result + added, up + up_added, dtype)
        else:
            result += added
        tl.store(out_ptr + n, result.to(dtype), mask=known)


@triton.constexpr_function
def _place(count: int) -> int:
    """Return the distance between two places of a matrix, which share no cache line."""
    return -(-count // 64) * 64


def norm_linear_lora(
    stream: Stream,
    norm: NormWeight,
    w: LinearWeight,
    tokens: LoraTokens,
    activation: Gating | None,
) -> tuple[torch.Tensor, Stream]:
    """See `Ops.norm_linear_lora`."""
    assert w.lora is not None, "a matrix with low-rank parts"
    if _takes(w) and alone.can_fuse(stream, w) and activation in (None, Activation.SILU):
        return _one_token(stream, norm, w, tokens, gated=activation is not None)
    normed, stream = settle_and_norm(stream, norm)
    y = linear_lora(normed, w, tokens)
    return (y if activation is None else act_and_mul(y, activation)), stream


def linear_lora(x: torch.Tensor, w: LinearWeight, tokens: LoraTokens) -> torch.Tensor:
    """See `Ops.linear_lora`."""
    lora = w.lora
    assert lora is not None, "a matrix with low-rank parts"
    if x.shape[0] != 1 or not _takes(w):
        return add_lora(partial(linear, x, w), x, lora, tokens)
    out = torch.empty((1, w.outputs), dtype=x.dtype, device=x.device)
    block_k = min(_BLOCK_K, next_power_of_2(w.inputs))
    rows, warps = _PROGRAM
    programs = triton.cdiv(lora.a.shape[1], rows) + triton.cdiv(w.outputs, rows)
    _linear_lora_kernel[(programs,)](
        x.contiguous(), w.data, w.bias, lora.a, lora.b, tokens.slots, _numbers(tokens, lora), out,
        w.outputs,
        K=w.inputs, BLOCK_K=block_k, ROWS=rows, HAS_BIAS=w.bias is not None,
        RANK=lora.rank, LANES=head_lanes(lora.rank), ENDS=_ends(lora.rows), num_warps=warps,
    )  # fmt: skip
    return out


def _takes(w: LinearWeight) -> bool:
    """Return whether the kernels here support the matrix and its adapters."""
    is_plain = w.format is WeightFormat.PLAIN
    return w.lora is not None and is_plain and w.lora.rank <= _MAX_RANK


def _one_token(
    stream: Stream, norm: NormWeight, w: LinearWeight, tokens: LoraTokens, *, gated: bool
) -> tuple[torch.Tensor, Stream]:
    lora, residual = w.lora, stream.residual
    assert lora is not None, "a matrix with low-rank parts"
    outputs = w.outputs // 2 if gated else w.outputs
    rows, warps = alone.GATED_PROGRAM if gated else _PROGRAM
    out = torch.empty((1, outputs), dtype=residual.dtype, device=residual.device)
    has_residual = stream.pending is not None
    x = residual if stream.pending is None else stream.pending
    settled = torch.empty_like(residual) if has_residual else residual
    shrunk = _numbers(tokens, lora)
    programs = triton.cdiv(lora.a.shape[1], rows) + triton.cdiv(outputs, rows)
    _norm_linear_lora_kernel[(programs,)](
        x, residual, norm.weight, w.data, w.bias, lora.a, lora.b, tokens.slots, shrunk, out,
        settled, norm.eps, outputs,
        K=w.inputs, BLOCK_K=next_power_of_2(w.inputs), ROWS=rows, GATED=gated,
        HAS_RESIDUAL=has_residual, HAS_BIAS=w.bias is not None,
        RANK=lora.rank, LANES=head_lanes(lora.rank), ENDS=_ends(lora.rows),
        num_warps=warps,
    )  # fmt: skip
    return out, Stream(settled)


def _ends(rows: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sum(rows[: count + 1]) for count in range(len(rows)))


@dataclass(slots=True)
class _Numbers:
    """The places of a step that no program has written yet, int32; used: the number taken from
    their beginning."""

    untold: torch.Tensor
    used: int = 0


def _numbers(tokens: LoraTokens, lora: LoraWeight) -> torch.Tensor:
    """Take the places for one matrix' shrunk values of the token from those that a step initialises
    at once."""
    count = COPIES.value * _place(lora.a.shape[1])
    found: _Numbers | None = tokens.per_step.get(_NUMBERS)
    if found is None or found.used + count > len(found.untold):
        untold = torch.full((_TOLD,), UNTOLD.value, dtype=torch.int32, device=lora.a.device)
        found = tokens.per_step[_NUMBERS] = _Numbers(untold)
    found.used += count
    return found.untold[found.used - count : found.used]
