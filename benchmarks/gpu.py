"""One GPU, one model shape, random weights: the throughput and latency that the engine is held to.

    python -m benchmarks.gpu --shape qwen3-0.6b --workload nano|decode|prefill|short|long|all
    python -m benchmarks.gpu --config some/config.json
    python -m benchmarks.gpu --rates FILE

Prints a table; the last line is one JSON object. Every figure is also given as a share of what one
card allows (benchmarks.measures.limits), with `--tensor-parallel-size` too: beside it stand the
bytes and the products of a step, its experts as they were counted. `all` is all but `short`, steps
of prompts that are bound by the host, and `long`, prompts in chunks behind their own history.
Offline: no server, no tokenizer, prefix cache off.

`--rates` writes the table that `atom advise` reads (benchmarks.step_rates) instead.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from dataclasses import replace as with_fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace

from atom.errors import AtomError, ConfigError
from atom.sampling_params import SamplingParams
from atom.sizing import KV_ELEMENTS, ONLINE, KvElement
from atom.sizing.model_facts import ModelFacts
from atom.sizing.options.flag_values import KV_CACHE_DTYPES
from atom.utils.device import detect_device
from benchmarks.engines.decode_steps import (
    DECODE_CONTEXT,
    begin_decodes,
    decode_step_seconds,
)
from benchmarks.engines.offline_engine import OfflineEngine
from benchmarks.measures.compiled_kernels import compiled_kernels
from benchmarks.measures.limits import Ceilings, Work, ceilings, decode_work, prompt_work
from benchmarks.measures.routed_experts import listening, touched
from benchmarks.step_rates.measure import DEFAULT_SHAPES, measure_rates
from benchmarks.workloads.nano_workload import nano_requests
from benchmarks.workloads.shapes import add_model_arguments, model_folder

DECODE_ROWS = (1, 8, 64, 256)
PREFILL_PROMPTS, PREFILL_LENGTH = 16, 4096
SHORT_PROMPTS, SHORT_LENGTH, SHORT_STEPS = 8, 120, 32
LONG_PROMPTS, LONG_LENGTH, LONG_ROUNDS = 4, 32_768, 3
# Tokens of the longest sequence of a workload.
LONGEST = {
    "decode": 1112,
    "prefill": PREFILL_LENGTH + 1,
    "short": SHORT_LENGTH + 1,
    "long": LONG_LENGTH + 1,
    "nano": 2048,
}


@dataclass(frozen=True, slots=True)
class Measured:
    """An engine, and what its device allows."""

    engine: OfflineEngine
    card: Ceilings

    @classmethod
    def on(cls, device: torch.device, engine: OfflineEngine) -> Measured:
        return cls(engine, ceilings(device, getattr(torch, engine.report.dtype)))

    @property
    def facts(self) -> ModelFacts:
        """Describe the model, with the elements that the weights have on the device."""
        element = getattr(torch, self.engine.report.dtype).itemsize
        return with_fields(self.engine.config.model.facts, weight_dtype_bytes=element)

    @property
    def kv(self) -> KvElement:
        dtype = getattr(torch, self.engine.report.kv_cache_dtype)
        return KV_ELEMENTS["fp8"] if dtype.itemsize == 1 else KvElement(dtype.itemsize)

    def share(self, work: Work, seconds: float) -> dict[str, float]:
        """Compute the share of the limit that so long a step reached, and what the limit is made
        of."""
        return {
            "limit_share": work.seconds(self.card) / seconds,
            "moved_bytes": work.moved_bytes,
            "flops": work.flops,
        }


def nano(measured: Measured, sampling: SamplingParams, scale: int) -> dict[str, float]:
    """The published workload; with `scale`, its prompts and outputs cut to that fraction."""
    engine = measured.engine
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
        "limit_share": ideal_nano_seconds(measured, prompts, outputs) / seconds,
    }


def ideal_nano_seconds(measured: Measured, prompts: list[list[int]], outputs: list[int]) -> float:
    """Prefill, then every decode step at the card's limit."""
    lengths = np.array([len(prompt) for prompt in prompts], dtype=float)
    counts = np.array(outputs)
    total = prompt_work(measured.facts, len(lengths), int(lengths.mean())).seconds(measured.card)
    for step in range(1, int(counts.max())):
        running = counts > step
        context = float((lengths[running] + step).mean())
        work = decode_work(measured.facts, int(running.sum()), context, measured.kv)
        total += work.seconds(measured.card)
    return total


