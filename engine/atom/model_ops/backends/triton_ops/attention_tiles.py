# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""What decode and prefill attention share: addressing the paged cache, and one softmax step.

Scores are kept in base 2: the caller's scale carries log2(e), so that exponentials are exp2.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_blocks(table_ptr, first, end, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr):
    """Block ids of the BLOCK_N tokens from `first`; those past `end` get block 0.

    Loops carry the ids of their next tile: a key's address then depends on no load of its own
    iteration, and the compiler can keep several tiles of keys and values in flight.
    """
    token = first + tl.arange(0, BLOCK_N)
    return tl.load(table_ptr + token // BLOCK_SIZE, mask=token < end, other=0)


@triton.jit
def cache_offsets(
    block, first, head,
    BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Offsets [BLOCK_N, D] of the tokens' heads in a cache [N, BLOCK_SIZE, HKV, D]."""
    offset = (first + tl.arange(0, BLOCK_N)) % BLOCK_SIZE
    slot = block.to(tl.int64) * BLOCK_SIZE + offset
    return (slot * (HKV * D) + head * D)[:, None] + tl.arange(0, D)[None, :]


@triton.jit
def softmax_step(scores, value, scale, running_max, running_sum, acc):
    """Fold scores [M, N], still to be scaled, and value [N, D] into the softmax of M rows.

    Every row has at least one score above -inf by its first step: its maximum is finite.
    """
    new_max = tl.maximum(running_max, tl.max(scores, axis=1) * scale)
    shrink = tl.exp2(running_max - new_max)
    weights = tl.exp2(scores * scale - new_max[:, None])
    running_sum = running_sum * shrink + tl.sum(weights, axis=1)
    acc = acc * shrink[:, None]
    acc = tl.dot(weights.to(value.dtype), value, acc, input_precision="ieee")
    return new_max, running_sum, acc
