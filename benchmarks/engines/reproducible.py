"""Proof that answers do not depend on what else an engine computes, and what that costs.

    python -m benchmarks.engines.reproducible --shape qwen3-8b --layers 4 --requests 10000

Distinct requests, greedy and seeded, are answered alone first: one at a time, without graphs, in
whole prompts, without a prefix cache. Then all of them are asked for again in engines of other
settings (graphs, chunks, prefix cache, drafts, tight memory, rows at once; and with all that run
preempted again and again) in a random order. Tokens and log-probabilities, the likeliest ones' too,
are compared bit by bit. Weights are random, and the same in each engine. With --cost: steps of 1,
64 and 256 decoding rows and 256 requests of 100 to 1,024 tokens in and out, with --reproducible and
without. The last line is one JSON object; `alone` in it is a digest of the answers alone, for two
runs to compare, of tensor-parallel sizes for instance.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import itertools
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from atom.model_engine.schedule.step_result import StepResult
from atom.sampling_params import SamplingParams
from atom.speculative_config import SpeculativeConfig
from benchmarks.engines.decode_steps import begin_decodes, decode_step_seconds
from benchmarks.engines.offline_engine import OfflineEngine
from benchmarks.workloads.checkpoints import write_checkpoint
from benchmarks.workloads.shapes import add_model_arguments, model_folder

LONGEST_PROMPT, MOST_TOKENS = 700, 24
LOGPROBS = 3
ROWS = (1, 64, 256)
PREEMPTED_FIRST, PREEMPTED_AGAIN = 6, 1.4  # steps, and how many times more until the next time
ALONE = {
    "enforce_eager": True,
    "max_num_seqs": 1,
    "max_num_batched_tokens": 8192,
    "enable_prefix_caching": False,
}


@dataclass(frozen=True, slots=True)
class Asked:
    """One distinct request."""

    prompt: list[int]
    params: SamplingParams


def requests(vocabulary: int, count: int) -> list[Asked]:
    """Draw requests: half of the prompts begin as another does, and repeat themselves, so that a
    prefix is found and drafts are accepted; half of them are drawn with a seed."""
    draw = np.random.default_rng(7)
    heads = [draw.integers(0, vocabulary, size=LONGEST_PROMPT // 2).tolist() for _ in range(8)]
    asked = []
    for number in range(count):
        length = int(draw.integers(1, LONGEST_PROMPT))
        prompt = draw.integers(0, vocabulary, size=length).tolist()
        if number % 2:
            head = heads[number % len(heads)]
            prompt = (head[: int(draw.integers(1, len(head)))] + prompt[:20] * 3)[:LONGEST_PROMPT]
        asked.append(Asked(prompt, _params(number, int(draw.integers(2, MOST_TOKENS)))))
    return asked


def _params(number: int, tokens: int) -> SamplingParams:
    limits: dict[str, Any] = {"temperature": 0.0}
    if number % 4 == 2:
        limits = {"temperature": 0.9, "seed": number}
    elif number % 4 == 3:
        limits = {"temperature": 0.8, "seed": number, "top_k": 40, "top_p": 0.95}
    return SamplingParams(max_tokens=tokens, ignore_eos=True, logprobs=LOGPROBS, **limits)


Answer = tuple[list[int], list[bytes]]


def answers(
    engine: OfflineEngine, asked: Sequence[Asked], order: Sequence[int], *, preempts: bool = False
) -> list[Answer]:
    """Ask for requests in an order; of each in it, tokens and the bits of its log-probabilities.
    preempts: all that run are computed again, at steps ever further apart, so that they end."""
    numbers = {engine.add(asked[at].prompt, asked[at].params): place
               for place, at in enumerate(order)}  # fmt: skip
    found: list[Answer] = [([], []) for _ in order]
    for result in _results(engine, preempts=preempts):
        for request, tokens in result.runs():
            found[numbers[request]][0].extend(tokens)
        if result.logprobs is not None:
            rows = result.logprobs
            for at, request in enumerate(rows.request_ids.tolist()):
                bits = rows.token_ids[at].tobytes() + rows.logprobs[at].tobytes()
                found[numbers[request]][1].append(bits)
    return found


def _results(engine: OfflineEngine, *, preempts: bool) -> Iterator[StepResult]:
    step, due = 0, PREEMPTED_FIRST
    while engine.has_work():
        step += 1
        if preempts and step >= due:
            yield from engine.pipeline.preempt_all()
            due = math.ceil(step * PREEMPTED_AGAIN)
        result = engine.step()
        if result is not None:
            yield result


def settings(count: int) -> list[tuple[dict[str, Any], bool]]:
    """Combine what must not matter, so many combinations of it: options, and whether all that run
    are preempted now and then."""
    drafts = SpeculativeConfig(num_tokens=3, adaptive=False)
    all_of = itertools.product(
        (False, True),
        (64, 300, 8192),
        (True, False),
        (None, drafts),
        (256, 5, 64),
        (None, 160),
        (True, False),
    )
    named = [
        (
            {
                "enforce_eager": eager,
                "max_num_batched_tokens": tokens,
                "enable_prefix_caching": cached,
                "speculative": speculative,
                "max_num_seqs": min(rows, tokens),
                "num_kv_blocks": blocks,
            },
            preempts,
        )
        for eager, tokens, cached, speculative, rows, blocks, preempts in all_of
    ]
    draw = np.random.default_rng(11)
    chosen = draw.permutation(len(named))[:count]
    return [named[at] for at in chosen]


def prove(path: Path, wanted: int, distinct: int, options: dict[str, Any]) -> dict[str, Any]:
    """Compare so many requests with the distinct ones of them, answered alone."""
    asked, expected = _alone(path, distinct, {**options, **ALONE})
    different = {"tokens": 0, "logprobs": 0}
    compared, draw = 0, np.random.default_rng(3)
    for setting, preempts in settings(-(-wanted // distinct)):
        gc.collect()  # the last engine's memory, before the next takes as much
        engine = open_engine(path, {**options, **setting})
        order = draw.permutation(distinct)[: wanted - compared].tolist()
        wrong = {"tokens": 0, "logprobs": 0}
        found = answers(engine, asked, order, preempts=preempts)
        for at, (tokens, bits) in zip(order, found, strict=True):
            wrong["tokens"] += tokens != expected[at][0]
            wrong["logprobs"] += bits != expected[at][1]
        preempted = engine.scheduler.stats().preemptions_total
        engine.close()
        del engine
        compared += len(order)
        different = {key: different[key] + wrong[key] for key in different}
        line = f"{_said(setting)}: {len(order)} requests, preemptions {preempted}, {wrong}"
        print(line, flush=True)
    digest = hashlib.sha256(repr(expected).encode()).hexdigest()[:16]
    return {"requests": compared, "distinct": distinct, "different": different, "alone": digest}


def _alone(path: Path, count: int, options: dict[str, Any]) -> tuple[list[Asked], list[Answer]]:
    """Draw requests, and answer them one at a time."""
    engine = open_engine(path, options)
    asked = requests(engine.config.model.vocab_size, count)
    found: list[Answer] = []
    for number in range(count):
        found += answers(engine, asked, [number])
    engine.close()
    return asked, found


def _said(setting: dict[str, Any]) -> str:
    drafts = setting["speculative"] is not None
    return ", ".join(f"{key} {value}" for key, value in {**setting, "speculative": drafts}.items())


def open_engine(path: Path, options: dict[str, Any]) -> OfflineEngine:
    """Start an engine for requests of this length."""
    return OfflineEngine(str(path), max_model_len=2048, **options)


def cost(path: Path, options: dict[str, Any]) -> dict[str, float]:
    """Measure steps of decoding rows and a mixture, usual and reproducible in turn: how many times
    the usual seconds each takes."""
    seconds: dict[bool, dict[str, float]] = {False: {}, True: {}}
    for reproducible in (False, True, False, True):
        found = _seconds(path, {**options, "reproducible": reproducible})
        gc.collect()  # the engine's memory, before the next takes as much
        print("reproducible" if reproducible else "usual", found, flush=True)
        for name, each in found.items():
            seconds[reproducible][name] = seconds[reproducible].get(name, 0.0) + each
    return {name: round(each / seconds[False][name], 3) for name, each in seconds[True].items()}


def _seconds(path: Path, options: dict[str, Any]) -> dict[str, float]:
    engine = open_engine(path, options)
    found = {}
    for rows in ROWS:
        begin_decodes(engine, rows, SamplingParams(temperature=0.0, ignore_eos=True))
        found[f"{rows} rows"] = decode_step_seconds(engine)
    draw = np.random.default_rng(5)
    for _ in range(256):
        tokens = int(draw.integers(100, 1025))
        params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=tokens)
        engine.add(engine.random_prompt(int(draw.integers(100, 1025)), draw), params)
    begun = time.perf_counter()
    engine.run()
    found["mixture"] = time.perf_counter() - begun
    engine.close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add_model_arguments(parser)
    parser.add_argument("--requests", type=int, default=10_000, help="to compare; 0 for none")
    parser.add_argument("--distinct", type=int, default=1000, help="of these")
    parser.add_argument("--cost", action="store_true", help="measure speed as well")
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    parser.add_argument(
        "--on-disk", action="store_true", help="weights: the same for any tensor-parallel size"
    )
    args = parser.parse_args()
    size = args.tensor_parallel_size
    options = {"tensor_parallel_size": size, "load_dummy": not args.on_disk}
    found: dict[str, Any] = {"shape": args.shape, "layers": args.layers, "ranks": size}
    found["device"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        path = model_folder(args, Path(folder))
        if args.on_disk:
            torch.manual_seed(0)
            write_checkpoint(args.shape, path, args.layers)
        if args.requests:
            found |= prove(
                path,
                args.requests,
                min(args.distinct, args.requests),
                {**options, "reproducible": True},
            )
        if args.cost:
            found["times the usual seconds"] = cost(path, options)
    print(json.dumps(found))
    return 1 if any(found.get("different", {}).values()) else 0


if __name__ == "__main__":
    sys.exit(main())
