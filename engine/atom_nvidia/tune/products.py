"""Measure the cost of a product's kernel configurations, beside the library's product.

A product whose result a norm adds to the residual is timed together with that norm, a gated product
against product and activation: the pair's time counts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from atom.model_ops.activations import Activation
from atom.model_ops.backends.triton_ops.activation import act_and_mul
from atom.model_ops.backends.triton_ops.compile import tuning
from atom.model_ops.backends.triton_ops.compile.tuning import (
    TOKEN_BUCKETS,
    SkinnyConfig,
    SplitKConfig,
)
from atom.model_ops.backends.triton_ops.gemm.choose import Table, predicted_config
from atom.model_ops.backends.triton_ops.gemm.cost_model import Product
from atom.model_ops.backends.triton_ops.gemm.linear import linear
from atom.model_ops.backends.triton_ops.gemm.skinny_linear import skinny_linear
from atom.model_ops.backends.triton_ops.gemm.split_k_linear import gated_linear, split_k_linear
from atom.model_ops.backends.triton_ops.norms import norm as settle_and_norm
from atom.model_ops.backends.triton_ops.timing import copies_beyond_cache, graph_microseconds
from atom.model_ops.values import LinearWeight, NormWeight, Pending, Stream
from atom_nvidia.tune.search import best

# Qwen3-0.6B, Qwen3-8B, Llama-3.1-8B: qkv, o, gate_up, down, head.
KNOWN_SHAPES = (
    "4096x1024", "1024x2048", "6144x1024", "1024x3072", "151936x1024",
    "6144x4096", "4096x4096", "24576x4096", "4096x12288", "151936x4096",
    "28672x4096", "4096x14336", "128256x4096",
)  # fmt: skip
# Of these, the ones whose product a norm adds to the residual: o, down.
KNOWN_ADDENDS = ("1024x2048", "1024x3072", "4096x4096", "4096x12288", "4096x14336")
# And gate_up.
KNOWN_GATED = ("6144x1024", "24576x4096", "28672x4096")
# A kernel of ours must be this much faster than the library to be chosen.
_WORTH = 0.98
# Up to this many tokens the skinny kernels beat the tiles of split_k_linear.
_SKINNY_TOKENS = 16
# One token has its norm fused with the product that follows, which takes no parts.
ADDEND_BUCKETS = tuple(bucket for bucket in TOKEN_BUCKETS if bucket > 1)
# Programs of a product: fewer leave multiprocessors idle, more only cost.
_PROGRAMS = range(48, 1100)


def skinny_candidates(tokens: int) -> Iterator[SkinnyConfig]:
    if tokens <= 4:
        for block_n, block_k, warps in itertools.product(
            (1, 2, 4, 8), (512, 1024, 2048), (2, 4, 8)
        ):
            per_thread = block_n * block_k // (32 * warps)
            if per_thread >= 8 and per_thread * tokens <= 64:
                yield SkinnyConfig("gemv", block_n, block_k, 1, warps, 2)
    for block_n, block_k, split_k, stages in itertools.product(
        (16, 32, 64), (64, 128, 256), (1, 2, 4, 8), (2, 4)
    ):
        tile_bytes = block_n * block_k * split_k * 2
        shared_bytes = stages * block_k * split_k * (block_n + tokens) * 2
        if 8192 <= tile_bytes <= 32768 and shared_bytes <= 160 * 1024:
            yield SkinnyConfig("dot", block_n, block_k, split_k, max(4, split_k), stages)


def split_candidates(
    tokens: int, splits: Sequence[int], *, gated: bool = False
) -> Iterator[SplitKConfig]:
    for block_n, block_k, stages, weights_first, block_t in itertools.product(
        (32, 64, 128), (64, 128), (3, 4, 5), (False, True), (64, 128)
    ):
        tile = max(16, min(tokens, block_t))
        shared_bytes = stages * block_k * (block_n * (1 + gated) + tile) * 2
        # The tall side of the tensor core's tile has 64 rows at least.
        tall = block_n if weights_first else tile
        if shared_bytes > 200 * 1024 or block_n * block_k < 4096 or tall < 64:
            continue
        if block_t > max(64, tokens):
            continue
        for split_k in splits:
            warps = 8 if block_n * tile * (1 + gated) > 16384 else 4
            yield SplitKConfig(block_n, block_k, split_k, weights_first, warps, stages, block_t)


def fits(config: SkinnyConfig | SplitKConfig, outputs: int, inner: int) -> bool:
    if inner % (config.block_k * config.split_k):
        return False
    if isinstance(config, SkinnyConfig):
        return True
    programs = outputs // config.block_n * config.split_k
    return outputs % config.block_n == 0 and (config.split_k == 1 or programs in _PROGRAMS)


def tune_linear(
    shapes: Sequence[tuple[int, int]],
    buckets: Sequence[int],
    dtype: torch.dtype,
    report: Callable[[str], None],
) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for outputs, inner in shapes:
        weights = _weights(outputs, inner, dtype)
        for tokens in buckets:
            x = torch.randn(tokens, inner, dtype=dtype, device="cuda")
            library = graph_microseconds([partial(F.linear, x, w.data) for w in weights])
            candidates = [c for c in linear_candidates(tokens) if fits(c, outputs, inner)]

            def cost(
                config: Any, x: torch.Tensor = x, weights: list[LinearWeight] = weights
            ) -> float:
                return graph_microseconds([partial(product, x, w, config) for w in weights], 3)

            ours, chosen = best(candidates, cost)[0]
            wins = ours < library * _WORTH
            key = tuning.linear_key(dtype, outputs, inner, tokens)
            table[key] = asdict(chosen) if wins else None
            report(f"  {key:<32} library {library:7.2f} µs   ours {ours:7.2f} µs   {chosen}")
            shape = Product(outputs, inner, tokens, dtype.itemsize)
            report(family_loss("linear", shape, cost, library, min(library, ours)))
        del weights
    return table


def tune_addend(
    shapes: Sequence[tuple[int, int]], dtype: torch.dtype, report: Callable[[str], None]
) -> dict[str, Any]:
    """Time products together with the norm that adds up the parts, against the best complete
    product."""
    table: dict[str, Any] = {}
    for outputs, inner in shapes:
        weights = _weights(outputs, inner, dtype)
        norm = NormWeight(torch.randn(outputs, dtype=dtype, device="cuda"), 1e-6)
        for tokens in ADDEND_BUCKETS:
            x = torch.randn(tokens, inner, dtype=dtype, device="cuda")
            residual = torch.randn(tokens, outputs, dtype=dtype, device="cuda")

            def with_norm(
                w: LinearWeight,
                config: SplitKConfig | None,
                x: torch.Tensor = x,
                residual: torch.Tensor = residual,
                norm: NormWeight = norm,
            ) -> object:
                addend = product(x, w, config) if config else linear(x, w)
                parts = config is not None and config.split_k > 1
                stream = Stream(residual, addend, Pending.PARTS if parts else Pending.WHOLE)
                return settle_and_norm(stream, norm)

            complete = graph_microseconds([partial(with_norm, weight, None) for weight in weights])
            candidates = split_candidates(tokens, (2, 4, 8, 16))

            def cost(
                config: Any, weights: list[LinearWeight] = weights, call: Any = with_norm
            ) -> float:
                return graph_microseconds([partial(call, weight, config) for weight in weights], 3)

            possible = [c for c in candidates if fits(c, outputs, inner)]
            ours, chosen = best(possible, cost)[0]
            key = tuning.linear_key(dtype, outputs, inner, tokens)
            table[key] = asdict(chosen) if ours < complete * _WORTH else None
            report(f"  {key:<32} complete {complete:7.2f} µs   parts {ours:7.2f} µs   {chosen}")
            shape = Product(outputs, inner, tokens, dtype.itemsize)
            report(family_loss("addend", shape, cost, complete, min(complete, ours)))
        del weights
    return table


def tune_gated(
    shapes: Sequence[tuple[int, int]], dtype: torch.dtype, report: Callable[[str], None]
) -> dict[str, Any]:
    """Time gated products against the best complete product followed by its activation."""
    table: dict[str, Any] = {}
    for outputs, inner in shapes:
        weights = _weights(outputs, inner, dtype)
        for tokens in ADDEND_BUCKETS:
            x = torch.randn(tokens, inner, dtype=dtype, device="cuda")
            separate = graph_microseconds([partial(_gated_apart, x, w) for w in weights])
            candidates = split_candidates(tokens, (1,), gated=True)

            def cost(
                config: Any, x: torch.Tensor = x, weights: list[LinearWeight] = weights
            ) -> float:
                return graph_microseconds([partial(gated_linear, x, w, config) for w in weights], 3)

            possible = [c for c in candidates if fits(c, outputs // 2, inner)]
            ours, chosen = best(possible, cost)[0]
            key = tuning.linear_key(dtype, outputs, inner, tokens)
            table[key] = asdict(chosen) if ours < separate * _WORTH else None
            report(f"  {key:<32} separate {separate:7.2f} µs   gated {ours:7.2f} µs   {chosen}")
            shape = Product(outputs, inner, tokens, dtype.itemsize, gated=True)
            report(family_loss("gated", shape, cost, separate, min(separate, ours)))
        del weights
    return table


def family_loss(
    table: Table, shape: Product, cost: Callable[[Any], float], without: float, least: float
) -> str:
    """Report the cost of the family's choice (choose.py), made without this measurement, over the
    best. without: µs of the library's product; least: µs of the best."""
    config = predicted_config(torch.device("cuda", torch.cuda.current_device()), table, shape)
    took = without if config is None else cost(config)
    return f"    its family {took:7.2f} µs ({took / least - 1:+.1%})   {config or 'the library'}"


