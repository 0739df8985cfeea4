"""Measure the kernels' configurations on this card and keep the best: never while serving.

    python -m atom.model_ops.backends.triton_ops.tune [--shape OUTxIN] [--head-dim D]

Candidates are compiled by several processes first, then timed one by one on weights and caches too
large for the card's cache. The result goes to the cache folder, where the next start finds it;
--output writes it elsewhere, which is how the shipped tables were made.
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
from atom.model_ops.backends.triton_ops.skinny_linear import skinny_linear
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
)

Config = TypeVar("Config", SkinnyConfig, DecodeConfig, PrefillConfig)

# Qwen3-0.6B, Qwen3-8B, Llama-3.1-8B: qkv, o, gate_up, down, head.
_KNOWN_SHAPES = (
    "4096x1024", "1024x2048", "6144x1024", "1024x3072", "151936x1024",
    "6144x4096", "4096x4096", "24576x4096", "4096x12288", "151936x4096",
    "28672x4096", "4096x14336", "128256x4096",
)  # fmt: skip
_DECODE_BATCHES = ((1, 8, 32, 64), (128, 256))
# A skinny kernel must be this much faster than the library to be chosen.
_WORTH = 0.98


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


def decode_candidates() -> Iterator[DecodeConfig]:
    for block_n, warps, stages, programs in itertools.product(
        (32, 64, 128), (4,), (2, 3, 4), (8, 16)
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
    shapes: Sequence[tuple[int, int]], dtype: torch.dtype, report: Callable[[str], None]
) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for outputs, inner in shapes:
        count = copies_beyond_cache(outputs * inner * dtype.itemsize, most=64)
        weights = [torch.randn(outputs, inner, dtype=dtype, device="cuda") for _ in range(count)]
        for tokens in TOKEN_BUCKETS:
            x = torch.randn(tokens, inner, dtype=dtype, device="cuda")
            library = graph_microseconds([partial(F.linear, x, weight) for weight in weights])
            ours, chosen = best(
                [c for c in skinny_candidates(tokens) if inner % (c.block_k * c.split_k) == 0],
                lambda config, x=x, weights=weights: graph_microseconds(  # type: ignore[misc]
                    [partial(skinny_linear, x, weight, None, config) for weight in weights], 3
                ),
            )[0]
            wins = ours < library * _WORTH
            key = tuning.linear_key(dtype, outputs, inner, tokens)
            table[key] = asdict(chosen) if wins else None
            report(f"  {key:<32} library {library:7.2f} µs   skinny {ours:7.2f} µs   {chosen}")
        del weights
    return table


def tune_attention(head_dim: int, report: Callable[[str], None]) -> dict[str, dict[str, Any]]:
    decode: dict[str, Any] = {}
    for batches in _DECODE_BATCHES:
        timed = best(list(decode_candidates()), measure_decode(head_dim, batches))
        decode[tuning.decode_key(head_dim, 2, batches[0])] = asdict(timed[0][1])
        for cost, config in timed[:5]:
            report(f"  decode {batches} {cost:8.2f} µs (geometric mean)  {config}")
    prefills = best(list(prefill_candidates()), measure_prefill(head_dim))
    for cost, prefill in prefills[:5]:
        report(f"  prefill {cost:8.2f} µs (geometric mean)  {prefill}")
    key = tuning.attention_key(head_dim, 2)
    return {"decode": decode, "prefill": {key: asdict(prefills[0][1])}}


Job = tuple[Any, int]  # a configuration, and tokens or head size


def _compile(job: Job) -> None:
    """Fill Triton's cache on disk; a configuration that cannot be built fails again, with its
    message, when it is timed."""
    config, size = job
    try:
        if isinstance(config, SkinnyConfig):
            x = torch.zeros(size, 4096, dtype=torch.bfloat16, device="cuda")
            weight = torch.zeros(4096, 4096, dtype=torch.bfloat16, device="cuda")
            skinny_linear(x, weight, None, config)
        else:
            compile_attention(config, size)
        torch.cuda.synchronize()
    except (OutOfResources, triton.CompilationError, RuntimeError):
        return


def precompile(head_dims: Sequence[int], workers: int) -> None:
    jobs: list[Job] = [
        (config, tokens) for tokens in TOKEN_BUCKETS for config in skinny_candidates(tokens)
    ]
    for head_dim in head_dims:
        jobs += [(config, head_dim) for config in decode_candidates()]
        jobs += [(config, head_dim) for config in prefill_candidates()]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        list(pool.map(_compile, jobs, chunksize=4))


def main() -> int:
    parser = argparse.ArgumentParser(description="Tune the Triton kernels for this card.")
    parser.add_argument("--shape", action="append", metavar="OUTxIN", help="of a weight matrix")
    parser.add_argument("--head-dim", type=int, action="append")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--workers", type=int, default=8)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("error: tuning measures a GPU, and torch sees none here", file=sys.stderr)
        return 1
    dtype = torch.bfloat16
    device_name = torch.cuda.get_device_name()
    result: dict[str, Any] = {
        "device": device_name,
        "triton": triton.__version__,
        "source": tuning.source_hash(),
    }
    head_dims = args.head_dim or (64, 128)
    precompile(head_dims, args.workers)
    for head_dim in head_dims:
        for name, table in tune_attention(head_dim, print).items():
            result.setdefault(name, {}).update(table)
    shapes = [_shape(text) for text in args.shape or _KNOWN_SHAPES]
    result["linear"] = tune_linear(shapes, dtype, print)
    path = args.output or tuning.cached_path(device_name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"wrote {path}")
    return 0


def _shape(text: str) -> tuple[int, int]:
    outputs, _, inner = text.partition("x")
    return int(outputs), int(inner)


if __name__ == "__main__":
    sys.exit(main())
