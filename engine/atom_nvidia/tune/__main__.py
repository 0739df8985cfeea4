"""Measure the kernels' configurations on this card and keep the best: never while serving.

    python -m atom.model_ops.backends.triton_ops.tune [--only PART] [--shape OUTxIN] [--head-dim D]

Candidates are compiled by several processes first, then timed one by one on weights and caches too
large for the card's cache. The result goes to the cache folder, where the next start finds it;
--output writes it elsewhere, which is how the shipped tables were made. What a file already holds
and this run does not measure stays.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
import triton
from triton.runtime.errors import OutOfResources

from atom.model_ops.backends.triton_ops.compile import tuning
from atom.model_ops.backends.triton_ops.compile.tuning import (
    TOKEN_BUCKETS,
    SkinnyConfig,
    SplitKConfig,
)
from atom_nvidia.tune.attention import (
    compile_attention,
    decode_candidates,
    prefill_candidates,
    tune_decode,
    tune_prefill,
)
from atom_nvidia.tune.products import (
    ADDEND_BUCKETS,
    KNOWN_ADDENDS,
    KNOWN_GATED,
    KNOWN_SHAPES,
    compile_product,
    linear_candidates,
    split_candidates,
    tune_addend,
    tune_gated,
    tune_linear,
)

PARTS = ("decode", "prefill", "linear", "addend", "gated")

Job = tuple[Any, int]  # a configuration (and the operation's name), and tokens or head size


def _compile(job: Job) -> None:
    """Fill Triton's cache on disk; a configuration that cannot be built fails again, with its
    message, when it is timed."""
    config, size = job
    try:
        if isinstance(config, tuple):
            compile_product(config[0], size, gated=True)
        elif isinstance(config, SkinnyConfig | SplitKConfig):
            compile_product(config, size, gated=False)
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
        jobs += [(config, tokens) for tokens in buckets for config in linear_candidates(tokens)]
    if "addend" in parts:
        # The number of splits is no constant of the kernel, but for one: the parts' dtype.
        jobs += [(c, tokens) for tokens in ADDEND_BUCKETS for c in split_candidates(tokens, (2,))]
    if "gated" in parts:
        jobs += [
            ((c, "gated"), tokens)
            for tokens in ADDEND_BUCKETS
            for c in split_candidates(tokens, (1,), gated=True)
        ]
    for head_dim in head_dims:
        jobs += [(config, head_dim) for config in decode_candidates() if "decode" in parts]
        jobs += [(config, head_dim) for config in prefill_candidates() if "prefill" in parts]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        list(pool.map(_compile, jobs, chunksize=4))


def tune(args: argparse.Namespace, report: Callable[[str], None]) -> dict[str, dict[str, Any]]:
    """Return the measurements by part, in the form of the tables' file."""
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
        shapes = [_shape(text) for text in args.shape or KNOWN_SHAPES]
        result["linear"] = tune_linear(shapes, buckets, dtype, report)
    if "gated" in args.only:
        shapes = [_shape(text) for text in args.shape or KNOWN_GATED]
        result["gated"] = tune_gated(shapes, dtype, report)
    if "addend" in args.only:
        shapes = [_shape(text) for text in args.shape or KNOWN_ADDENDS]
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