def _gated_apart(x: torch.Tensor, w: LinearWeight) -> torch.Tensor:
    return act_and_mul(linear(x, w), Activation.SILU)


def _weights(outputs: int, inner: int, dtype: torch.dtype) -> list[LinearWeight]:
    count = copies_beyond_cache(outputs * inner * dtype.itemsize, most=64)
    return [
        LinearWeight(torch.randn(outputs, inner, dtype=dtype, device="cuda")) for _ in range(count)
    ]


def linear_candidates(tokens: int) -> Iterator[SkinnyConfig] | Iterator[SplitKConfig]:
    if tokens <= _SKINNY_TOKENS:
        return skinny_candidates(tokens)
    return split_candidates(tokens, (1,))


def product(x: torch.Tensor, w: LinearWeight, config: SkinnyConfig | SplitKConfig) -> torch.Tensor:
    if isinstance(config, SkinnyConfig):
        return skinny_linear(x, w, config)
    return split_k_linear(x, w, config)


def compile_product(config: SkinnyConfig | SplitKConfig, tokens: int, *, gated: bool) -> None:
    """Launch the specialisation that the measurements use."""
    x = torch.zeros(tokens, 4096, dtype=torch.bfloat16, device="cuda")
    w = LinearWeight(torch.zeros(4096, 4096, dtype=torch.bfloat16, device="cuda"))
    if gated and isinstance(config, SplitKConfig):
        gated_linear(x, w, config)
    else:
        product(x, w, config)
