"""Where a step's time goes on one GPU, by the parts of the model and by kernel.

    python -m benchmarks.gpu_profile --shape qwen3-0.6b --rows 1 64

For each batch size and context a table of parts and one of kernels (calls and µs per step), what
the device idles between them, and the step's wall time; then the parts of a step of four prompts of
4,096 tokens. `--contexts 1024 32768 260000` shows which parts grow with the context. The last line
is one JSON object.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from atom.sampling_params import SamplingParams
from atom.sizing import ONLINE
from benchmarks.engines.offline_engine import OfflineEngine
from benchmarks.measures.step_shares import Kernel, shares
from benchmarks.workloads.shapes import add_model_arguments, model_folder

CONTEXT, MOST_TOKENS = 1024, 256
STEPS = 20
SHOWN = 16
PROMPTS, PROMPT_TOKENS = 4, 4096


def steps(engine: OfflineEngine, count: int) -> None:
    done = 0
    while done < count:
        done += engine.step() is not None


def profile_decode(engine: OfflineEngine, rows: int, context: int) -> dict[str, Any]:
    """Kernels of a step of `rows` decodes around a context."""
    draw = np.random.default_rng(1)
    params = SamplingParams(temperature=0.6, max_tokens=MOST_TOKENS, ignore_eos=True)
    for _ in range(rows):
        engine.add(engine.random_prompt(context - STEPS, draw), params)
    steps(engine, 1)
    while (stats := engine.scheduler.stats()).requests_waiting or stats.requests_partial_prefill:
        engine.step()
    steps(engine, 8)
    started = time.perf_counter()
    steps(engine, STEPS)
    wall = (time.perf_counter() - started) / STEPS * 1e6
    with profile(activities=[ProfilerActivity.CUDA]) as traced:
        steps(engine, STEPS)
        torch.cuda.synchronize()
    engine.run()
    on_device = device_kernels(traced)
    kernels: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for kernel in on_device:
        entry = kernels[kernel.name]
        entry[0] += 1 / STEPS
        entry[1] += (kernel.end - kernel.start) / STEPS
    busy = sum(entry[1] for entry in kernels.values())
    ranked = sorted(kernels.items(), key=lambda item: -item[1][1])
    return {
        "wall_us": wall,
        "busy_us": busy,
        "parts_us": {part: us / STEPS for part, us in shares(on_device).items()},
        "kernels": [
            {"name": name[:90], "calls": round(calls, 2), "us": round(us, 2)}
            for name, (calls, us) in ranked[:SHOWN]
        ],
    }


def profile_prefill(engine: OfflineEngine) -> dict[str, Any]:
    """Parts of a step of prompts; the first steps build the library's plans."""
    draw = np.random.default_rng(2)
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)

    def add() -> None:
        for _ in range(PROMPTS):
            engine.add(engine.random_prompt(PROMPT_TOKENS, draw), params)

    add()
    engine.run()
    add()
    with profile(activities=[ProfilerActivity.CUDA]) as traced:
        engine.run()
        torch.cuda.synchronize()
    on_device = device_kernels(traced)
    wall = max(kernel.end for kernel in on_device) - min(kernel.start for kernel in on_device)
    return {"wall_us": wall, "parts_us": shares(on_device)}


def device_kernels(traced: Any) -> list[Kernel]:
    return [
        Kernel(event.name, event.time_range.start, event.time_range.end)
        for event in traced.events()
        if str(event.device_type).endswith("CUDA")
    ]


def print_parts(parts_us: dict[str, float]) -> None:
    for part, us in sorted(parts_us.items(), key=lambda item: -item[1]):
        print(f"  {us:9.1f} µs  {part}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Parts and kernels of a step.")
    add_model_arguments(parser)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--contexts", type=int, nargs="+", default=[CONTEXT])
    parser.add_argument("--quantization", choices=tuple(ONLINE), default=None)
    args = parser.parse_args()
    results: dict[str, Any] = {"shape": str(args.config or args.shape)}
    with tempfile.TemporaryDirectory() as folder:
        engine = OfflineEngine(
            str(model_folder(args, Path(folder))),
            load_dummy=True,
            max_model_len=max(4352, max(args.contexts) + MOST_TOKENS),
            max_num_seqs=256,
            enable_prefix_caching=False,
            quantization=args.quantization,
        )
        for rows, context in itertools.product(args.rows, args.contexts):
            found = results[f"{rows} at {context}"] = profile_decode(engine, rows, context)
            print(
                f"B={rows} at {context}: {found['wall_us']:.0f} µs per step, "
                f"{found['busy_us']:.0f} in kernels"
            )
            print_parts(found["parts_us"])
            for kernel in found["kernels"]:
                print(f"  {kernel['us']:9.1f} µs {kernel['calls']:7.1f} ×  {kernel['name']}")
        found = results["prefill"] = profile_prefill(engine)
        print(f"{PROMPTS} prompts of {PROMPT_TOKENS}: {found['wall_us']:.0f} µs")
        print_parts(found["parts_us"])
    print(json.dumps(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