def decode(measured: Measured, rows: int, sampling: SamplingParams) -> dict[str, float]:
    """Milliseconds per step of `rows` decodes around a context of 1,024 tokens."""
    with listening() as heard:
        begin_decodes(measured.engine, rows, sampling)
    seconds = decode_step_seconds(measured.engine)
    experts = touched(heard, rows)
    work = decode_work(measured.facts, rows, DECODE_CONTEXT, measured.kv, experts)
    figures = {"ms_per_step": seconds * 1e3, **measured.share(work, seconds)}
    return figures if experts is None else figures | {"experts_touched": experts}


def prefill(measured: Measured, rounds: int = 3) -> dict[str, float]:
    """Prompt tokens per second of 16 prompts of 4,096 tokens; the median of some rounds."""
    seconds = prompt_seconds(measured.engine, (PREFILL_PROMPTS, PREFILL_LENGTH), rounds)
    work = prompt_work(measured.facts, PREFILL_PROMPTS, PREFILL_LENGTH)
    rate = PREFILL_PROMPTS * PREFILL_LENGTH / seconds
    return {"tokens_per_second": rate, **measured.share(work, seconds)}


def short(measured: Measured) -> dict[str, float]:
    """Milliseconds of a step of 960 tokens in eight prompts; the median of some steps."""
    seconds = prompt_seconds(measured.engine, (SHORT_PROMPTS, SHORT_LENGTH), SHORT_STEPS)
    work = prompt_work(measured.facts, SHORT_PROMPTS, SHORT_LENGTH)
    return {"ms_per_step": seconds * 1e3, **measured.share(work, seconds)}


def long(measured: Measured) -> dict[str, float]:
    """Prompt tokens per second of 4 prompts of 32,768 tokens that come at once, and seconds until
    the first of them has its first token; medians of some rounds."""
    rounds = [first_and_all(measured.engine) for _ in range(LONG_ROUNDS + 1)]  # one to warm up
    first, seconds = np.median(rounds[1:], axis=0).tolist()
    work = prompt_work(measured.facts, LONG_PROMPTS, LONG_LENGTH)
    rate = LONG_PROMPTS * LONG_LENGTH / seconds
    share = measured.share(work, seconds)
    return {"tokens_per_second": rate, "first_token_seconds": first, **share}


def add_prompts(engine: OfflineEngine, prompts: tuple[int, int], draw: np.random.Generator) -> None:
    """Queue so many prompts of so many tokens, each to be answered by one."""
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    count, length = prompts
    for _ in range(count):
        engine.add(engine.random_prompt(length, draw), params)


def first_and_all(engine: OfflineEngine) -> tuple[float, float]:
    """Seconds until the first of the long prompts has its first token, and until all have."""
    draw = np.random.default_rng(3)
    add_prompts(engine, (LONG_PROMPTS, LONG_LENGTH), draw)
    started, first = time.perf_counter(), None
    while engine.has_work():
        result = engine.step()
        if first is None and result is not None and len(result.token_ids):
            first = time.perf_counter() - started
    return first or 0.0, time.perf_counter() - started


def prompt_seconds(engine: OfflineEngine, prompts: tuple[int, int], rounds: int) -> float:
    """Measure so many prompts of so many tokens, from their arrival to their first tokens."""
    draw = np.random.default_rng(2)
    taken = []
    for _ in range(rounds + 1):  # the first is a warm-up
        add_prompts(engine, prompts, draw)
        started = time.perf_counter()
        engine.run()
        taken.append(time.perf_counter() - started)
    return float(np.median(taken[1:]))


def wanted_workloads(args: argparse.Namespace) -> tuple[str, ...]:
    """Raises ConfigError for one that the context does not hold."""
    wanted = ("decode", "prefill", "nano") if args.workload == "all" else (args.workload,)
    for name in wanted:
        if args.max_model_len < LONGEST[name]:
            raise ConfigError(
                f"--max-model-len {args.max_model_len}: workload {name} has sequences of "
                f"{LONGEST[name]} tokens; raise it, or choose another --workload"
            )
    return wanted


def open_engine(args: argparse.Namespace, folder: Path) -> OfflineEngine:
    return OfflineEngine(
        str(model_folder(args, folder)),
        load_dummy=True,
        max_model_len=args.max_model_len,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        enable_prefix_caching=False,
        device=args.device,
        backend=args.backend,
        enforce_eager=args.enforce_eager,
        quantization=args.quantization,
        kv_cache_dtype=args.kv_cache_dtype,
        tensor_parallel_size=args.tensor_parallel_size,
    )


