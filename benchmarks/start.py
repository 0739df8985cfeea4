"""From nothing to the first token: a new process imports, reads weights, sizes, captures, answers.

    python -m benchmarks.start --shape qwen3-0.6b [--starts 2]

Weights are random but on disk, so that reading them counts; the file system's cache is warm, since
they have just been written. The first start also compiles what the kernel cache lacks. When each
phase of a start began, and what the engine logged of it; a table; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.workloads.checkpoints import WRITTEN_SHAPES, write_checkpoint

# What the child says when it has its first token.
_FIRST_TOKEN = "first token"


def answer_once(model: str, device: str) -> None:
    """Start the engine in the child and generate one token; says when it got how far."""
    started, phases = psutil.Process().create_time(), list[str]()

    def tell(phase: str, share: float = 0.0) -> None:
        if phase not in phases:
            phases.append(phase)
            print(f"{time.time() - started:6.1f} s {phase}", flush=True)

    tell("importing the engine")
    from atom.sampling_params import SamplingParams
    from benchmarks.engines.offline_engine import OfflineEngine

    tell("building")
    engine = OfflineEngine(
        model, progress=tell, max_model_len=4096, max_num_seqs=256, device=device
    )
    tell("answering")
    engine.add([1, 2, 3], SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True))
    engine.run()
    print(_FIRST_TOKEN, flush=True)


def seconds_to_first_token(model: Path, device: str) -> float:
    command = [sys.executable, "-m", "benchmarks.start", "--answer", str(model), "--device", device]
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if line.strip() == _FIRST_TOKEN:
                seconds = time.perf_counter() - started
                break
            print(line, end="", flush=True)
        else:
            raise SystemExit(f"the engine ended with code {child.wait()} before its first token")
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description="Start-up to the first token.")
    parser.add_argument("--shape", choices=WRITTEN_SHAPES, default="qwen3-0.6b")
    parser.add_argument("--starts", type=int, default=2)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--answer", metavar="MODEL", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.answer:
        logging.basicConfig(level="INFO", stream=sys.stdout, format="         %(message)s")
        answer_once(args.answer, args.device)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        model = write_checkpoint(args.shape, Path(folder))
        size = sum(file.stat().st_size for file in model.iterdir())
        seconds = [seconds_to_first_token(model, args.device) for _ in range(args.starts)]
    for number, took in enumerate(seconds, start=1):
        print(
            f"{args.shape}, {size / 1e9:.1f} GB, start {number}: {took:6.1f} s to the first token"
        )
    print(json.dumps({"shape": args.shape, "weights_bytes": size, "seconds": seconds}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
