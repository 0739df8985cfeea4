# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Products of one token with matrices of int4, multiplied and added without the tensor core.

What costs there is making numbers of codes: a tensor core wants them in an order of its own, which
takes longer than all multiplications of a token. Here two codes of a word at once become bfloat16
that is 128 more than they are, whose bits are a float32's first; what that adds to a product is
taken off once for each word. Of e2m1, whose numbers take more to make, the tensor core is as fast.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.launch import compute_units
from atom.model_ops.backends.triton_ops.products.packed_tiles import group_values
from atom.model_ops.backends.triton_ops.products.word_tiles import int4_bits
from atom.model_ops.values import LinearWeight

# Words of a row that a program has at once; rows, where there are enough programs and where not.
_WORDS, _ROWS, _FEW_ROWS = 256, 16, 8


@triton.jit
def _inputs(x_ptr, order_ptr, place, inside, NIBBLE: tl.constexpr):
    """The inputs NIBBLE of words whose first ones are `place` [W] → float32 [1, W]."""
    at = place + NIBBLE
    if order_ptr is not None:
        at = tl.load(order_ptr + at, mask=inside, other=0)
    return tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)[None, :]


@triton.jit
def _word_gemv_kernel(
    x_ptr, w_ptr, scale_ptr, zero_ptr, order_ptr, bias_ptr, out_ptr, N, row_words,
    BLOCK_N: tl.constexpr, WORDS: tl.constexpr, GROUP: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """row_words: of a row of w, and not its inputs: so the compiler knows how words are aligned.
    GROUP: inputs that share a scale, whole words; zero_ptr, order_ptr: as _word_kernel's; EVEN:
    tiles are whole."""
    n, word = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, WORDS)
    rows, groups = n < N, tl.cdiv(8 * row_words, GROUP)
    w_rows = w_ptr + n.to(tl.int64)[:, None] * row_words + word[None, :]
    acc = tl.zeros([BLOCK_N, WORDS], tl.float32)
    for k in range(0, row_words, WORDS):
        inside = word < row_words - k
        known = rows[:, None] & inside[None, :]
        if EVEN:
            words = tl.load(w_rows + k, eviction_policy="evict_first")
        else:
            words = tl.load(w_rows + k, mask=known, other=0)
        place = 8 * (k + word)
        group = (place // GROUP)[None, :]
        scales, zeros = group_values(scale_ptr, zero_ptr, n, groups, group, known)
        sums = tl.zeros([BLOCK_N, WORDS], tl.float32)
        total = tl.zeros([1, WORDS], tl.float32)  # of the inputs
        for nibble in tl.static_range(4):
            low = _inputs(x_ptr, order_ptr, place, inside, nibble)
            high = _inputs(x_ptr, order_ptr, place, inside, nibble + 4)
            bits = int4_bits(words, nibble, tl.bfloat16)
            sums += (bits << 16).to(tl.float32, bitcast=True) * low
            sums += (bits & -65536).to(tl.float32, bitcast=True) * high
            total += low + high
        acc += (sums - (zeros + 128).to(tl.float32) * total) * scales.to(tl.float32)
    out = tl.sum(acc, axis=1)
    if bias_ptr is not None:
        out += tl.load(bias_ptr + n, mask=rows, other=0.0).to(tl.float32)
    tl.store(out_ptr + n, out.to(out_ptr.dtype.element_ty), mask=rows)


def word_gemv(x: torch.Tensor, w: LinearWeight) -> torch.Tensor:
    """x [1, in] contiguous, w of INT4 or INT4_ORDERED that word_linear takes → [1, out]."""
    scales, inner = w.scales, x.shape[1]
    assert scales is not None
    out = torch.empty((1, w.outputs), dtype=x.dtype, device=x.device)
    many = w.outputs >= 4 * _ROWS * compute_units(x.device)
    rows = _ROWS if many else _FEW_ROWS
    _word_gemv_kernel[(triton.cdiv(w.outputs, rows),)](
        x, w.data.view(torch.int32), scales.scale, scales.zero,
        None if scales.groups is None else scales.groups.order, w.bias, out, w.outputs, inner // 8,
        BLOCK_N=rows, WORDS=_WORDS, GROUP=scales.block[1],
        EVEN=w.outputs % rows == 0 and inner % (8 * _WORDS) == 0,
        num_warps=4, num_stages=1,
    )  # fmt: skip
    return out
