# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Products of a few tokens with a weight matrix, bound by reading the weights once.

Libraries tile for many tokens and leave most of a card idle at one to sixteen. Here a program takes
some rows of W: `gemv` multiplies and adds without the tensor core (one to four tokens), `dot` gives
each warp its own slice of the inner dimension and adds the slices up at the end (up to sixteen).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.compile.tuning import SkinnyConfig
from atom.model_ops.backends.triton_ops.gemm.quantised_tiles import scale_constants
from atom.model_ops.backends.triton_ops.launch import next_power_of_2
from atom.model_ops.values import LinearWeight

# The narrowest tile of tokens that the tensor core multiplies.
_MIN_DOT_TOKENS = 8


@triton.jit
def _store_result(
    result, bias_ptr, out_ptr, t, n, tokens, N, HAS_BIAS: tl.constexpr
):  # result [tokens, rows of W]
    # In float32, before the only rounding.
    if HAS_BIAS:
        result += tl.load(bias_ptr + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    mask = (t < tokens)[:, None] & (n < N)[None, :]
    at = out_ptr + t[:, None] * N + n[None, :]
    tl.store(at, result.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["tokens"])
def _gemv_kernel(
    x_ptr, w_ptr, scale_ptr, bias_ptr, out_ptr, tokens, N, K,
    TOKENS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    HAS_BIAS: tl.constexpr, EVEN: tl.constexpr,
    SCALED: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """TALL, WIDE: outputs and inputs that share a scale; WIDE 0: an output has one."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    t = tl.arange(0, TOKENS)
    inner = tl.arange(0, BLOCK_K)
    w_rows = w_ptr + n.to(tl.int64)[:, None] * K + inner[None, :]
    x_rows = x_ptr + t[:, None] * K + inner[None, :]
    # Kept elementwise until the end: one reduction for a program instead of one a turn.
    acc = tl.zeros([TOKENS, BLOCK_N, BLOCK_K], tl.float32)
    for k in range(0, K, BLOCK_K):
        if EVEN:
            # A matrix is read once a step; evicted first, it leaves activations and the KV cache in
            # L2.
            w = tl.load(w_rows + k, eviction_policy="evict_first")
            x = tl.load(x_rows + k, mask=(t < tokens)[:, None], other=0.0)
        else:
            within = (inner < K - k)[None, :]
            w = tl.load(w_rows + k, mask=within & (n < N)[:, None], other=0.0)
            x = tl.load(x_rows + k, mask=within & (t < tokens)[:, None], other=0.0)
        wide = x.to(tl.float32)
        # The scale goes into the token, which is TOKENS wide, and not into BLOCK_N rows of weights.
        if WIDE:
            scale_at = scale_ptr + tl.program_id(0) * BLOCK_N // TALL * tl.cdiv(K, WIDE)
            scale = tl.load(scale_at + (k + inner) // WIDE, mask=inner < K - k, other=0.0)
            wide *= scale[None, :]
        acc += wide[:, None, :] * w.to(tl.float32)[None, :, :]
    result = tl.sum(acc, axis=2)
    if SCALED and not WIDE:
        result *= tl.load(scale_ptr + n, mask=n < N, other=0.0)[None, :]
    _store_result(result, bias_ptr, out_ptr, t, n, tokens, N, HAS_BIAS)


@triton.jit(do_not_specialize=["tokens"])
def _dot_kernel(
    x_ptr, w_ptr, scale_ptr, bias_ptr, out_ptr, tokens, N, K,
    TOKENS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT_K: tl.constexpr,
    HAS_BIAS: tl.constexpr, EVEN: tl.constexpr,
    SCALED: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """TALL, WIDE: outputs and inputs that share a scale; WIDE 0: an output has one."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    t = tl.arange(0, TOKENS)
    # Slices of K side by side as a batch of dots: warps split the inner dimension, so a program has
    # more loads in flight than one chain of dots has.
    inner = tl.arange(0, SPLIT_K)[:, None] * BLOCK_K + tl.arange(0, BLOCK_K)[None, :]
    w_rows = w_ptr + n.to(tl.int64)[None, :, None] * K + inner[:, None, :]  # [S, BLOCK_N, BLOCK_K]
    x_rows = x_ptr + t[None, None, :] * K + inner[:, :, None]  # [S, BLOCK_K, TOKENS]
    acc = tl.zeros([SPLIT_K, BLOCK_N, TOKENS], tl.float32)
    if WIDE:
        # A tile's scales are loaded before the tile, so that no wait is needed for them.
        blocks = tl.cdiv(K, WIDE)
        scale_at = scale_ptr + tl.program_id(0) * BLOCK_N // TALL * blocks
        part = tl.arange(0, SPLIT_K) * BLOCK_K
        scales = tl.load(scale_at + part // WIDE, mask=part < K, other=0.0)
    for k in range(0, K, SPLIT_K * BLOCK_K):
        if EVEN:
            w = tl.load(w_rows + k, eviction_policy="evict_first")
            x = tl.load(x_rows + k, mask=(t < tokens)[None, None, :], other=0.0)
        else:
            within = inner < K - k
            w = tl.load(w_rows + k, mask=within[:, None, :] & (n < N)[None, :, None], other=0.0)
            x = tl.load(
                x_rows + k, mask=within[:, :, None] & (t < tokens)[None, None, :], other=0.0
            )
        if WIDE:
            # A block's scale follows the dot: fp8 weights enter it exactly, as 16-bit numbers.
            acc += tl.dot(w.to(x.dtype), x, input_precision="ieee") * scales[:, None, None]
            next_part = k + SPLIT_K * BLOCK_K + part
            scales = tl.load(scale_at + next_part // WIDE, mask=next_part < K, other=0.0)
        else:
            acc = tl.dot(w.to(x.dtype), x, acc, input_precision="ieee")
    # Slices are added up once, at the end.
    result = tl.trans(tl.sum(acc, axis=0))
    if SCALED and not WIDE:
        result *= tl.load(scale_ptr + n, mask=n < N, other=0.0)[None, :]
    _store_result(result, bias_ptr, out_ptr, t, n, tokens, N, HAS_BIAS)


def skinny_linear(x: torch.Tensor, w: LinearWeight, config: SkinnyConfig) -> torch.Tensor:
    """Map x [T, in] contiguous, w [out, in] contiguous → [T, out]."""
    tokens, inner = x.shape
    outputs = w.outputs
    out = torch.empty((tokens, outputs), dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(outputs, config.block_n),)
    step = config.block_k * config.split_k
    even = outputs % config.block_n == 0 and inner % step == 0
    padded = next_power_of_2(tokens)
    if config.kernel == "gemv":
        _gemv_kernel[grid](
            x, w.data, w.scales and w.scales.scale, w.bias, out, tokens, outputs, inner,
            TOKENS=padded, BLOCK_N=config.block_n, BLOCK_K=config.block_k,
            HAS_BIAS=w.bias is not None, EVEN=even, **scale_constants(w),
            num_warps=config.num_warps, num_stages=config.num_stages,
        )  # fmt: skip
    else:
        _dot_kernel[grid](
            x, w.data, w.scales and w.scales.scale, w.bias, out, tokens, outputs, inner,
            TOKENS=max(padded, _MIN_DOT_TOKENS), BLOCK_N=config.block_n, BLOCK_K=config.block_k,
            SPLIT_K=config.split_k, HAS_BIAS=w.bias is not None, EVEN=even, **scale_constants(w),
            num_warps=config.num_warps, num_stages=config.num_stages,
        )  # fmt: skip
    return out
