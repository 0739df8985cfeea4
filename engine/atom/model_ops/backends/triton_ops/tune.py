"""Measure the kernels' configurations on this card and keep the best: never while serving.

    python -m atom.model_ops.backends.triton_ops.tune [--only PART] [--shape OUTxIN] [--head-dim D]

Candidates are compiled by several processes first, then timed one by one on weights and caches too
large for the card's cache. The result goes to the cache folder, where the next start finds it;
--output writes it elsewhere, which is how the shipped tables were made. What a file already holds
and this run does not measure stays.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
import triton
from triton.runtime.errors import OutOfResources

from atom.errors import ConfigError
from atom.model_ops.backends.triton_ops import tuning
from atom.model_ops.backends.triton_ops.activation import silu_and_mul
from atom.model_ops.backends.triton_ops.linear import linear
from atom.model_ops.backends.triton_ops.norms import add_rms_norm
from atom.model_ops.backends.triton_ops.skinny_linear import skinny_linear
from atom.model_ops.backends.triton_ops.split_linear import gated_linear, split_linear
from atom.model_ops.backends.triton_ops.timing import copies_beyond_cache, graph_microseconds
from atom.model_ops.backends.triton_ops.tune_attention import (
    compile_attention,
    measure_decode,
    measure_prefill,
)
from atom.model_ops.backends.triton_ops.tuning import (
    TOKEN_BUCKETS,
    DecodeConfig,
    PrefillConfig,
    SkinnyConfig,
    SplitConfig,
)

Config = TypeVar("Config", bound=SkinnyConfig | SplitConfig | DecodeConfig | PrefillConfig)

# Qwen3-0.6B, Qwen3-8B, Llama-3.1-8B: qkv, o, gate_up, down, head.
_KNOWN_SHAPES = (
    "4096x1024", "1024x2048", "6144x1024", "1024x3072", "151936x1024",
    "6144x4096", "4096x4096", "24576x4096", "4096x12288", "151936x4096",
    "28672x4096", "4096x14336", "128256x4096",
)  # fmt: skip
# Of these, the ones whose product a norm adds to the residual: o, down.
_KNOWN_ADDENDS = ("1024x2048", "1024x3072", "4096x4096", "4096x12288", "4096x14336")
# And gates with ups.
_KNOWN_GATED = ("6144x1024", "24576x4096", "28672x4096")
_DECODE_BATCHES = ((1, 8, 32), (64, 96), (128, 256))
# A kernel of ours must be this much faster than the library to be chosen.
_WORTH = 0.98
# Up to this many tokens the skinny kernels beat the tiles of split_linear.py.
_SKINNY_TOKENS = 16
# One token has its norm fused with the product that follows, which takes no parts.
_ADDEND_BUCKETS = tuple(bucket for bucket in TOKEN_BUCKETS if bucket > 1)
# Programs of a product: fewer leave multiprocessors idle, more only cost.
_PROGRAMS = range(48, 1100)
PARTS = ("decode", "prefill", "linear", "addend", "gated")


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
) -> Iterator[SplitConfig]:
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
            yield SplitConfig(block_n, block_k, split_k, weights_first, warps, stages, block_t)


def fits(config: SkinnyConfig | SplitConfig, outputs: int, inner: int) -> bool:
    if inner % (config.block_k * config.split_k):
        return False
    if isinstance(config, SkinnyConfig):
        return True
    programs = outputs // config.block_n * config.split_k
    return outputs % config.block_n == 0 and (config.split_k == 1 or programs in _PROGRAMS)


def decode_candidates() -> Iterator[DecodeConfig]:
    for (block_n, warps), stages, programs in itertools.product(
        ((16, 1), (32, 1), (32, 2), (64, 4), (128, 4)), (2, 3, 4), (8, 16)
    ):
        yield DecodeConfig(block_n, warps, stages, programs)


def prefill_candidates() -> Iterator[PrefillConfig]:
    for block_m, block_n, warps, stages in itertools.product(
        (64, 128), (32, 64, 128), (4, 8), (2, 3)
    ):
        for registers in (None,) if torch.version.hip else (None, 128):
            yield PrefillConfig(block_m, block_n, warps, stages, registers)


def best(
    candidates: Sequence[Config], measure: Callable[[Config], float]
) -> list[tuple[float, Config]]:
    """Candidates with their cost, cheapest first; those that the card cannot run are left out."""
    timed: list[tuple[float, Config]] = []
    for candidate in candidates:
        try:
            timed.append((measure(candidate), candidate))
        except (OutOfResources, triton.CompilationError, RuntimeError) as error:
            print(f"    left out {candidate}: {str(error).splitlines()[0]}", file=sys.stderr)
    if not timed:
        raise ConfigError("no candidate configuration runs on this card; see the reasons above")
    return sorted(timed, key=lambda pair: pair[0])


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
            library = graph_microseconds([partial(F.linear, x, weight) for weight in weights])
            candidates = [c for c in _linear_candidates(tokens) if fits(c, outputs, inner)]
            ours, chosen = best(
                candidates,
                lambda config, x=x, weights=weights: graph_microseconds(  # type: ignore[misc]
                    [partial(_product, x, weight, config) for weight in weights], 3
                ),
            )[0]
            wins = ours < library * _WORTH
            key = tuning.linear_key(dtype, outputs, inner, tokens)
            table[key] = asdict(chosen) if wins else None
            report(f"  {key:<32} library {library:7.2f} µs   ours {ours:7.2f} µs   {chosen}")
        del weights
    return table


def tune_addend(
    shapes: Sequence[tuple[int, int]], dtype: torch.dtype, report: Callable[[str], None]
) -> dict[str, Any]:
    """Timed together with the norm that adds up the parts, against the best complete product."""
    table: dict[str, Any] = {}
    for outputs, inner in shapes:
        weights = _weights(outputs, inner, dtype)
        norm = torch.randn(outputs, dtype=dtype, device="cuda")
        for tokens in _ADDEND_BUCKETS:
            x = torch.randn(tokens, inner, dtype=dtype, device="cuda")
            residual = torch.randn(tokens, outputs, dtype=dtype, device="cuda")

            def with_norm(
                weight: torch.Tensor,
                config: SplitConfig | None,
                x: torch.Tensor = x,
                residual: torch.Tensor = residual,
                norm: torch.Tensor = norm,
            ) -> object:
                product = _product(x, weight, config) if config else linear(x, weight, None)
                return add_rms_norm(product, residual, norm, 1e-6)

            complete = graph_microseconds([partial(with_norm, weight, None) for weight in weights])
            candidates = split_candidates(tokens, (2, 4, 8, 16))
            timed = best(
                [c for c in candidates if fits(c, outputs, inner)],
                lambda config, weights=weights, with_norm=with_norm: graph_microseconds(  # type: ignore[misc]
                    [partial(with_norm, weight, config) for weight in weights], 3
                ),
            )
            ours, chosen = timed[0]
            key = tuning.linear_key(dtype, outputs, inner, tokens)
            table[key] = asdict(chosen) if ours < complete * _WORTH else None
            report(f"  {key:<32} complete {complete:7.2f} µs   parts {ours:7.2f} µs   {chosen}")
        del weights
    return table


def tune_gated(
    shapes: Sequence[tuple[int, int]], dtype: torch.dtype, report: Callable[[str], None]
) -> dict[str, Any]:
    """Against the best complete product followed by its activation."""
    table: dict[str, Any] = {}
    for outputs, inner in shapes:
        weights = _weights(outputs, inner, dtype)
        for tokens in _ADDEND_BUCKETS:
            x = torch.randn(tokens, inner, dtype=dtype, device="cuda")
            separate = graph_microseconds(
                [partial(lambda w, x: silu_and_mul(linear(x, w, None)), w, x) for w in weights]
            )
            candidates = split_candidates(tokens, (1,), gated=True)
            ours, chosen = best(
                [c for c in candidates if fits(c, outputs // 2, inner)],
                lambda config, x=x, weights=weights: graph_microseconds(  # type: ignore[misc]
                    [partial(gated_linear, x, weight, None, config) for weight in weights], 3
                ),
            )[0]
            key = tuning.linear_key(dtype, outputs, inner, tokens)
            table[key] = asdict(chosen) if ours < separate * _WORTH else None
            report(f"  {key:<32} separate {separate:7.2f} µs   gated {ours:7.2f} µs   {chosen}")
        del weights
    return table


def _weights(outputs: int, inner: int, dtype: torch.dtype) -> list[torch.Tensor]:
    count = copies_beyond_cache(outputs * inner * dtype.itemsize, most=64)
    return [torch.randn(outputs, inner, dtype=dtype, device="cuda") for _ in range(count)]


def _linear_candidates(tokens: int) -> Iterator[SkinnyConfig] | Iterator[SplitConfig]:
    if tokens <= _SKINNY_TOKENS:
        return skinny_candidates(tokens)
    return split_candidates(tokens, (1,))


def _product(
    x: torch.Tensor, weight: torch.Tensor, config: SkinnyConfig | SplitConfig
) -> torch.Tensor:
    if isinstance(config, SkinnyConfig):
        return skinny_linear(x, weight, None, config)
    return split_linear(x, weight, None, config)


def tune_decode(head_dim: int, report: Callable[[str], None]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for batches in _DECODE_BATCHES:
        timed = best(list(decode_candidates()), measure_decode(head_dim, batches))
        table[tuning.decode_key(head_dim, 2, batches[-1])] = asdict(timed[0][1])
        for cost, config in timed[:5]:
            report(f"  decode {batches} {cost:8.2f} µs (geometric mean)  {config}")
    return table


def tune_prefill(head_dim: int, report: Callable[[str], None]) -> dict[str, Any]:
    timed = best(list(prefill_candidates()), measure_prefill(head_dim))
    for cost, config in timed[:5]:
        report(f"  prefill {cost:8.2f} µs (geometric mean)  {config}")
    return {tuning.attention_key(head_dim, 2): asdict(timed[0][1])}


Job = tuple[Any, int]  # a configuration (and the operation's name), and tokens or head size


def _compile(job: Job) -> None:
    """Fill Triton's cache on disk; a configuration that cannot be built fails again, with its
    message, when it is timed."""
    config, size = job
    try:
        if isinstance(config, SkinnyConfig | SplitConfig | tuple):
            x = torch.zeros(size, 4096, dtype=torch.bfloat16, device="cuda")
            weight = torch.zeros(4096, 4096, dtype=torch.bfloat16, device="cuda")
            if isinstance(config, tuple):
                gated_linear(x, weight, None, config[0])
            else:
                _product(x, weight, config)
        else:
            compile_attention(config, size)
        torch.cuda.synchronize()
    except (OutOfResources, triton.CompilationError, RuntimeError):
        return


def precompile(
    parts: Sequence[str], head_dims: Sequence[int], buckets: Sequence[int], workers: int
) -> None:
    jobs: list[Job] = []
    if "linear" in parts:
        jobs += [(config, tokens) for tokens in buckets for config in _linear_candidates(tokens)]
    if "addend" in parts:
        # The number of splits is no constant of the kernel, but for one: the parts' dtype.
        jobs += [(c, tokens) for tokens in _ADDEND_BUCKETS for c in split_candidates(tokens, (2,))]
    if "gated" in parts:
        jobs += [
            ((c, "gated"), tokens)
            for tokens in _ADDEND_BUCKETS
            for c in split_candidates(tokens, (1,), gated=True)
        ]
    for head_dim in head_dims:
        jobs += [(config, head_dim) for config in decode_candidates() if "decode" in parts]
        jobs += [(config, head_dim) for config in prefill_candidates() if "prefill" in parts]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        list(pool.map(_compile, jobs, chunksize=4))


def tune(args: argparse.Namespace, report: Callable[[str], None]) -> dict[str, dict[str, Any]]:
    """Part → what was measured, in the shape of the tables' file."""
    dtype = torch.bfloat16
    head_dims, buckets = args.head_dim or (64, 128), args.tokens or TOKEN_BUCKETS
    precompile(args.only, head_dims, buckets, args.workers)
    result: dict[str, dict[str, Any]] = {part: {} for part in args.only}
    for head_dim in head_dims:
        if "decode" in args.only:
            result["decode"] |= tune_decode(head_dim, report)
        if "prefill" in args.only:
            result["prefill"] |= tune_prefill(head_dim, report)
    if "linear" in args.only:
        shapes = [_shape(text) for text in args.shape or _KNOWN_SHAPES]
        result["linear"] = tune_linear(shapes, buckets, dtype, report)
    if "gated" in args.only:
        shapes = [_shape(text) for text in args.shape or _KNOWN_GATED]
        result["gated"] = tune_gated(shapes, dtype, report)
    if "addend" in args.only:
        shapes = [_shape(text) for text in args.shape or _KNOWN_ADDENDS]
        result["addend"] = tune_addend(shapes, dtype, report)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description="Tune the Triton kernels for this card.")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--shape", action="append", metavar="OUTxIN", help="of a weight matrix")
    parser.add_argument("--tokens", type=int, action="append", choices=TOKEN_BUCKETS)
    parser.add_argument("--head-dim", type=int, action="append")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--workers", type=int, default=8)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("error: tuning measures a GPU, and torch sees none here", file=sys.stderr)
        return 1
    device_name = torch.cuda.get_device_name()
    path = args.output or tuning.cached_path(device_name)
    result: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for part, table in tune(args, print).items():
        result[part] = result.get(part, {}) | table
    result |= {"device": device_name, "triton": triton.__version__, "source": tuning.source_hash()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"wrote {path}")
    return 0


def _shape(text: str) -> tuple[int, int]:
    outputs, _, inner = text.partition("x")
    return int(outputs), int(inner)


if __name__ == "__main__":
    sys.exit(main())
