"""What the HTTP server adds: the same work through `atom serve` and offline, in one run.

    python -m benchmarks.server [--streams 1 32 256]

A random fp32 model (the "tiny" shape) on the CPU, with a tokenizer so that text is made; the nano
workload at 1/8 length. For each number of streams that many requests are sent at once, each over a
connection of its own, and the same requests are given to `LLMEngine.generate`; `added` is what the
server's wall time is above the offline one, both the best of --repeats; `added_median` is the
median over neighbouring runs. The reader is as lean as a reader can be, because it shares the
machine with what it measures. Prints a table; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atom.entrypoints.bench.report import percentile
from atom.model_engine.llm_engine import LLMEngine
from atom.sampling_params import SamplingParams
from benchmarks.engines.server_process import started_server
from benchmarks.http_load import LoadResult, run_load
from benchmarks.served import write_tokenizer
from benchmarks.workloads.nano_workload import nano_requests
from benchmarks.workloads.shapes import SHAPES, write_shape

SHAPE = "tiny"
LENGTH_DIVISOR = 8
STREAMS = (1, 32, 256)
TEMPERATURE = 0.6
MOST_ROUNDS = 16
OPTIONS: dict[str, Any] = {
    "device": "cpu",
    "dtype": "float32",
    "load_dummy": True,
    "max_model_len": 512,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 2048,
    "num_kv_blocks": 8192,
    "enable_prefix_caching": False,
}


@dataclass(frozen=True, slots=True)
class Work:
    """One request: token ids in, so many tokens out."""

    prompt: list[int]
    output_tokens: int


def work_of(streams: int) -> list[Work]:
    """The first `streams` requests of the workload, shortened."""
    vocab_size = SHAPES[SHAPE]["vocab_size"]
    return [
        Work(
            [token % vocab_size for token in request.prompt[::LENGTH_DIVISOR]],
            request.output_tokens // LENGTH_DIVISOR,
        )
        for request in nano_requests()[:streams]
    ]


def body_of(work: Work) -> str:
    return json.dumps(
        {
            "prompt": work.prompt,
            "max_tokens": work.output_tokens,
            "temperature": TEMPERATURE,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )


def offline_seconds(engine: LLMEngine, works: list[Work]) -> float:
    params = [
        SamplingParams(temperature=TEMPERATURE, max_tokens=work.output_tokens, ignore_eos=True)
        for work in works
    ]
    started = time.perf_counter()
    answers = engine.generate([work.prompt for work in works], params, use_tqdm=False)
    elapsed = time.perf_counter() - started
    expected = [work.output_tokens for work in works]
    assert [len(answer["token_ids"]) for answer in answers] == expected
    return elapsed


def figures(works: list[Work], result: LoadResult, offline: float) -> dict[str, Any]:
    """The benchmark's keys for one number of streams; latencies in milliseconds."""
    ttft = [seconds * 1e3 for seconds in result.ttft_seconds]
    gaps = [seconds * 1e3 for seconds in result.gap_seconds]
    return {
        "requests_per_s": len(works) / result.elapsed_seconds,
        "output_tokens_per_s": sum(w.output_tokens for w in works) / result.elapsed_seconds,
        "ttft_p50_ms": percentile(ttft, 50),
        "ttft_p99_ms": percentile(ttft, 99),
        "itl_p50_ms": percentile(gaps, 50),
        "itl_p99_ms": percentile(gaps, 99),
        "failures": len(result.failures),
        "server_s": result.elapsed_seconds,
        "offline_s": offline,
        "added": result.elapsed_seconds / offline - 1,
    }


@contextlib.contextmanager
def model_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        folder = write_shape(SHAPE, Path(name))
        write_tokenizer(folder, SHAPES[SHAPE]["vocab_size"])
        yield folder


def measure(all_streams: list[int], repeats: int) -> dict[int, dict[str, Any]]:
    """Served and offline runs take turns, so that what else the machine does meets both."""
    results: dict[int, dict[str, Any]] = {}
    with (
        model_folder() as folder,
        started_server(folder, OPTIONS, "--disable-access-log") as server,
        LLMEngine(str(folder), **OPTIONS) as engine,
    ):
        for streams in all_streams:
            works = work_of(streams)
            bodies = [body_of(work) for work in works]
            expected = [work.output_tokens for work in works]
            run_load(server.port, bodies, expected)  # warm
            offline_seconds(engine, works)
            rounds = max(repeats, min(MOST_ROUNDS, 512 // streams))  # short ones more often
            served = []
            offline = []
            for _ in range(rounds):
                served.append(run_load(server.port, bodies, expected))
                offline.append(offline_seconds(engine, works))
            best = min(served, key=lambda result: result.elapsed_seconds)
            best.failures.extend(
                failure for result in served if result is not best for failure in result.failures
            )
            results[streams] = figures(works, best, min(offline))
            pairs = zip(served, offline, strict=True)
            ratios = [result.elapsed_seconds / alone for result, alone in pairs]
            results[streams]["added_median"] = statistics.median(ratios) - 1
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--streams", type=int, nargs="+", default=list(STREAMS))
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    return report(measure(args.streams, args.repeats))


def report(results: dict[int, dict[str, Any]]) -> int:
    """The table and the JSON, a column or entry per number of streams; the exit code."""
    names = list(next(iter(results.values())))
    print(f"{'streams':<20}" + "".join(f"{streams:>12}" for streams in results))
    for name in names:
        row = "".join(f"{result[name]:>12,.3f}" for result in results.values())
        print(f"{name:<20}{row}")
    print(json.dumps({str(streams): result for streams, result in results.items()}))
    return 1 if any(result["failures"] for result in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
