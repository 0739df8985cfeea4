"""Device time of every kernel of the Triton backend, beside what the card allows.

    python -m benchmarks.kernels [--only decode runs prefill chunk linear sample] [--block-size 16]

Calls are captured into a graph and rotate over buffers that its cache cannot hold. A table for
people; the last line is one JSON object. Limits: bytes at the card's read bandwidth or flops at its
dense rate, whichever takes longer (benchmarks.measures.limits).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F

from atom.model_ops.activations import Activation
from atom.model_ops.backends import resolve_ops
from atom.model_ops.backends.interface import LogitFilters, Ops, SamplingTensors
from atom.model_ops.backends.op_case import OpCase
from atom.model_ops.backends.pinned_ring import empty_ring
from atom.model_ops.backends.triton_ops.attention.benchmark_cases import (
    AttentionCase,
    attention_case,
)
from atom.model_ops.backends.triton_ops.timing import copies_beyond_cache, graph_microseconds
from atom.model_ops.slots import SlotSampling, SlotTensors
from atom.model_ops.values import (
    AttentionShape,
    LayerCache,
    LinearWeight,
    NormWeight,
    Rotary,
    Stream,
)
from atom.utils.forward_context import AttentionMetaData, DecodeRuns
from benchmarks.measures.limits import H200

_DTYPE = torch.bfloat16
_HEADS = {"0.6b": (16, 8), "8b": (32, 8)}
_MATRICES = {
    "0.6b": ((4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072), (151936, 1024)),
    "8b": ((6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288), (151936, 4096)),
}


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the report. moved_bytes and flops are the least that the operation needs."""

    kernel: str
    case: str
    microseconds: float
    moved_bytes: int
    flops: int = 0

    @property
    def limit_share(self) -> float:
        limit = max(self.moved_bytes / H200.bytes_per_second, self.flops / H200.flops_per_second)
        return limit * 1e6 / self.microseconds

    def text(self) -> str:
        rate = f"{self.moved_bytes / self.microseconds / 1e6:7.2f} TB/s"
        if self.flops / H200.flops_per_second > self.moved_bytes / H200.bytes_per_second:
            rate = f"{self.flops / self.microseconds / 1e6:7.0f} TFLOP/s"
        return (
            f"{self.kernel:<20} {self.case:<34} {self.microseconds:9.2f} µs {rate:>16} "
            f"{self.limit_share:6.1%}"
        )


def random(*size: int) -> torch.Tensor:
    return torch.randn(size, dtype=_DTYPE, device="cuda")


def decode(ops: Ops, block_size: int) -> Iterator[Row]:
    draw = torch.Generator().manual_seed(0)
    for model, heads in _HEADS.items():
        batches = {f"{rows} × 1024": [1024] * rows for rows in (1, 8, 64, 256)}
        ragged = torch.randint(100, 1900, (256,), generator=draw).tolist()
        batches["256 × 100…1900"] = ragged
        batches["64 × 100…1900"] = ragged[:64]
        batches["1 × 4096"] = [4096]
        for name, contexts in batches.items():
            copies = copies_beyond_cache(sum(contexts) * 8 * 128 * 4, most=32)
            case = attention_case(
                contexts, [1] * len(contexts), heads=heads, block_size=block_size,
                max_context=4352, copies=copies,
            )  # fmt: skip
            yield attention_row(ops, case, "decode attention", f"{model} {name}")


def runs(ops: Ops, block_size: int) -> Iterator[Row]:
    """Four rows of each sequence, by themselves and together; keys are in the cache."""
    for sequences, context in ((16, 1024), (64, 1024), (16, 8192), (64, 8192)):
        copies = copies_beyond_cache(sequences * context * 8 * 128 * 4, most=8)
        case = attention_case(
            [context] * sequences, [4] * sequences, heads=_HEADS["8b"], block_size=block_size,
            max_context=context + 256, copies=copies,
        )  # fmt: skip
        for name, step in (("alone", _decodes(case)), ("together", _in_runs(case))):
            calls = [
                partial(ops.paged_attention, case.q, case.shape, cache, step)
                for cache in case.caches
            ]
            took = graph_microseconds(calls)
            rows = f"{sequences} × 4 rows at {context}, {name}"
            yield Row("decode attention", rows, took, case.kv_bytes, case.flops)


def _decodes(case: AttentionCase) -> AttentionMetaData:
    """The case's queries as decodes, a row each."""
    step = case.metadata
    counts = step.query_starts.diff()
    row = torch.repeat_interleave(torch.arange(len(counts), device="cuda"), counts)
    tokens = torch.arange(len(row), device="cuda")
    contexts = step.context_lens[row] - step.query_starts[row + 1] + 1 + tokens
    return replace(
        step,
        query_starts=torch.arange(len(row) + 1, dtype=torch.int32, device="cuda"),
        context_lens=contexts.to(torch.int32),
        block_tables=step.block_tables[row],
        num_decodes=len(row),
        max_query_len=1,
        even_contexts=False,
        prompts=replace(case.metadata.prompts, equal=()),
    )


def _in_runs(case: AttentionCase) -> AttentionMetaData:
    runs = DecodeRuns(case.metadata.query_starts, case.metadata.max_query_len)
    return replace(_decodes(case), runs=runs)


def prefill(ops: Ops, block_size: int) -> Iterator[Row]:
    for model, heads in _HEADS.items():
        batches = {
            "4 × 4096": ([4096] * 4, [4096] * 4),
            "16 × 1024": ([1024] * 16, [1024] * 16),
            "2048 at 14336": ([16384], [2048]),
            "100…1024, 29 rows": ([100 + 32 * i for i in range(29)],) * 2,
        }
        for name, (contexts, queries) in batches.items():
            case = attention_case(contexts, queries, heads=heads, block_size=block_size)
            yield attention_row(ops, case, "prefill attention", f"{model} {name}")
    case = attention_case([4096] * 4, [4096] * 4, heads=(16, 8), block_size=256)
    yield attention_row(ops, case, "prefill attention", "0.6b 4 × 4096, blocks of 256")


def chunk(ops: Ops, block_size: int) -> Iterator[Row]:
    """Chunks behind a history, whose keys are in the cache: by the paged kernel, and by the library
    in pieces where it has the operation."""
    sizes = ((16_384, 16_384), (32_767, 16_383), (16_384, 4096), (49_152, 2048), (49_152, 16_384))
    for model, heads in _HEADS.items():
        for history, tokens in sizes:
            case = attention_case([history + tokens], [tokens], heads=heads, block_size=block_size)
            (cache,) = case.caches
            whole = replace(case.metadata, prompts=replace(case.metadata.prompts, chunks=()))
            for name, step in (("paged", whole), ("pieces", case.metadata)):
                call = partial(ops.paged_attention, case.q, case.shape, cache, step)
                at = f"{model} {tokens} at {history}, {name}"
                yield Row("chunk", at, graph_microseconds([call]), case.kv_bytes, case.flops)


def attention_row(ops: Ops, case: AttentionCase, kernel: str, name: str) -> Row:
    """Norms, rotation and the store of new keys and values included."""
    calls = [
        partial(ops.attention, case.qkv, case.shape, case.rotary, cache, case.metadata)
        for cache in case.caches
    ]
    return Row(kernel, name, graph_microseconds(calls), case.kv_bytes, case.flops)


def linear(ops: Ops) -> Iterator[Row]:
    for model, matrices in _MATRICES.items():
        for outputs, inner in matrices:
            size = outputs * inner * 2
            weights = [random(outputs, inner) for _ in range(copies_beyond_cache(size, most=64))]
            for tokens in (1, 2, 4, 8, 16, 64, 256):
                x = random(tokens, inner)
                for kernel, product in (("linear", ops.linear), ("  library", library)):
                    if kernel != "linear" and tokens > 16:
                        continue
                    calls = [partial(product, x, LinearWeight(weight)) for weight in weights]
                    name = f"{model} {outputs}×{inner}, {tokens} tokens"
                    flops = 2 * tokens * outputs * inner
                    yield Row(kernel, name, graph_microseconds(calls), size, flops)


def library(x: torch.Tensor, w: LinearWeight) -> torch.Tensor:
    return F.linear(x, w.data)


def sample(ops: Ops) -> Iterator[Row]:
    vocab = 151936
    for rows in (1, 64, 256):
        for temperature in (0.0, 0.6):
            logits = [random(rows, vocab) for _ in range(copies_beyond_cache(rows * vocab * 2, 32))]
            sampling = SamplingTensors(
                temperature=torch.full((rows,), temperature, device="cuda"),
                seed=torch.arange(rows, device="cuda"),
                position=torch.arange(rows, device="cuda"),
            )
            calls = [partial(ops.sample, each, sampling) for each in logits]
            name = f"{rows} rows, temperature {temperature}"
            yield Row("sample", name, graph_microseconds(calls), rows * vocab * 2)


def filter_logits(ops: Ops) -> Iterator[Row]:
    """The limits that chat models ship with, and a top-p alone; logits in float32."""
    vocab = 151936
    for rows in (1, 64):
        for top_k in (20, vocab):
            logits = [random(rows, vocab).float() for _ in range(4)]
            filters = LogitFilters(
                temperature=torch.full((rows,), 0.6, device="cuda"),
                top_k=torch.full((rows,), top_k, device="cuda"),
                top_p=torch.full((rows,), 0.95, device="cuda"),
                min_p=torch.zeros(rows, device="cuda"),
                candidates=top_k,
                any_top_p=True,
                any_min_p=False,
            )
            calls = [partial(ops.filter_logits, each, filters) for each in logits]
            name = f"{rows} rows, top-p 0.95" + (", top-k 20" if top_k == 20 else "")
            yield Row("filter_logits", name, graph_microseconds(calls), rows * vocab * 4)


def token_ops(ops: Ops) -> Iterator[Row]:
    for model, hidden, inner, heads in (
        ("0.6b", 1024, 3072, (16, 8)),
        ("8b", 4096, 12288, (32, 8)),
    ):
        norm = NormWeight(random(hidden), 1e-6)
        for tokens in (1, 64, 256, 16384):
            name = f"{model} {tokens} tokens"
            streams = [
                Stream(random(tokens, hidden)).plus(random(tokens, hidden)) for _ in range(24)
            ]
            calls = [partial(ops.norm, stream, norm) for stream in streams]
            moved = tokens * hidden * 2 * 4
            yield Row("norm", name, graph_microseconds(calls), moved)
            gates = [random(tokens, 2 * inner) for _ in range(8)]
            gate_calls = [partial(ops.act_and_mul, x, Activation.SILU) for x in gates]
            moved = tokens * inner * 2 * 3
            yield Row("act_and_mul", name, graph_microseconds(gate_calls), moved)
            moved = tokens * (heads[0] + 2 * heads[1]) * 128 * 2 * 2
            yield Row(
                "qk_norm_rope_store", name, graph_microseconds(rope(ops, tokens, heads)), moved
            )


def rope(ops: Ops, tokens: int, heads: tuple[int, int]) -> list[Callable[[], torch.Tensor]]:
    size = (tokens // 16 + 1, 16, heads[1], 128)
    cache, norm = LayerCache(random(*size), random(*size)), NormWeight(random(128), 1e-6)
    cos_sin = torch.randn(4096, 128, device="cuda")
    positions = torch.randint(0, 4096, (tokens,), device="cuda")
    rotary = Rotary(cos_sin, positions, norm, norm)
    slots = torch.randperm(size[0] * 16, device="cuda")[:tokens]
    shape = AttentionShape(heads[0], heads[1], 128, 128**-0.5)
    return [
        partial(
            ops.qk_norm_rope_store, random(tokens, (heads[0] + 2 * heads[1]) * 128), shape, rotary,
            cache, slots,
        )
        for _ in range(8)
    ]  # fmt: skip


def decode_state(ops: Ops) -> Iterator[Row]:
    slots, max_blocks = 256, 272
    state = SlotTensors(
        last_token=torch.zeros(slots + 1, dtype=torch.int64, device="cuda"),
        num_computed=torch.full((slots + 1,), 1000, device="cuda"),
        block_tables=torch.zeros((slots + 1, max_blocks), dtype=torch.int32, device="cuda"),
        sampling=SlotSampling(
            temperature=torch.zeros(slots + 1, device="cuda"),
            seed=torch.zeros(slots + 1, dtype=torch.int64, device="cuda"),
            top_k=torch.zeros(slots + 1, dtype=torch.int64, device="cuda"),
            top_p=torch.ones(slots + 1, device="cuda"),
            min_p=torch.zeros(slots + 1, device="cuda"),
        ),
    )
    ring = empty_ring(state)
    received = torch.zeros(slots, dtype=torch.int64, device="cuda")
    took = graph_microseconds([partial(ops.receive_step, ring, received, state)])
    yield Row("receive_step", f"{slots} slots", took, slots * 24)
    for rows in (1, 256):
        at = torch.arange(rows, device="cuda")
        tokens = torch.zeros(rows, dtype=torch.int64, device="cuda")
        moved = rows * 63 * 4 * 2
        took = graph_microseconds([partial(ops.prepare_decode, at, state, 16)])
        yield Row("prepare_decode", f"{rows} rows", took, moved)
        # Counts its rows on and on: only the time is of interest here.
        took = graph_microseconds([partial(ops.commit_tokens, at, tokens, state, ring)])
        yield Row("commit_tokens", f"{rows} rows", took, rows * 24)


def main() -> int:
    parser = argparse.ArgumentParser(description="Device time of the Triton kernels.")
    names = ("decode", "runs", "prefill", "chunk", "linear", "sample", "filters", "token", "state")
    parser.add_argument("--only", choices=names, nargs="+", default=names)
    parser.add_argument("--block-size", type=int, default=16)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("error: kernels are timed on a GPU, and torch sees none here", file=sys.stderr)
        return 1
    ops = resolve_ops("cuda", OpCase(dtype=_DTYPE, kv_dtype=_DTYPE), "triton").ops
    groups: dict[str, Callable[[], Iterator[Row]]] = {
        "decode": lambda: decode(ops, args.block_size),
        "runs": lambda: runs(ops, args.block_size),
        "prefill": lambda: prefill(ops, args.block_size),
        "chunk": lambda: chunk(ops, args.block_size),
        "linear": lambda: linear(ops),
        "sample": lambda: sample(ops),
        "filters": lambda: filter_logits(ops),
        "token": lambda: token_ops(ops),
        "state": lambda: decode_state(ops),
    }
    rows = []
    for name in args.only:
        for row in groups[name]():
            print(row.text(), flush=True)
            rows.append(row)
    result = [{**asdict(row), "limit_share": round(row.limit_share, 4)} for row in rows]
    print(json.dumps({"device": torch.cuda.get_device_name(), "kernels": result}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
