"""Long prompts beside a stream: how long the stream stands still, and what its bound costs.

    python -m benchmarks.engines.prompts_beside_answers --shape qwen3-8b

One answer is under way when long prompts come that want answers too. The same requests run without
a bound on the time of a step and with the default one (--max-step-seconds), in turn. Prints a row
for each run; the last line is one JSON object. Offline, random weights, prefix cache off.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from atom.sampling_params import SamplingParams
from atom.sizing.options.scheduling import SchedulerOptions
from benchmarks.engines.offline_engine import OfflineEngine
from benchmarks.workloads.shapes import add_model_arguments, model_folder

_SEED = 4


@dataclass(frozen=True, slots=True)
class Run:
    """Holds the figures of one run. longest_gap_seconds: between two tokens of the stream."""

    max_step_seconds: float
    seconds: float
    longest_gap_seconds: float


def measure(engine: OfflineEngine, prompts: int, length: int, answer: int) -> Run:
    """Run the requests once, after a warm-up of the same ones."""
    for _ in range(2):
        draw = np.random.default_rng(_SEED)
        params = SamplingParams(temperature=0.0, max_tokens=answer, ignore_eos=True)
        stream = engine.add(
            engine.random_prompt(64, draw),
            SamplingParams(temperature=0.0, max_tokens=8 * answer, ignore_eos=True),
        )
        while not _has_token(engine, stream):
            pass
        for _ in range(prompts):
            engine.add(engine.random_prompt(length, draw), params)
        started = last = time.perf_counter()
        longest = 0.0
        while engine.has_work():
            if _has_token(engine, stream):
                now = time.perf_counter()
                longest, last = max(longest, now - last), now
        seconds = time.perf_counter() - started
    return Run(engine.config.scheduler.max_step_seconds, seconds, longest)


def _has_token(engine: OfflineEngine, request_id: int) -> bool:
    """Run a step; return whether the request got a token."""
    result = engine.step()
    return result is not None and request_id in result.request_ids


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add_model_arguments(parser)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--answer", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--device", default="auto")
    args = parser.parse_args(argv)
    bound = SchedulerOptions().max_step_seconds
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        model = str(model_folder(args, Path(folder)))
        for max_step_seconds in [0.0, bound] * args.rounds:
            engine = OfflineEngine(
                model,
                load_dummy=True,
                max_model_len=args.length + 8 * args.answer,
                max_num_seqs=args.prompts + 1,
                enable_prefix_caching=False,
                device=args.device,
                max_step_seconds=max_step_seconds,
            )
            runs.append(measure(engine, args.prompts, args.length, args.answer))
            engine.close()
            print(f"  {runs[-1]}", flush=True)
    print(json.dumps({"shape": args.shape, "runs": [asdict(run) for run in runs]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
