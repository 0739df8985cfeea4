"""Prefill and decode in two engines beside two whole replicas: gaps between tokens, and goodput.

    python -m benchmarks.engines.prefill_decode --shape qwen3-0.6b
    python -m benchmarks.engines.prefill_decode --shape qwen3-0.6b --same 16 --seconds 0
    python -m benchmarks.engines.prefill_decode --shape qwen3-8b --cards 0 1 --load-dummy
    python -m benchmarks.engines.prefill_decode --shape qwen3-8b --cards 0 1 --load-dummy \
        --steady 0 --long 16 64 --spread
    python -m benchmarks.engines.prefill_decode --shape qwen3-8b --engines 1 --memory 0.9

Two engines with the same random weights and the same memory serve the same mix twice: each half of
it whole, and divided, where the first computes every long prompt and the second answers. Each is
both producer and consumer, so nothing but the requests changes. No server: times are those at which
a step was done. Prints the figures of each way as a JSON line. Several numbers behind `--long` are
several loads; `--spread` begins to measure once the streams are at unlike places of their answers;
with `--engines 1` one engine answers everything whole; `--way` leaves the other way out. `--same`
compares greedy answers of reproducible engines: divided ones with the whole ones of each engine,
these with each other, and divided ones with divided ones. So the counts tell a fault of the
transfer from one of an engine.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from atom.kv_transfer_config.values import TRANSPORTS
from benchmarks.engines.linked_engine import EngineOrder, EngineProcess
from benchmarks.workloads.checkpoints import write_checkpoint
from benchmarks.workloads.divided_load import Engines, Load, Way, count_differing, figures, run
from benchmarks.workloads.shapes import SHAPES, write_shape

_SEED = 5
_SAME_TOKENS = (200, 3000)  # of a prompt, fewer if sequences are shorter
_SAME_ANSWER = 32


@contextlib.contextmanager
def engines(args: argparse.Namespace, model: Path) -> Iterator[Engines]:
    """Start the engines, at once if each has a card: on one card an engine would take the memory
    of the other, which starts beside it, for its own."""
    both: list[EngineProcess] = []
    try:
        for number in range(args.engines):
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
        "max_num_seqs": args.steady + max(args.long) + 1,
        "max_num_batched_tokens": args.chunk,
        "max_step_seconds": args.max_step_seconds,
        "tensor_parallel_size": args.ranks[number],
        "reproducible": bool(args.same),
        "load_dummy": args.load_dummy,
    }
    if args.num_kv_blocks:
        options["num_kv_blocks"] = args.num_kv_blocks
    if args.device != "cpu":
        options["gpu_memory_utilization"] = args.memory
    environment = {}
    if args.cards:
        # Its own card first; the other one's memory is read by some transports.
        cards = args.cards[number:] + args.cards[:number]
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, cards))
    return EngineOrder(str(model), options, environment, args.transport)


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shape", default="qwen3-0.6b", choices=SHAPES)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--cards", type=int, nargs=2, help="one for each engine")
    parser.add_argument("--ranks", type=int, nargs=2, default=[1, 1], help="of each engine")
    parser.add_argument("--memory", type=float, default=0.45, help="share of a card, each")
    parser.add_argument("--num-kv-blocks", type=int, default=0)
    parser.add_argument("--steady", type=int, default=16)
    parser.add_argument("--long", type=int, nargs="+", default=[8])
    parser.add_argument("--spread", action="store_true", help="measure a load that has run in")
    parser.add_argument("--engines", type=int, default=2, choices=(1, 2))
    parser.add_argument("--transport", default="auto", choices=TRANSPORTS)
    parser.add_argument("--load-dummy", action="store_true", help="weights without a checkpoint")
    parser.add_argument("--prompt", type=int, default=8192)
    parser.add_argument("--answer", type=int, default=1024)
    parser.add_argument("--short", type=int, default=64)
    parser.add_argument("--chunk", type=int, default=8192)
    parser.add_argument("--max-step-seconds", type=float, default=0.0)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each way")
    parser.add_argument("--same", type=int, default=0, help="answers to compare")
    parser.add_argument("--way", nargs="+", default=list(Way), choices=list(Way))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments().parse_args(argv)
    vocabulary = SHAPES[args.shape]["vocab_size"]
    sizes = args.prompt, args.answer, args.short
    loads = [
        Load(args.steady, long, *sizes, vocabulary, args.seconds, args.spread)
        for long in (args.long if args.seconds else ())
    ]
    ways = [Way(each) for each in args.way][: args.engines]
    dice = random.Random(_SEED)
    with tempfile.TemporaryDirectory() as folder:
        write = write_shape if args.load_dummy else write_checkpoint
        model = write(args.shape, Path(folder))
        with engines(args, model) as both:
            if args.same:
                longest = min(_SAME_TOKENS[1], args.prompt + args.answer - _SAME_ANSWER)
                prompts = [
                    [dice.randrange(3, vocabulary) for _ in range(count)]
                    for count in (
                        dice.randrange(_SAME_TOKENS[0], longest) for _ in range(args.same)
                    )
                ]
                differing = asdict(count_differing(both, prompts, _SAME_ANSWER))
                print(json.dumps({"answers": args.same, "differing": differing}), flush=True)
            warm = Load(2, 2, args.prompt, min(32, args.answer), args.short, vocabulary, 0.5)
            for way in ways if loads else ():
                run(both, way, warm, _SEED)
            for load, way in itertools.product(loads, ways):
                answers, window = run(both, way, load, _SEED + 1)
                told = {name: round(value, 4) for name, value in figures(answers, window).items()}
                facts = {"shape": args.shape, "way": way, "engines": args.engines}
                streams = {"steady": load.steady, "long": load.long, "transport": args.transport}
                print(json.dumps({**facts, **streams, **told}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