def conditions(args: argparse.Namespace, measured: Measured) -> dict[str, Any]:
    """Return what the figures were measured with."""
    engine = measured.engine
    return {
        "shape": args.shape if args.config is None else str(args.config),
        "layers": args.layers,
        "architecture": engine.report.architecture,
        "device": engine.report.device,
        "tensor_parallel_size": args.tensor_parallel_size,
        "backends": engine.report.backends,
        "graphs": not args.enforce_eager,
        "quantization": args.quantization,
        "dtype": engine.report.dtype,
        "kv_cache_dtype": engine.report.kv_cache_dtype,
        "weights_bytes": engine.report.weights_bytes,
        "temperature": args.temperature,
        "top_k": args.top_k,
        "top_p": args.top_p,
        "start_seconds": engine.start_seconds,
        "kv_blocks": engine.report.num_blocks,
        "ceilings": asdict(measured.card),
    }


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    wanted = wanted_workloads(args)
    engine = open_engine(args, folder)
    measured = Measured.on(detect_device(args.device).torch_device, engine)
    results = conditions(args, measured)
    sampling = SamplingParams(
        temperature=args.temperature, top_k=args.top_k, top_p=args.top_p, ignore_eos=True
    )
    with compiled_kernels() as compiled:
        if "decode" in wanted:
            results["decode"] = {str(rows): decode(measured, rows, sampling) for rows in args.rows}
        if "prefill" in wanted:
            results["prefill"] = prefill(measured)
        if "short" in wanted:
            results["short"] = short(measured)
        if "long" in wanted:
            results["long"] = long(measured)
        if "nano" in wanted:
            nano(measured, sampling, scale=8)  # allocator and caches warm
            results["nano"] = nano(measured, sampling, scale=1)
    results["compiled_after_start"] = dict(compiled)
    engine.close()
    return results


def table(results: dict[str, Any]) -> str:
    lines = [f"{results['shape']} on {results['device']}, start {results['start_seconds']:.1f} s"]
    moved, computed = (rate / 1e12 for rate in results["ceilings"].values())
    lines.append(f"  limit: {moved:.2f} TB/s, {computed:.1f} TFLOP/s")
    steps = {f"decode  B={rows:>4}": row for rows, row in results.get("decode", {}).items()}
    steps |= {
        name: results[name] for name in ("prefill", "short", "long", "nano") if name in results
    }
    for name, row in steps.items():
        lines.append(f"  {name:<15} {_rate(row)} {row['limit_share']:6.1%}{_work(row)}")
        if "first_token_seconds" in row:
            lines.append(
                f"    the first of them has its first token in {row['first_token_seconds']:.3f} s"
            )
    compiled = sum(results["compiled_after_start"].values())
    lines.append(f"  kernels first met after the start: {compiled}")
    return "\n".join(lines)


def _rate(row: dict[str, float]) -> str:
    if "ms_per_step" in row:
        return f"{row['ms_per_step']:9.3f} ms/step  "
    if "tokens_per_second" in row:
        return f"{row['tokens_per_second']:9,.0f} tok/s    "
    return f"{row['output_tokens_per_second']:9,.0f} out tok/s"


def _work(row: dict[str, float]) -> str:
    """Compute the work of a step, where steps are alike."""
    if "moved_bytes" not in row:
        return ""
    text = f"  {row['moved_bytes'] / 1e9:8.2f} GB  {row['flops'] / 1e12:8.3f} TFLOP"
    experts = row.get("experts_touched")
    return text if experts is None else f"{text}  {experts:6.1f} experts a layer"


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_arguments(argv)
    try:
        if args.rates is not None:
            measure_rates(args.rates, DEFAULT_SHAPES, args.device)
            return 0
        with tempfile.TemporaryDirectory() as folder:
            results = measure(args, Path(folder))
    except AtomError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(table(results))
    print(json.dumps(results))
    return 0


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Offline throughput and latency on one GPU.")
    add_model_arguments(parser)
    parser.add_argument(
        "--rates", type=Path, help="write a table of rates for atom advise, of several shapes"
    )
    parser.add_argument("--workload", choices=(*LONGEST, "all"), default="all")
    parser.add_argument("--rows", type=int, nargs="+", default=list(DECODE_ROWS))
    parser.add_argument("--temperature", type=float, default=0.6)
    parser.add_argument("--top-k", type=int, default=0, help="0: off")
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--max-model-len", type=int, default=4352)
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--max-num-batched-tokens", type=int, default=16384)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--enforce-eager", action="store_true")
    parser.add_argument("--quantization", choices=tuple(ONLINE), default=None)
    parser.add_argument("--kv-cache-dtype", choices=KV_CACHE_DTYPES, default="auto")
    parser.add_argument("--tensor-parallel-size", "-tp", type=int, default=1)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
