# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Products of up to some hundred tokens with a weight matrix, split over the inner dimension.

A library's product of 64 tokens with a matrix of 1,024 rows starts a handful of programs and
reads the weights at a quarter of the card's rate. Here each program takes a tile of rows of W and a
slice of the inner dimension, and writes its float32 part; the next norm adds the parts up while it
reads them (norms.norm). With one slice the result is complete and in the
activation's dtype, and a gated product applies its activation before it is written.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.compile.tuning import SplitKConfig
from atom.model_ops.backends.triton_ops.launch import next_power_of_2
from atom.model_ops.backends.triton_ops.xcd_order import product_dies, product_tile
from atom.model_ops.values import LinearWeight

# The narrowest tile of tokens that the kernel multiplies.
_MIN_TOKENS = 16


@triton.jit
def _product(w, x, acc, WEIGHTS_FIRST: tl.constexpr):
    """Tiles w [N, K] and x [T, K] → acc + float32 [N, T], or [T, N]."""
    # Hopper's wgmma has 64 rows: with fewer tokens than that, weights must be its tall side.
    if WEIGHTS_FIRST:
        return tl.dot(w, tl.trans(x), acc, input_precision="ieee")
    else:
        return tl.dot(x, tl.trans(w), acc, input_precision="ieee")


@triton.jit(do_not_specialize=["tokens"])
def _split_k_kernel(
    x_ptr, w_ptr, bias_ptr, parts_ptr, tokens, N, K, slice,
    BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    WEIGHTS_FIRST: tl.constexpr, GATED: tl.constexpr, HAS_BIAS: tl.constexpr, DIES: tl.constexpr,
):  # fmt: skip
    """N: columns of the result. WEIGHTS_FIRST: rows of W, not tokens, are the tall side of the
    tensor core's tile. GATED: W has N rows of gate_proj, then N of up_proj."""
    part = product_tile(2, DIES)
    # Neighbours share a tile of W: it is read from memory once.
    t = product_tile(0, DIES) * BLOCK_T + tl.arange(0, BLOCK_T)
    n = product_tile(1, DIES) * BLOCK_N + tl.arange(0, BLOCK_N)
    # The host takes only tiles that divide N and K, so weights need no mask and are loaded 16 bytes
    # at a time.
    inner = part * slice + tl.arange(0, BLOCK_K)
    real = (t < tokens)[:, None]
    w_rows = w_ptr + n.to(tl.int64)[:, None] * K + inner[None, :]
    up_rows = w_rows + N.to(tl.int64) * K
    x_rows = x_ptr + t[:, None] * K + inner[None, :]
    if WEIGHTS_FIRST:
        acc = tl.zeros([BLOCK_N, BLOCK_T], tl.float32)
    else:
        acc = tl.zeros([BLOCK_T, BLOCK_N], tl.float32)
    up = acc
    for k in range(0, slice, BLOCK_K):
        w = tl.load(w_rows + k, eviction_policy="evict_first")
        x = tl.load(x_rows + k, mask=real, other=0.0)
        acc = _product(w, x, acc, WEIGHTS_FIRST)
        # The same x for both: a gated product reads activations once.
        if GATED:
            w = tl.load(up_rows + k, eviction_policy="evict_first")
            up = _product(w, x, up, WEIGHTS_FIRST)
    result = tl.trans(acc) if WEIGHTS_FIRST else acc
    if HAS_BIAS:
        bias = tl.load(bias_ptr + n).to(tl.float32)
        # Once, of all parts that are added up later.
        result += tl.where(part == 0, bias, 0.0)[None, :]
    if GATED:
        dtype = parts_ptr.dtype.element_ty
        factor = tl.trans(up) if WEIGHTS_FIRST else up
        if HAS_BIAS:
            factor += tl.load(bias_ptr + N + n).to(tl.float32)[None, :]
        gate = result.to(dtype).to(tl.float32)  # rounded as the separate operations round
        silu = (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32)
        result = silu * factor.to(dtype).to(tl.float32)
    # 64 bits for the part's offset: parts times tokens times outputs may exceed 2^31.
    at = parts_ptr + part * tokens.to(tl.int64) * N + t[:, None] * N + n[None, :]
    tl.store(at, result.to(parts_ptr.dtype.element_ty), mask=real)


def split_k_linear(x: torch.Tensor, w: LinearWeight, config: SplitKConfig) -> torch.Tensor:
    """Map x [T, in] contiguous, w [out, in] plain and contiguous, out and in multiples of the tile
    → [S, T, out] float32 whose sum over S is the product; [T, out] in x's dtype where S is 1."""
    tokens, outputs, split = x.shape[0], w.outputs, config.split_k
    shape = (split, tokens, outputs) if split > 1 else (tokens, outputs)
    dtype = torch.float32 if split > 1 else x.dtype
    parts = torch.empty(shape, dtype=dtype, device=x.device)
    _launch(x, w, parts, config, gated=False)
    return parts


def gated_linear(x: torch.Tensor, w: LinearWeight, config: SplitKConfig) -> torch.Tensor:
    """Map x [T, in], w [2·I, in] contiguous, I and in multiples of the tile, one slice → [T, I]:
    silu(gate) · up."""
    assert config.split_k == 1, "an activation needs the complete product"
    shape = (x.shape[0], w.outputs // 2)
    out = torch.empty(shape, dtype=x.dtype, device=x.device)
    _launch(x, w, out, config, gated=True)
    return out


def _launch(
    x: torch.Tensor, w: LinearWeight, out: torch.Tensor, config: SplitKConfig, *, gated: bool
) -> None:
    tokens, inner = x.shape
    outputs, split = out.shape[-1], config.split_k
    block_t = max(_MIN_TOKENS, min(config.block_t, next_power_of_2(tokens)))
    token_tiles = triton.cdiv(tokens, block_t)
    _split_k_kernel[(token_tiles, outputs // config.block_n, split)](
        x, w.data, w.bias, out,
        tokens, outputs, inner, inner // split,
        BLOCK_T=block_t, BLOCK_N=config.block_n, BLOCK_K=config.block_k,
        WEIGHTS_FIRST=config.weights_first, GATED=gated, HAS_BIAS=w.bias is not None,
        DIES=product_dies(x.device, token_tiles),
        num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip
