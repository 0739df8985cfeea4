"""One GPU, one model shape, random weights: the throughput and latency that the engine is held to.

    python -m benchmarks.gpu --shape qwen3-0.6b --workload nano|decode|prefill|all

Prints a table; the last line is one JSON object. Every figure is also given as a share of what one
card allows (benchmarks.limits), with `--tensor-parallel-size` too. Offline: no server, no
tokenizer, prefix cache off.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from atom.config import KV_CACHE_DTYPES
from atom.sampling_params import SamplingParams
from atom.sizing import KV_ELEMENTS, ONLINE, KvElement
from benchmarks.compiled_kernels import compiled_kernels
from benchmarks.limits import H200, decode_seconds, prefill_tokens_per_second
from benchmarks.nano_workload import nano_requests
from benchmarks.offline_engine import OfflineEngine
from benchmarks.routed_experts import listening, touched
from benchmarks.shapes import SHAPES, write_shape

DECODE_ROWS = (1, 8, 64, 256)
DECODE_CONTEXT = 1024
DECODE_STEPS = 128
PREFILL_PROMPTS, PREFILL_LENGTH = 16, 4096


def nano(engine: OfflineEngine, sampling: SamplingParams, scale: int) -> dict[str, float]:
    """The published workload; with `scale`, its prompts and outputs cut to that fraction."""
    last = engine.config.model.vocab_size - 1
    requests = nano_requests()
    prompts = [
        [min(token, last) for token in request.prompt[: len(request.prompt) // scale]]
        for request in requests
    ]
    outputs = [request.output_tokens // scale for request in requests]
    for prompt, count in zip(prompts, outputs, strict=True):
        engine.add(prompt, replace(sampling, max_tokens=count))
    started = time.perf_counter()
    generated = engine.run()
    seconds = time.perf_counter() - started
    assert generated == sum(outputs)
    return {
        "prompt_tokens": sum(map(len, prompts)),
        "output_tokens": generated,
        "seconds": seconds,
        "output_tokens_per_second": generated / seconds,
        "limit_share": ideal_nano_seconds(engine, prompts, outputs) / seconds,
    }


def ideal_nano_seconds(
    engine: OfflineEngine, prompts: list[list[int]], outputs: list[int]
) -> float:
    """Prefill, then every decode step at the card's limit."""
    facts = engine.config.model.facts
    lengths = np.array([len(prompt) for prompt in prompts], dtype=float)
    counts = np.array(outputs)
    mean = int(lengths.mean())
    total = lengths.sum() / prefill_tokens_per_second(facts, mean, H200)
    for step in range(1, int(counts.max())):
        running = counts > step
        rows = int(running.sum())
        context = float((lengths[running] + step).mean())
        total += decode_seconds(facts, rows, context, H200, kv_element(engine))
    return float(total)


def kv_element(engine: OfflineEngine) -> KvElement:
    return KV_ELEMENTS.get(engine.config.cache.kv_cache_dtype, KvElement(2))


def decode(engine: OfflineEngine, rows: int, sampling: SamplingParams) -> dict[str, float]:
    """Milliseconds per step of `rows` decodes around a context of 1,024 tokens."""
    draw = np.random.default_rng(1)
    warmup = 16
    params = replace(sampling, max_tokens=DECODE_STEPS + warmup + 8)
    length = DECODE_CONTEXT - DECODE_STEPS // 2
    for _ in range(rows):
        engine.add(engine.random_prompt(length, draw), params)
    produced = 0
    with listening() as heard:
        while produced < rows * warmup:  # prompts, then some decodes
            result = engine.step()
            produced += 0 if result is None else len(result.token_ids)
    started, steps = time.perf_counter(), 0
    while steps < DECODE_STEPS:
        result = engine.step()
        steps += result is not None
    milliseconds = (time.perf_counter() - started) / DECODE_STEPS * 1e3
    engine.run()
    facts = engine.config.model.facts
    ideal = decode_seconds(facts, rows, DECODE_CONTEXT, H200, kv_element(engine)) * 1e3
    figures = {"ms_per_step": milliseconds, "limit_share": ideal / milliseconds}
    experts = touched(heard, rows)
    return figures if experts is None else figures | {"experts_touched": experts}


