"""The whole engine on the CPU: a tiny random Qwen3 in float32, the nano workload at an eighth.

    python -m benchmarks.engine_cpu [--repeat N] [--transformers]

64 requests at once, temperature 0.6, two torch threads that wait as in an engine's process, no
server. The machine decides the absolute figure, so the same run also times what bounds it: the
matrix products of exactly these steps and nothing else. With --transformers also the library's own
generate on equal lengths, its best case. Best of N runs of each, taken in turns. Prints a table;
the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

from atom.model_engine.batch import ScheduledBatch, ScheduledBatchOutput, TokenMask
from atom.model_engine.executor.base import StepExecutor
from atom.model_engine.step_pipeline import StepPipeline
from atom.model_engine.wire.core_processes import thread_waiting
from atom.sampling_params import SamplingParams
from benchmarks.engines.offline_engine import OfflineEngine
from benchmarks.workloads.nano_workload import NanoRequest, nano_requests
from benchmarks.workloads.shapes import SHAPES, write_shape

SHAPE = "tiny-12k"
REQUESTS, SCALE = 64, 8
THREADS = 2
TEMPERATURE = 0.6


def workload() -> list[NanoRequest]:
    """The first 64 requests of the nano workload, prompts and outputs cut to an eighth."""
    return [
        NanoRequest(request.prompt[: len(request.prompt) // SCALE], request.output_tokens // SCALE)
        for request in nano_requests()[:REQUESTS]
    ]


@dataclass(frozen=True, slots=True)
class Step:
    """Counts of a step. tokens: that went through the layers; rows: that got logits."""

    tokens: int
    rows: int


class StepSizes:
    """An executor that notes the size of every step it passes on."""

    def __init__(self, executor: StepExecutor) -> None:
        self._executor = executor
        self.steps: list[Step] = []

    def submit(self, batch: ScheduledBatch) -> int:
        self.steps.append(Step(batch.total_tokens_num, int(batch.samples.sum())))
        return self._executor.submit(batch)

    def sample(self, ticket: int, mask: TokenMask | None = None) -> None:
        self._executor.sample(ticket, mask)

    def collect(self, ticket: int) -> ScheduledBatchOutput:
        return self._executor.collect(ticket)


def serve(engine: OfflineEngine, requests: list[NanoRequest]) -> float:
    """Seconds from the first step to the last token."""
    for request in requests:
        params = SamplingParams(
            temperature=TEMPERATURE, max_tokens=request.output_tokens, ignore_eos=True
        )
        engine.add(request.prompt, params)
    started = time.perf_counter()
    generated = engine.run()
    seconds = time.perf_counter() - started
    assert generated == sum(request.output_tokens for request in requests), "tokens were lost"
    return seconds


@torch.inference_mode()
def multiply(steps: list[Step]) -> float:
    """Seconds that the matrix products of these steps take: every layer's four, and the head."""
    shape = SHAPES[SHAPE]
    hidden, inner = shape["hidden_size"], shape["intermediate_size"]
    heads = shape["num_attention_heads"] * shape["head_dim"]
    kv = shape["num_key_value_heads"] * shape["head_dim"]
    sizes = [(hidden, heads + 2 * kv), (heads, hidden), (hidden, 2 * inner), (inner, hidden)]
    layers = [
        [torch.randn(after, before) for before, after in sizes]
        for _ in range(shape["num_hidden_layers"])
    ]
    head = torch.randn(shape["vocab_size"], hidden)
    inputs = {size: torch.randn(max(s.tokens for s in steps), size) for size in (hidden, inner)}
    started = time.perf_counter()
    for step in steps:
        for layer in layers:
            for weight in layer:
                F.linear(inputs[weight.shape[1]][: step.tokens], weight)
        F.linear(inputs[hidden][: step.rows], head)
    return time.perf_counter() - started


def transformers_generate(folder: Path, requests: list[NanoRequest]) -> Callable[[], float]:
    """Output tokens per second of a batch of equal prompts and outputs of the mean lengths."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    model = Qwen3ForCausalLM(Qwen3Config.from_pretrained(folder)).train(False)
    length = sum(len(request.prompt) for request in requests) // len(requests)
    count = sum(request.output_tokens for request in requests) // len(requests)
    ids = torch.randint(0, 10_000, (len(requests), length))

    @torch.inference_mode()
    def generate() -> float:
        started = time.perf_counter()
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            temperature=TEMPERATURE,
            top_k=0,
            max_new_tokens=count,
            min_new_tokens=count,
        )
        return len(requests) * count / (time.perf_counter() - started)

    return generate


def measure(folder: Path, repeat: int, *, transformers: bool) -> dict[str, float]:
    requests = workload()
    engine = OfflineEngine(
        str(write_shape(SHAPE, folder)),
        load_dummy=True,
        device="cpu",
        max_model_len=512,
        max_num_seqs=REQUESTS,
        num_kv_blocks=2048,
        enable_prefix_caching=False,
    )
    torch.set_num_threads(THREADS)
    sizes = StepSizes(engine.executor)
    engine.pipeline = StepPipeline(engine.scheduler, sizes, depth=0)
    serve(engine, requests)  # allocator and thread pool warm
    steps = list(sizes.steps)
    generate = transformers_generate(folder, requests) if transformers else None
    seconds, products, peers = [], [], []
    for _ in range(repeat):
        seconds.append(serve(engine, requests))
        products.append(multiply(steps))
        if generate is not None:
            peers.append(generate())
    tokens = sum(request.output_tokens for request in requests)
    results = {
        "output_tokens_per_s": tokens / min(seconds),
        "products_alone_tokens_per_s": tokens / min(products),
        "products_share": min(products) / min(seconds),
        "prompt_tokens": sum(len(request.prompt) for request in requests),
        "output_tokens": tokens,
        "steps": len(steps),
        "threads": THREADS,
    }
    if peers:
        results["transformers_tokens_per_s"] = max(peers)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=5, help="runs of each, of which the best")
    parser.add_argument("--transformers", action="store_true", help="also time its generate")
    args = parser.parse_args()
    waiting = thread_waiting(os.environ)
    if waiting:  # torch read the environment when it was loaded
        again = [sys.executable, "-m", "benchmarks.engine_cpu", *sys.argv[1:]]
        os.execve(sys.executable, again, {**os.environ, **waiting})
    with tempfile.TemporaryDirectory() as folder:
        results = measure(Path(folder), args.repeat, transformers=args.transformers)
    print(f"{'output tokens per second':<32}{results['output_tokens_per_s']:>8,.0f}")
    print(f"{'the matrix products alone':<32}{results['products_alone_tokens_per_s']:>8,.0f}")
    if "transformers_tokens_per_s" in results:
        print(f"{'transformers, equal lengths':<32}{results['transformers_tokens_per_s']:>8,.0f}")
    print(json.dumps(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
