"""Two engines beside each other: one checkpoint, one machine, one call, and the ratios.

    python -m benchmarks.peers.beside --shape qwen3-30b-a3b --layers 16 --peer vllm:LLM \\
        --peer-python /opt/vllm/bin/python --workload decode prefill nano

Writes the shape's checkpoint once (random and normal, so that both route alike), then runs
`benchmarks.peers.offline` in a process for each engine, ours first. Ours also makes text of its
tokens from a made-up vocabulary; vLLM is told to make none. Ratios above 1 are in our favour. The
last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.offline import add_workload_arguments
from benchmarks.served import write_tokenizer
from benchmarks.workloads.checkpoints import WRITTEN_SHAPES, write_checkpoint
from benchmarks.workloads.shapes import SHAPES

OURS = "atom:LLMEngine"
_ROOT = Path(__file__).parents[2]


def figures(
    python: str, engine: str, model: Path, options: Mapping[str, Any], words: Sequence[str]
) -> dict[str, Any]:
    """Run one engine to its end. Raises SystemExit with what it ended with."""
    command = [python, "-m", "benchmarks.peers.offline", "--engine", engine, "--model", str(model)]
    command += ["--options", json.dumps(options), *words]
    paths = [str(_ROOT), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{engine} ended with code {done.returncode}; see above")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def compared(
    ours: Mapping[str, Any], peer: Mapping[str, Any]
) -> Iterator[tuple[str, float, float]]:
    """Yield every figure that both have: its name, ours, the peer's."""
    for rows, figure in ours.get("decode", {}).items():
        yield f"decode, {rows} rows, ms", figure["ms_per_step"], peer["decode"][rows]["ms_per_step"]
    for name in ("prefill", "long"):
        if name in ours:
            key = "tokens_per_second"
            yield f"{name}, tok/s", ours[name][key], peer[name][key]
    if "nano" in ours:
        key = "output_tokens_per_second"
        yield "nano, out tok/s", ours["nano"][key], peer["nano"][key]


def ratio(name: str, ours: float, peer: float) -> float:
    """Return how many times as fast ours is."""
    return peer / ours if name.endswith("ms") else ours / peer


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Two engines on one checkpoint.")
    parser.add_argument("--shape", choices=WRITTEN_SHAPES, default="qwen3-0.6b")
    parser.add_argument("--layers", type=int, help="so many of the shape's; all without")
    parser.add_argument("--peer", required=True, help="module:Class, such as vllm:LLM")
    parser.add_argument("--peer-python", default=sys.executable, help="that has the peer")
    parser.add_argument("--options", type=json.loads, default={}, help="of ours, as JSON")
    parser.add_argument("--peer-options", type=json.loads, default={}, help="of the peer's")
    add_workload_arguments(parser)
    args = parser.parse_args(argv)
    words = ["--workload", *args.workload, "--rows", *map(str, args.rows)]
    with tempfile.TemporaryDirectory() as folder:
        try:
            model = write_checkpoint(args.shape, Path(folder), args.layers)
            write_tokenizer(model, SHAPES[args.shape]["vocab_size"])
        except ValueError as error:
            raise SystemExit(str(error)) from None
        ours = figures(sys.executable, OURS, model, args.options, words)
        peer = figures(args.peer_python, args.peer, model, args.peer_options, words)
    print(f"{args.shape}, {args.layers or 'all'} layers: ours, {args.peer}, ratio")
    ratios = {}
    for name, mine, other in compared(ours, peer):
        ratios[name] = ratio(name, mine, other)
        print(f"  {name:<24} {mine:12,.2f} {other:12,.2f} {ratios[name]:6.2f}")
    print(json.dumps({"shape": args.shape, "ours": ours, "peer": peer, "ratios": ratios}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
