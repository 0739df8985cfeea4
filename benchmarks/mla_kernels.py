"""Device time of latent attention, beside what the card allows: DeepSeek's sizes, bfloat16.

    python -m benchmarks.mla_kernels [--heads 16 128] [--block-size 16] [--fp8]

As benchmarks.kernels measures, and with its table: calls are captured into a graph and rotate over
caches. The products that fold queries and unfold results are part of a call; a decode's limit is
its cached entries read once, or its products' time. --fp8: of a cache in fp8.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import torch

from atom.model_ops.backends import resolve_ops
from atom.model_ops.backends.interface import Ops
from atom.model_ops.backends.op_case import LayerShapes, OpCase
from atom.model_ops.backends.triton_ops.attention.benchmark_cases import attention_case
from atom.model_ops.backends.triton_ops.timing import copies_beyond_cache, graph_microseconds
from atom.model_ops.quantised.cached_heads import quantise_heads
from atom.model_ops.values import LatentCache, LatentShape, LatentTokens, LinearWeight
from atom.utils.device import native_fp8
from benchmarks.kernels import Row, random

_DTYPE = torch.bfloat16
DECODES = {
    "1 × 4096": [4096],
    "8 × 1024": [1024] * 8,
    "64 × 1024": [1024] * 64,
    "64 × 8192": [8192] * 64,
    "256 × 1024": [1024] * 256,
}
PROMPTS = {
    "4 × 4096": ([4096] * 4, [4096] * 4),
    "16 × 1024": ([1024] * 16, [1024] * 16),
    "2048 at 14336": ([16384], [2048]),
}


def latent_shape(heads: int) -> LatentShape:
    """DeepSeek-V2-Lite's with 16 heads, V3's with 128."""
    return LatentShape(
        num_heads=heads, nope_dim=128, rope_dim=64, kv_rank=512, value_dim=128, scale=192**-0.5
    )


def latent_cache(entries: torch.Tensor, shape: LatentShape, *, fp8: bool) -> LatentCache:
    """A cache of entries [N, S, entry]."""
    if not fp8:
        return LatentCache(entries)
    latents, keys = entries[..., : shape.kv_rank], entries[..., shape.kv_rank :]
    codes, scale = quantise_heads(latents, native_fp8(entries.device) or torch.float8_e4m3fn)
    return LatentCache(codes, keys.contiguous(), scale)


@dataclass(frozen=True, slots=True)
class Kept:
    """Describe how a cache holds its tokens."""

    block_size: int
    fp8: bool

    def entry_bytes(self, shape: LatentShape) -> int:
        """Count the bytes of a token: in fp8 its latent's codes with their scale, and the rotated
        key."""
        if self.fp8:
            return shape.kv_rank + 4 + shape.rope_dim * _DTYPE.itemsize
        return shape.entry_dim * _DTYPE.itemsize


def microseconds(
    ops: Ops, shape: LatentShape, contexts: Sequence[int], queries: Sequence[int], kept: Kept
) -> float:
    """Measure one call, over rows of these contexts whose last tokens are queries."""
    # Keys of one head of the entries' size are entries.
    case = attention_case(
        contexts, queries, heads=(1, 1), head_dim=shape.entry_dim, block_size=kept.block_size,
        copies=copies_beyond_cache(sum(contexts) * kept.entry_bytes(shape), most=32),
    )  # fmt: skip
    tokens = LatentTokens(
        random(sum(queries), shape.num_heads, shape.head_dim), random(sum(queries), shape.entry_dim)
    )
    up = LinearWeight(random(shape.num_heads * (shape.nope_dim + shape.value_dim), shape.kv_rank))
    calls = [
        partial(
            ops.mla_attention, tokens, shape, up,
            latent_cache(cache.k.squeeze(2), shape, fp8=kept.fp8), case.metadata,
        )
        for cache in case.caches
    ]  # fmt: skip
    return graph_microseconds(calls)


def _flops(shape: LatentShape, contexts: Sequence[int], queries: Sequence[int]) -> int:
    """Count the operations of the cheaper form of each row."""
    up = shape.kv_rank * (shape.nope_dim + shape.value_dim)
    total = 0
    for context, count in zip(contexts, queries, strict=True):
        seen = count * context - count * (count - 1) // 2
        absorbed = count * up + seen * (shape.entry_dim + shape.kv_rank)
        unfolded = context * up + seen * (shape.head_dim + shape.value_dim)
        total += 2 * shape.num_heads * min(absorbed, unfolded)
    return total


def rows(ops: Ops, heads: int, kept: Kept) -> Iterator[Row]:
    shape = latent_shape(heads)
    batches = {name: (contexts, [1] * len(contexts)) for name, contexts in DECODES.items()}
    for kind, cases in (("latent decode", batches), ("latent prefill", PROMPTS)):
        for name, (contexts, queries) in cases.items():
            yield Row(
                kernel=kind,
                case=f"{heads} heads, {name}",
                microseconds=microseconds(ops, shape, contexts, queries, kept),
                moved_bytes=sum(contexts) * kept.entry_bytes(shape),
                flops=_flops(shape, contexts, queries),
            )


def main() -> int:
    parser = argparse.ArgumentParser(description="Device time of latent attention.")
    parser.add_argument("--heads", type=int, nargs="+", default=[16, 128])
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--fp8", action="store_true")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("error: kernels are timed on a GPU, and torch sees none here", file=sys.stderr)
        return 1
    shapes = tuple(latent_shape(heads) for heads in args.heads)
    kept = Kept(args.block_size, args.fp8)
    kv_dtype = torch.float8_e4m3fn if kept.fp8 else _DTYPE
    case = OpCase(dtype=_DTYPE, kv_dtype=kv_dtype, layers=LayerShapes(latent=shapes))
    ops = resolve_ops("cuda", case, "triton").ops
    found = []
    for heads in args.heads:
        for row in rows(ops, heads, kept):
            print(row.text(), flush=True)
            found.append({**asdict(row), "limit_share": round(row.limit_share, 4)})
    print(json.dumps({"device": torch.cuda.get_device_name(), "kernels": found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
