"""Device time of sparse latent attention, part by part: DeepSeek-V3.2's sizes, bfloat16.

    python -m benchmarks.sparse_mla_kernels [--heads 128] [--block-size 16]

As benchmarks.mla_kernels measures, and with its table. Scoring and selecting are one call, whose
limit is the indexer's keys read once or its products' time; attention's is its selected entries.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial

import torch

from atom.model_ops.backends import resolve_ops
from atom.model_ops.backends.interface import Ops
from atom.model_ops.backends.op_case import LayerShapes, OpCase
from atom.model_ops.backends.triton_ops.attention.benchmark_cases import attention_case
from atom.model_ops.backends.triton_ops.timing import copies_beyond_cache, graph_microseconds
from atom.model_ops.index_values import IndexCache, IndexShape, IndexTokens
from atom.model_ops.values import LatentCache, LatentTokens, LinearWeight, Rotary
from benchmarks.kernels import Row, random
from benchmarks.mla_kernels import latent_shape

_DTYPE = torch.bfloat16
INDEX = IndexShape(num_heads=64, dim=128, rope_dim=64, top_k=2048)
CASES = {
    "1 × 131072": ([131072], [1]),
    "8 × 32768": ([32768] * 8, [1] * 8),
    "64 × 8192": ([8192] * 64, [1] * 64),
    "64 × 1024 of 32768": ([1024] * 64, [1] * 64),
    "2048 at 30720": ([32768], [2048]),
}
_LONGEST = 32768  # that a captured step is made for


def select_row(
    name: str, ops: Ops, contexts: Sequence[int], queries: Sequence[int], block_size: int
) -> Row:
    case = attention_case(
        contexts, queries, heads=(1, 1), head_dim=INDEX.dim, block_size=block_size,
        max_context=_LONGEST, copies=copies_beyond_cache(sum(contexts) * INDEX.dim * 2, most=32),
    )  # fmt: skip
    tokens = sum(queries)
    asked = IndexTokens(
        random(tokens, INDEX.num_heads, INDEX.dim),
        random(tokens, INDEX.dim),
        random(tokens, INDEX.num_heads),
    )
    table = case.rotary.cos_sin[:, : INDEX.rope_dim].contiguous()
    rotary = Rotary(table, case.rotary.positions)
    calls = [
        partial(
            ops.select_tokens, asked, INDEX, rotary, IndexCache(cache.k.squeeze(2)), case.metadata
        )
        for cache in case.caches
    ]
    pairs = zip(contexts, queries, strict=True)
    seen = sum(count * context - count * (count - 1) // 2 for context, count in pairs)
    return Row(
        kernel="index selection",
        case=name,
        microseconds=graph_microseconds(calls),
        moved_bytes=sum(contexts) * INDEX.dim * _DTYPE.itemsize,
        flops=2 * seen * INDEX.num_heads * INDEX.dim,
    )


def attend_row(
    name: str, ops: Ops, contexts: Sequence[int], queries: Sequence[int], heads: int
) -> Row:
    shape, tokens = latent_shape(heads), sum(queries)
    slots = max(sum(contexts), 2 * INDEX.top_k)
    entries = random(slots, 1, shape.entry_dim)
    reached = [
        min(context, INDEX.top_k)
        for context, n in zip(contexts, queries, strict=True)
        for _ in range(n)
    ]
    selected = torch.full((tokens, INDEX.top_k), -1, device="cuda")
    for token, count in enumerate(reached):
        selected[token, :count] = torch.randint(0, slots, (count,), device="cuda")
    asked = LatentTokens(random(tokens, heads, shape.head_dim), random(tokens, shape.entry_dim))
    up = LinearWeight(random(heads * (shape.nope_dim + shape.value_dim), shape.kv_rank))
    call = partial(ops.sparse_mla_attention, asked, shape, up, LatentCache(entries), selected)
    return Row(
        kernel="selected attention",
        case=f"{heads} heads, {name}",
        microseconds=graph_microseconds([call]),
        moved_bytes=sum(reached) * shape.entry_dim * _DTYPE.itemsize,
        flops=2 * heads * sum(reached) * (shape.entry_dim + shape.kv_rank),
    )


def rows(ops: Ops, heads: int, block_size: int) -> Iterator[Row]:
    for name, (contexts, queries) in CASES.items():
        yield select_row(name, ops, contexts, queries, block_size)
        yield attend_row(name, ops, contexts, queries, heads)


def main() -> int:
    parser = argparse.ArgumentParser(description="Device time of sparse latent attention.")
    parser.add_argument("--heads", type=int, default=128)
    parser.add_argument("--block-size", type=int, default=16)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("error: kernels are timed on a GPU, and torch sees none here", file=sys.stderr)
        return 1
    case = OpCase(
        dtype=_DTYPE,
        kv_dtype=_DTYPE,
        layers=LayerShapes(latent=(latent_shape(args.heads),), index=(INDEX,)),
    )
    ops = resolve_ops("cuda", case, "triton").ops
    found = []
    for row in rows(ops, args.heads, args.block_size):
        print(row.text(), flush=True)
        found.append({**asdict(row), "limit_share": round(row.limit_share, 4)})
    print(json.dumps({"device": torch.cuda.get_device_name(), "kernels": found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
