# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Sort pairs by expert and split activations into two fp8 terms, in one launch.

Both are short and independent; a launch of each would be a third of their time. Used only with
MXFP4 experts on NVIDIA's cards (nvidia/fp8_hi_lo.py).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.launch import next_power_of_2, warps_for
from atom.model_ops.backends.triton_ops.moe.sort_by_expert import (
    CHUNK,
    Order,
    empty_order,
    order_expert,
)
from atom.model_ops.backends.triton_ops.nvidia.fp8_hi_lo import empty_hi_lo, write_hi_lo


@triton.jit(do_not_specialize=["pairs"])
def _sort_and_split_kernel(
    x_ptr, codes_ptr, scales_ptr, chosen_ptr, counts_ptr, order_ptr, pairs,
    K: tl.constexpr, BLOCK: tl.constexpr, EXPERTS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    # Sorters first: they take longest, and rows fill the card after them.
    if program < EXPERTS:
        order_expert(chosen_ptr, counts_ptr, order_ptr, program, pairs, CHUNK)
    else:
        row = (program - EXPERTS).to(tl.int64)
        write_hi_lo(x_ptr, codes_ptr, scales_ptr, row, K, BLOCK)


def sort_and_split(
    x: torch.Tensor, ids: torch.Tensor, experts: int
) -> tuple[torch.Tensor, torch.Tensor, Order]:
    """Compute `split_activations` of x, and `order_by_expert` of ids [T, k], in one launch."""
    tokens, inner = x.shape
    codes, scales = empty_hi_lo(tokens, inner, x.device)
    order = empty_order(ids, experts)
    block = next_power_of_2(inner)
    _sort_and_split_kernel[(experts + tokens,)](
        x, codes, scales, ids, order.counts, order.pairs, ids.numel(),
        K=inner, BLOCK=block, EXPERTS=experts, CHUNK=CHUNK, num_warps=warps_for(block),
    )  # fmt: skip
    return codes, scales, order
