# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""What decode and prefill attention share: addressing the paged cache, and one softmax step.

Scores are kept in base 2: the caller's scale carries log2(e), so that exponentials are exp2.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def cache_offsets(
    table_ptr, token, inside, head,
    BLOCK_SIZE: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Offsets [tokens, 1] of tokens' heads in a cache [N, BLOCK_SIZE, HKV, D]."""
    if MASKED:
        block = tl.load(table_ptr + token // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
    else:
        block = tl.load(table_ptr + token // BLOCK_SIZE).to(tl.int64)
    slot = block * BLOCK_SIZE + token % BLOCK_SIZE
    return (slot * (HKV * D) + head * D)[:, None]


@triton.jit
def softmax_step(scores, value, running_max, running_sum, acc):
    """Fold scores [M, N] and value [N, D] into the running softmax of M rows.

    Every row has at least one score above -inf by its first step: its maximum is finite.
    """
    new_max = tl.maximum(running_max, tl.max(scores, axis=1))
    shrink = tl.exp2(running_max - new_max)
    weights = tl.exp2(scores - new_max[:, None])
    running_sum = running_sum * shrink + tl.sum(weights, axis=1)
    acc = acc * shrink[:, None]
    acc = tl.dot(weights.to(value.dtype), value, acc, input_precision="ieee")
    return new_max, running_sum, acc
