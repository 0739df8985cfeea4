"""Prefill and decode in two engines beside two whole replicas: gaps between tokens, and goodput.

    python -m benchmarks.engines.prefill_decode --shape qwen3-0.6b
    python -m benchmarks.engines.prefill_decode --shape qwen3-0.6b --same 16 --seconds 0
    python -m benchmarks.engines.prefill_decode --shape qwen3-8b --cards 0 1

Two engines with the same random weights and the same memory serve the same mix twice: each half of
it whole, and divided, where the first computes every long prompt and the second answers. Each is
both producer and consumer, so nothing but the requests changes. No server: times are those at which
a step was done. Prints the figures of each way as a JSON line. `--same` compares greedy answers of
one engine with divided ones, both reproducible.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.engines.linked_engine import EngineOrder, EngineProcess
from benchmarks.workloads.checkpoints import write_checkpoint
from benchmarks.workloads.divided_load import Engines, Load, Way, count_differing, figures, run
from benchmarks.workloads.shapes import SHAPES

_SEED = 5
_SAME_TOKENS = (200, 3000)  # of a prompt, fewer if sequences are shorter
_SAME_ANSWER = 32


@contextlib.contextmanager
def engines(args: argparse.Namespace, model: Path) -> Iterator[Engines]:
    """Start both engines, at once if each has a card: on one card an engine would take the memory
    of the other, which starts beside it, for its own."""
    both: list[EngineProcess] = []
    try:
        for number in range(2):
            both.append(EngineProcess(_order(args, model, number)))
            if not args.cards:
                both[-1].wait_ready()
        for each in both if args.cards else ():
            each.wait_ready()
        yield Engines(*both)
    finally:
        for each in both:
            each.close()


def _order(args: argparse.Namespace, model: Path, number: int) -> EngineOrder:
    options: dict[str, Any] = {
        "device": args.device,
        "max_model_len": args.prompt + args.answer,
        "max_num_seqs": args.steady + args.long + 1,
        "max_num_batched_tokens": args.chunk,
        "max_step_seconds": args.max_step_seconds,
        "tensor_parallel_size": args.ranks[number],
        "reproducible": bool(args.same),
    }
    if args.num_kv_blocks:
        options["num_kv_blocks"] = args.num_kv_blocks
    if args.device != "cpu":
        options["gpu_memory_utilization"] = args.memory
    environment = {}
    if args.cards:
        # One card each; an engine of several ranks has all of them, its own first.
        cards = args.cards[number:] + args.cards[:number]
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, cards[: args.ranks[number]]))
    return EngineOrder(str(model), options, environment)


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shape", default="qwen3-0.6b", choices=SHAPES)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--cards", type=int, nargs=2, help="one for each engine")
    parser.add_argument("--ranks", type=int, nargs=2, default=[1, 1], help="of each engine")
    parser.add_argument("--memory", type=float, default=0.45, help="share of a card, each")
    parser.add_argument("--num-kv-blocks", type=int, default=0)
    parser.add_argument("--steady", type=int, default=16)
    parser.add_argument("--long", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=8192)
    parser.add_argument("--answer", type=int, default=1024)
    parser.add_argument("--short", type=int, default=64)
    parser.add_argument("--chunk", type=int, default=8192)
    parser.add_argument("--max-step-seconds", type=float, default=0.0)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each way")
    parser.add_argument("--same", type=int, default=0, help="answers to compare")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments().parse_args(argv)
    vocabulary = SHAPES[args.shape]["vocab_size"]
    sizes = args.steady, args.long, args.prompt, args.answer, args.short
    load = Load(*sizes, vocabulary, args.seconds)
    dice = random.Random(_SEED)
    with tempfile.TemporaryDirectory() as folder:
        model = write_checkpoint(args.shape, Path(folder))
        with engines(args, model) as both:
            if args.same:
                longest = min(_SAME_TOKENS[1], args.prompt + args.answer - _SAME_ANSWER)
                prompts = [
                    [dice.randrange(3, vocabulary) for _ in range(count)]
                    for count in (
                        dice.randrange(_SAME_TOKENS[0], longest) for _ in range(args.same)
                    )
                ]
                count = count_differing(both, prompts, _SAME_ANSWER)
                print(json.dumps({"answers": args.same, "differing": count}), flush=True)
            for way in Way if args.seconds else ():
                run(both, way, Load(2, 2, args.prompt, 32, args.short, vocabulary, 0.5), _SEED)
            for way in Way if args.seconds else ():
                answers, seconds = run(both, way, load, _SEED + 1)
                told = {name: round(value, 4) for name, value in figures(answers, seconds).items()}
                print(json.dumps({"shape": args.shape, "way": way, **told}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