def prefill(engine: OfflineEngine, rounds: int = 3) -> dict[str, float]:
    """Prompt tokens per second of 16 prompts of 4,096 tokens; the median of some rounds."""
    draw = np.random.default_rng(2)
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    rates = []
    for _ in range(rounds + 1):  # the first is a warm-up
        for _ in range(PREFILL_PROMPTS):
            engine.add(engine.random_prompt(PREFILL_LENGTH, draw), params)
        started = time.perf_counter()
        engine.run()
        rates.append(PREFILL_PROMPTS * PREFILL_LENGTH / (time.perf_counter() - started))
    rate = float(np.median(rates[1:]))
    limit = prefill_tokens_per_second(engine.config.model.facts, PREFILL_LENGTH, H200)
    return {"tokens_per_second": rate, "limit_share": rate / limit}


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    engine = OfflineEngine(
        str(write_shape(args.shape, folder)),
        load_dummy=True,
        max_model_len=args.max_model_len,
        max_num_seqs=256,
        max_num_batched_tokens=args.max_num_batched_tokens,
        enable_prefix_caching=False,
        device=args.device,
        backend=args.backend,
        enforce_eager=args.enforce_eager,
        quantization=args.quantization,
        kv_cache_dtype=args.kv_cache_dtype,
        tensor_parallel_size=args.tensor_parallel_size,
    )
    results: dict[str, Any] = {
        "shape": args.shape,
        "device": engine.report.device,
        "tensor_parallel_size": args.tensor_parallel_size,
        "backends": engine.report.backends,
        "graphs": not args.enforce_eager,
        "quantization": args.quantization,
        "kv_cache_dtype": engine.report.kv_cache_dtype,
        "weights_bytes": engine.report.weights_bytes,
        "temperature": args.temperature,
        "top_k": args.top_k,
        "top_p": args.top_p,
        "start_seconds": engine.start_seconds,
        "kv_blocks": engine.report.num_blocks,
    }
    sampling = SamplingParams(
        temperature=args.temperature, top_k=args.top_k, top_p=args.top_p, ignore_eos=True
    )
    wanted = ("decode", "prefill", "nano") if args.workload == "all" else (args.workload,)
    with compiled_kernels() as compiled:
        if "decode" in wanted:
            results["decode"] = {str(rows): decode(engine, rows, sampling) for rows in args.rows}
        if "prefill" in wanted:
            results["prefill"] = prefill(engine)
        if "nano" in wanted:
            nano(engine, sampling, scale=8)  # allocator and caches warm
            results["nano"] = nano(engine, sampling, scale=1)
    results["compiled_after_start"] = dict(compiled)
    engine.close()
    return results


def table(results: dict[str, Any]) -> str:
    lines = [f"{results['shape']} on {results['device']}, start {results['start_seconds']:.1f} s"]
    for rows, row in results.get("decode", {}).items():
        lines.append(
            f"  decode  B={rows:>4}  {row['ms_per_step']:9.3f} ms/step  {row['limit_share']:6.1%}"
        )
        if "experts_touched" in row:
            lines[-1] += f"  {row['experts_touched']:6.1f} experts a layer"
    for name, key, unit in (
        ("prefill", "tokens_per_second", "tok/s"),
        ("nano", "output_tokens_per_second", "out tok/s"),
    ):
        if name in results:
            row = results[name]
            lines.append(f"  {name:<15} {row[key]:9,.0f} {unit:<9} {row['limit_share']:6.1%}")
    compiled = sum(results["compiled_after_start"].values())
    lines.append(f"  kernels first met after the start: {compiled}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Offline throughput and latency on one GPU.")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen3-0.6b")
    parser.add_argument("--workload", choices=("nano", "decode", "prefill", "all"), default="all")
    parser.add_argument("--rows", type=int, nargs="+", default=list(DECODE_ROWS))
    parser.add_argument("--temperature", type=float, default=0.6)
    parser.add_argument("--top-k", type=int, default=0, help="0: off")
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--max-model-len", type=int, default=4352)
    parser.add_argument("--max-num-batched-tokens", type=int, default=16384)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--enforce-eager", action="store_true")
    parser.add_argument("--quantization", choices=tuple(ONLINE), default=None)
    parser.add_argument("--kv-cache-dtype", choices=KV_CACHE_DTYPES, default="auto")
    parser.add_argument("--tensor-parallel-size", "-tp", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = measure(args, Path(folder))
    print(table(results))
    print(json.dumps(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
