# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Products of one token with matrices of int4, multiplied and added without the tensor core.

Dequantising dominates the cost: a tensor core needs the numbers in its own order, which takes
longer than all multiplications of a token. A float32's lowest 24 bits count 2^-149, so six of a
word's codes are numbers in place, and the other two after one shift; inputs, which all rows share,
are scaled up accordingly. Zero points are multiplied with sums of inputs. For e2m1, whose
conversion takes more instructions, the tensor core is as fast.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.gemm.packed_bytes import group_values
from atom.model_ops.backends.triton_ops.launch import compute_units
from atom.model_ops.values import LinearWeight

# Words of a row that a program has at once; rows, with and without enough programs.
_WORDS, _ROWS, _FEW_ROWS = 256, 16, 8
# Inputs are made so much larger, and sums then lack so much.
_LARGER, _LACK = tl.constexpr(2.0**100), tl.constexpr(2.0**-49)


@triton.jit
def _inputs(x_ptr, order_ptr, word, row_words, EVEN: tl.constexpr):
    """The inputs of words [W] → [W, 8] float32."""
    at, inside = 8 * word[:, None] + tl.arange(0, 8)[None, :], (word < row_words)[:, None]
    # act-order gathers the token, 2 bytes an input, and leaves the weights in one piece.
    if order_ptr is not None:
        at = tl.load(order_ptr + at, mask=inside, other=0)
    if EVEN:
        return tl.load(x_ptr + at).to(tl.float32)
    else:
        return tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _by_nibble(x):
    """Map x [W, 8] → a row [1, W] for each nibble of words, as much larger as _code_sums wants
    them."""
    WORDS: tl.constexpr = x.shape[0]
    # Bits of the nibble's number, from the lowest: three splits, no data movement but within a
    # thread, which holds a word's eight inputs.
    even, odd = tl.split(tl.reshape(x, (WORDS, 4, 2)))
    x04, x26 = tl.split(tl.reshape(even, (WORDS, 2, 2)))
    x15, x37 = tl.split(tl.reshape(odd, (WORDS, 2, 2)))
    x0, x4 = tl.split(x04)
    x1, x5 = tl.split(x15)
    x2, x6 = tl.split(x26)
    x3, x7 = tl.split(x37)
    return (
        _larger(x0, 0), _larger(x1, 1), _larger(x2, 2), _larger(x3, 3),
        _larger(x4, 4), _larger(x5, 5), _larger(x6, 4), _larger(x7, 5),
    )  # fmt: skip


@triton.jit
def _larger(x, NIBBLE: tl.constexpr):
    return (x * (_LARGER / 16**NIBBLE))[None, :]


@triton.jit
def _code(words, NIBBLE: tl.constexpr):
    """Read a code in place, as a float32 of 2^-149 times its bits: the lowest 24 bits count so,
    subnormal or not."""
    # No conversion at all: float32 reads subnormals as so many 2^-149, and fma takes them at full
    # rate on both vendors (denormals must not be flushed; the tests compile for that).
    return (words & (15 << (4 * NIBBLE))).to(tl.float32, bitcast=True)


@triton.jit
def _code_sums(words, x):
    """Map words int32 [N, W], what _by_nibble gives → of each word the sum of its products, 2^-49
    of it, [N, W] float32."""
    x0, x1, x2, x3, x4, x5, x6, x7 = x
    # Nibbles 6 and 7 would reach the exponent's bits in place: they are shifted down by eight.
    upper = words >> 8
    sums = _code(words, 0) * x0
    sums = tl.fma(_code(words, 1), x1, sums)
    sums = tl.fma(_code(words, 2), x2, sums)
    sums = tl.fma(_code(words, 3), x3, sums)
    sums = tl.fma(_code(words, 4), x4, sums)
    sums = tl.fma(_code(words, 5), x5, sums)
    sums = tl.fma(_code(upper, 4), x6, sums)
    return tl.fma(_code(upper, 5), x7, sums)


@triton.jit
def _packed_gemv_kernel(
    x_ptr, w_ptr, scale_ptr, zero_ptr, order_ptr, bias_ptr, out_ptr, N, row_words,
    BLOCK_N: tl.constexpr, WORDS: tl.constexpr, GROUP: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """row_words: of a row of w, and not its inputs: so the compiler knows how words are aligned.
    GROUP: inputs that share a scale, whole words; zero_ptr, order_ptr: as _packed_int32_kernel's;
    EVEN: tiles are whole."""
    # Words that are added up before they are scaled: a lane's read, or a group.
    NEAR: tl.constexpr = 4 if GROUP % 32 == 0 else 2 if GROUP % 16 == 0 else 1
    n, word = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, WORDS)
    rows, groups = n < N, tl.cdiv(8 * row_words, GROUP)
    w_rows = w_ptr + n.to(tl.int64)[:, None] * row_words + word[None, :]
    acc = tl.zeros([BLOCK_N, WORDS // NEAR], tl.float32)
    for k in range(0, row_words, WORDS):
        if EVEN:
            # Read once, so first to be evicted.
            words = tl.load(w_rows + k, eviction_policy="evict_first")
        else:
            known = rows[:, None] & (word < row_words - k)[None, :]
            words = tl.load(w_rows + k, mask=known, other=0)
        first = k + tl.arange(0, WORDS // NEAR) * NEAR
        known = rows[:, None] & (first < row_words)[None, :]
        group = (8 * first // GROUP)[None, :]
        scales, zeros = group_values(scale_ptr, zero_ptr, n, groups, group, known)
        x = _inputs(x_ptr, order_ptr, k + word, row_words, EVEN)
        # Zero points leave the inner loop: sum(x · (c - z)) = sum(x · c) - z · sum(x), once for a
        # group.
        total = tl.sum(tl.reshape(x, (WORDS // NEAR, 8 * NEAR)), axis=1)[None, :] * _LACK
        sums = _code_sums(words, _by_nibble(x))
        sums = tl.sum(tl.reshape(sums, (BLOCK_N, WORDS // NEAR, NEAR)), axis=2)
        acc += (sums - zeros.to(tl.float32) * total) * scales.to(tl.float32)
    # The codes' missing factor, 2^-49, for the whole row at once.
    out = tl.sum(acc, axis=1) / _LACK
    if bias_ptr is not None:
        out += tl.load(bias_ptr + n, mask=rows, other=0.0).to(tl.float32)
    tl.store(out_ptr + n, out.to(out_ptr.dtype.element_ty), mask=rows)


def packed_gemv(x: torch.Tensor, w: LinearWeight) -> torch.Tensor:
    """Map x [1, in] contiguous, w of INT4 or INT4_ORDERED that packed_linear takes → [1, out]."""
    scales, inner = w.scales, x.shape[1]
    assert scales is not None
    out = torch.empty((1, w.outputs), dtype=x.dtype, device=x.device)
    many = w.outputs >= 4 * _ROWS * compute_units(x.device)
    rows = _ROWS if many else _FEW_ROWS
    _packed_gemv_kernel[(triton.cdiv(w.outputs, rows),)](
        x, w.data.view(torch.int32), scales.scale, scales.zero,
        None if scales.groups is None else scales.groups.order, w.bias, out, w.outputs, inner // 8,
        BLOCK_N=rows, WORDS=_WORDS, GROUP=scales.block[1],
        EVEN=w.outputs % rows == 0 and inner % (8 * _WORDS) == 0,
        num_warps=4, num_stages=1,
    )  # fmt: skip
    return out
