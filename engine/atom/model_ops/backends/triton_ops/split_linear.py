# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Products of up to some hundred tokens with a weight matrix, split over the inner dimension.

A library's product of 64 tokens with a matrix of 1,024 rows starts a handful of programs and
reads the weights at a quarter of the card's rate. Here each program takes a tile of rows of W and a
slice of the inner dimension, and writes its float32 part; whoever needs the sum adds the parts up
while it reads them (norms.add_rms_norm). With one slice the result is complete and in the
activation's dtype.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.launch import next_power_of_2
from atom.model_ops.backends.triton_ops.tuning import SplitConfig

# The narrowest tile of tokens that the kernel multiplies.
_MIN_TOKENS = 16


@triton.jit(do_not_specialize=["tokens"])
def _split_kernel(
    x_ptr, w_ptr, bias_ptr, parts_ptr, tokens, N, K, slice,
    TOKENS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    WEIGHTS_FIRST: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """WEIGHTS_FIRST: rows of W, not tokens, are the tall side of the tensor core's tile."""
    part = tl.program_id(1)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    t = tl.arange(0, TOKENS)
    inner = part * slice + tl.arange(0, BLOCK_K)
    real = (t < tokens)[:, None]
    w_rows = w_ptr + n.to(tl.int64)[:, None] * K + inner[None, :]
    x_rows = x_ptr + t[:, None] * K + inner[None, :]
    if WEIGHTS_FIRST:
        acc = tl.zeros([BLOCK_N, TOKENS], tl.float32)
    else:
        acc = tl.zeros([TOKENS, BLOCK_N], tl.float32)
    for k in range(0, slice, BLOCK_K):
        w = tl.load(w_rows + k, eviction_policy="evict_first")
        x = tl.load(x_rows + k, mask=real, other=0.0)
        if WEIGHTS_FIRST:
            acc = tl.dot(w, tl.trans(x), acc, input_precision="ieee")
        else:
            acc = tl.dot(x, tl.trans(w), acc, input_precision="ieee")
    result = tl.trans(acc) if WEIGHTS_FIRST else acc
    if HAS_BIAS:
        bias = tl.load(bias_ptr + n).to(tl.float32)
        result += tl.where(part == 0, bias, 0.0)[None, :]
    at = parts_ptr + part * tokens.to(tl.int64) * N + t[:, None] * N + n[None, :]
    tl.store(at, result.to(parts_ptr.dtype.element_ty), mask=real)


def split_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, config: SplitConfig
) -> torch.Tensor:
    """x [T, in] contiguous, weight [out, in] contiguous, out and in multiples of the tile → [S, T,
    out] float32 whose sum over S is the product; [T, out] in x's dtype where S is 1."""
    tokens, inner = x.shape
    outputs = weight.shape[0]
    split = config.split_k
    shape = (split, tokens, outputs) if split > 1 else (tokens, outputs)
    dtype = torch.float32 if split > 1 else x.dtype
    parts = torch.empty(shape, dtype=dtype, device=x.device)
    _split_kernel[(outputs // config.block_n, split)](
        x, weight, bias, parts, tokens, outputs, inner, inner // split,
        TOKENS=max(_MIN_TOKENS, next_power_of_2(tokens)), BLOCK_N=config.block_n,
        BLOCK_K=config.block_k, WEIGHTS_FIRST=config.weights_first, HAS_BIAS=bias is not None,
        num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip
    return parts
