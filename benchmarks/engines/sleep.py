"""Sleep and wake of one model shape with random weights: seconds, and bytes that are still held.

    python -m benchmarks.engines.sleep --shape qwen3-8b --cycles 10 --updates 3

A cycle is `sleep`, `wake_up`, and one greedy answer, whose tokens must be those of before; an
update reads the checkpoint, which is then on disk, anew in place of itself. Prints a row for each;
the last line is one JSON object. Offline: no server, no tokenizer.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch

from atom.config_values import SleepLevel
from atom.model_engine.control import CheckWeights, Sleep, UpdateWeights, WakeUp
from atom.model_engine.executor.single import SingleDeviceExecutor
from atom.model_engine.runner.sleep.host_weights import bytes_of, storages_of
from atom.sampling_params import SamplingParams
from benchmarks.engines.offline_engine import OfflineEngine
from benchmarks.workloads.checkpoints import write_checkpoint
from benchmarks.workloads.shapes import add_model_arguments, model_folder

PROMPT_TOKENS, NEW_TOKENS = 100, 16


def answer(engine: OfflineEngine, prompt: list[int]) -> tuple[list[int], float]:
    """Return the tokens, and the seconds to the first."""
    begun = time.perf_counter()
    params = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
    engine.add(prompt, params)
    tokens: list[int] = []
    first = 0.0
    while engine.has_work():
        result = engine.step()
        if result is not None and len(result.token_ids):
            first = first or time.perf_counter() - begun
            tokens += result.token_ids.tolist()
    return tokens, first


def checksum(engine: OfflineEngine) -> float:
    """Sum the bytes of all weights."""
    assert isinstance(engine.executor, SingleDeviceExecutor), "of one device"
    storages = storages_of([engine.executor.runner.steps.model])
    return float(sum(int(bytes_of(each).sum(dtype=torch.int64)) for each in storages))


def cycle(engine: OfflineEngine, level: SleepLevel, prompt: list[int]) -> dict[str, float | str]:
    """Sleep and wake once; the figures and a digest of the tokens behind it."""
    begun = time.perf_counter()
    engine.scheduler.blocks.reset_prefix_cache()
    engine.executor.control(Sleep(level))
    asleep = time.perf_counter()
    gpu = torch.cuda.is_available()
    free, total = torch.cuda.mem_get_info() if gpu else (0, 0)
    woken = time.perf_counter()
    engine.executor.control(WakeUp())
    awake = time.perf_counter() - woken
    tokens, first = answer(engine, prompt)
    return {
        "level": float(level),
        "sleep_s": asleep - begun,
        "wake_s": awake,
        "first_token_s": awake + first,
        "device_mib": (total - free) / 2**20,
        "sum": checksum(engine),
        "tokens": str(tokens),
    }


def update(engine: OfflineEngine, path: Path, prompt: list[int]) -> dict[str, float | str]:
    """Replace the weights by those of the same checkpoint."""
    begun = time.perf_counter()
    engine.executor.control(CheckWeights(str(path)))
    checked = time.perf_counter()
    engine.scheduler.blocks.reset_prefix_cache()
    engine.executor.control(UpdateWeights(str(path)))
    updated = time.perf_counter()
    tokens, first = answer(engine, prompt)
    return {
        "check_s": checked - begun,
        "update_s": updated - checked,
        "first_token_s": first,
        "tokens": str(tokens),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add_model_arguments(parser)
    parser.add_argument("--cycles", type=int, default=5, help="of each level")
    parser.add_argument("--updates", type=int, default=0, help="from a checkpoint on disk")
    parser.add_argument("--enforce-eager", action="store_true", help="without graphs")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = model_folder(args, Path(folder))
        if args.updates:
            write_checkpoint(args.shape, path, args.layers)
        engine = OfflineEngine(
            str(path),
            load_dummy=not args.updates,
            max_model_len=2048,
            enforce_eager=args.enforce_eager,
            enable_sleep_mode=True,
        )
        prompt = engine.random_prompt(PROMPT_TOKENS, np.random.default_rng(0))
        expected, _ = answer(engine, prompt)
        weights = checksum(engine)
        turns = [partial(cycle, engine, level, prompt) for level in SleepLevel] * args.cycles
        turns += [partial(update, engine, path, prompt)] * args.updates
        rows = []
        for turn in turns:
            row = turn()
            if row.pop("tokens") != str(expected) or row.pop("sum", weights) != weights:
                print(f"{turn}: other tokens or bytes than before", file=sys.stderr)
                return 1
            rows.append(row)
            print({name: round(float(value), 3) for name, value in row.items()}, flush=True)
        engine.close()
    print(json.dumps({"start_s": engine.start_seconds, "cycles": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
