"""What a scheduling decision costs: schedule and update with made-up tokens, no model, no sockets.

    python -m benchmarks.scheduler [--repeat N] [--memory]

The nano workload through the whole scheduler (admission, prefix cache, blocks, bookkeeping, end
conditions), then decode steps of 1 to 1,024 rows. CPU time of this thread, best of N runs: other
work on the machine then disturbs little. With --memory also how much the process grows while
100,000 requests come and go. Prints a table; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atom.config import SchedulerConfig
from atom.model_engine.batch import ScheduledBatchOutput
from atom.model_engine.block_manager import BlockManager
from atom.model_engine.request import Request
from atom.model_engine.scheduler import Scheduler
from atom.sampling_params import SamplingParams
from benchmarks.workloads.nano_workload import OUTPUT_TOKENS, nano_requests

DECODE_ROWS = (1, 64, 256, 1024)
DECODE_PROMPT = 256
DECODE_STEPS = 256
MEMORY_REQUESTS, MEMORY_WAVE = 100_000, 500
BLOCK_SIZE = 16
MAX_MODEL_LEN = 4096
MAX_NUM_BATCHED_TOKENS = 16384
_EOS = 1


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of scheduling. cpu_seconds: of schedule and update together; rows: one per sequence
    and step."""

    cpu_seconds: float
    steps: int
    rows: int

    @property
    def us_per_row(self) -> float:
        return self.cpu_seconds / self.rows * 1e6

    @property
    def us_per_step(self) -> float:
        return self.cpu_seconds / self.steps * 1e6


def make_scheduler(max_num_seqs: int, num_blocks: int) -> Scheduler:
    config = SchedulerConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
        max_step_seconds=0.0,
    )
    blocks = BlockManager(num_blocks, BLOCK_SIZE, enable_prefix_caching=True)
    return Scheduler(config, blocks, max_model_len=MAX_MODEL_LEN, eos_token_ids=[_EOS])


def add(scheduler: Scheduler, request_id: int, prompt: list[int], output_tokens: int) -> None:
    scheduler.add(
        Request(
            id=request_id,
            prompt_token_ids=prompt,
            params=SamplingParams(temperature=0.6, max_tokens=output_tokens, ignore_eos=True),
            max_total_tokens=len(prompt) + output_tokens,
            arrive_time=0.0,
        )
    )


def drive(scheduler: Scheduler, tokens: NDArray[np.int32], most_steps: int) -> Cost:
    """Step until nothing is left or so often. tokens: what the model is supposed to have drawn."""
    clock = time.thread_time
    steps = rows = 0
    started = clock()
    while steps < most_steps and scheduler.has_work():
        batch = scheduler.schedule(float(steps))
        assert batch is not None, "work, but nothing to schedule"
        count = int(np.count_nonzero(batch.samples))
        scheduler.update(batch, ScheduledBatchOutput(token_ids=tokens[:count]))
        steps += 1
        rows += count
    return Cost(clock() - started, steps, rows)


def nano_cost() -> Cost:
    """Measure nano-vllm's scheduler from the first `add` to the last freed block."""
    requests = nano_requests()
    scheduler = make_scheduler(512, 40_000)
    tokens = _made_up_tokens(len(requests))
    started = time.thread_time()
    for number, request in enumerate(requests):
        add(scheduler, number, request.prompt, request.output_tokens)
    adding = time.thread_time() - started
    stepping = drive(scheduler, tokens, most_steps=sys.maxsize)
    assert stepping.rows == OUTPUT_TOKENS, "tokens were lost"
    assert scheduler.blocks.pool.num_referenced == 0, "blocks were lost"
    return Cost(adding + stepping.cpu_seconds, stepping.steps, stepping.rows)


def decode_cost(rows: int) -> Cost:
    """Steps in which every row decodes, block appends included."""
    scheduler = make_scheduler(rows, rows * (2 * DECODE_PROMPT + DECODE_STEPS) // BLOCK_SIZE)
    tokens = _made_up_tokens(rows)
    for number in range(rows):
        # Lengths differ, so that not all rows cross a block boundary in the same step.
        add(scheduler, number, [number % 1000] * (DECODE_PROMPT + number % BLOCK_SIZE), 2**11)
    while any(sequence is None for sequence in scheduler.rows.sequences):
        drive(scheduler, tokens, most_steps=1)
    drive(scheduler, tokens, most_steps=2)
    return drive(scheduler, tokens, most_steps=DECODE_STEPS)


def grown_bytes() -> int:
    """Resident memory after MEMORY_REQUESTS requests over what a warm scheduler had before them;
    every hundredth is aborted while it waits."""
    scheduler = make_scheduler(64, 2_000)
    tokens = _made_up_tokens(64)
    draw = np.random.default_rng(1)
    numbers = itertools.count()

    def serve(count: int) -> None:
        for _ in range(count // MEMORY_WAVE):
            ids = list(itertools.islice(numbers, MEMORY_WAVE))
            for number in ids:
                add(scheduler, number, draw.integers(2, 10_000, 40).tolist(), 4)
            scheduler.abort(ids[::100])
            drive(scheduler, tokens, most_steps=sys.maxsize)

    serve(MEMORY_REQUESTS // 5)
    before = _resident_bytes()
    serve(MEMORY_REQUESTS)
    return _resident_bytes() - before


def _resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _made_up_tokens(count: int) -> NDArray[np.int32]:
    return np.random.default_rng(0).integers(2, 10_000, count).astype(np.int32)


def _best(costs: list[Cost]) -> Cost:
    return min(costs, key=lambda cost: cost.cpu_seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=5, help="runs of each, of which the best")
    parser.add_argument("--memory", action="store_true", help="also measure growth")
    args = parser.parse_args()
    repeat = args.repeat
    # First: what earlier runs gave back to the allocator would show as growth.
    grown = grown_bytes() if args.memory else None
    gc.collect()
    nano = _best([nano_cost() for _ in range(repeat)])
    decodes = {rows: _best([decode_cost(rows) for _ in range(repeat)]) for rows in DECODE_ROWS}
    print(f"{'workload':<20}{'steps':>8}{'us/step':>10}{'us/row':>9}{'steps/s':>9}")
    named = {"nano": nano, **{f"decode, {rows} rows": cost for rows, cost in decodes.items()}}
    for name, cost in named.items():
        print(
            f"{name:<20}{cost.steps:>8}{cost.us_per_step:>10.1f}{cost.us_per_row:>9.3f}"
            f"{1e6 / cost.us_per_step:>9.0f}"
        )
    summary: dict[str, Any] = {
        "us_per_row": nano.us_per_row,
        "us_per_step": nano.us_per_step,
        "steps_per_s": 1e6 / nano.us_per_step,
        "total_cpu_s": nano.cpu_seconds,
        "steps": nano.steps,
        "rows": nano.rows,
        "decode_us_per_step": {str(rows): cost.us_per_step for rows, cost in decodes.items()},
    }
    if grown is not None:
        print(f"grown by {grown:,} bytes over {MEMORY_REQUESTS:,} requests")
        summary["grown_bytes"] = grown
    print(json.dumps(summary))
    return 0


if __name__ == "__main__":
    sys.exit(main())
