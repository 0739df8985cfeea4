"""Plays generated lives by their seeds in several processes, without a test runner.

    python -m tests.support.operator_life --kind wider --seeds 0:2000 --processes 16
    python -m tests.support.operator_life --seeds plain=0:5000 pair=0:2000 --seconds 540

Prints each broken seed with its shortest story as soon as it is found, at the end the cause of each
in a line, and with a time limit the seeds that were not played. Ends with status 1 if a life broke
or was not played. Where the project is not installed, PYTHONPATH=engine:operator is needed.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TextIO

from tests.support.operator_life.lives import KINDS, Broken, broken_seed

_TOLD_EVERY = 100  # lives

Life = tuple[str, int]  # its kind and its seed


def _seeds(text: str) -> tuple[str, range]:
    """Parse [KIND=]FIRST:END, the end excluded, or one seed; the kind is empty if none is named."""
    kind, equals, numbers = text.rpartition("=")
    if equals and kind not in KINDS:
        raise argparse.ArgumentTypeError(f"{text!r}: {kind!r} is none of {', '.join(KINDS)}")
    first, colon, end = numbers.partition(":")
    try:
        found = range(int(first), int(end) if colon else int(first) + 1)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not FIRST:END or one seed") from None
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} has no seed: the end is excluded")
    return kind, found


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.operator_life",
        description="Play generated lives of an AtomDeployment and check its promises.",
    )
    parser.add_argument(
        "--kind", choices=tuple(KINDS), default="plain", help="kind of the seeds that name none"
    )
    parser.add_argument(
        "--seeds",
        type=_seeds,
        nargs="+",
        required=True,
        metavar="[KIND=]FIRST:END",
        help="ranges of seeds, or single seeds",
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--seconds", type=float, help="time limit: lives that run then are ended, and count as left"
    )
    parser.add_argument(
        "--json", type=Path, help="file of JSON lines: each broken seed, at the end the counts"
    )
    return parser.parse_args(arguments)


def in_turn(asked: Sequence[tuple[str, range]]) -> list[Life]:
    """Order the lives so that every part of a run has the kinds in the proportion of the whole."""
    places = [
        ((number + 0.5) / len(seeds), kind, seed)
        for kind, seeds in asked
        for number, seed in enumerate(seeds)
    ]
    return list(dict.fromkeys((kind, seed) for _, kind, seed in sorted(places)))


def as_arguments(lives: Iterable[Life]) -> str:
    """Write lives as the ranges that --seeds takes."""
    found: list[tuple[str, int, int]] = []
    for kind, seed in sorted(lives):
        if found and found[-1][0] == kind and found[-1][2] == seed:
            found[-1] = (kind, found[-1][1], seed + 1)
        else:
            found.append((kind, seed, seed + 1))
    return " ".join(f"{kind}={first}:{end}" for kind, first, end in found)


def played(
    lives: Sequence[Life], processes: int, seconds: float | None
) -> Iterator[tuple[Life, Broken | None]]:
    """Play lives, and yield each as it ends, until the time is over."""
    # Each process is a fresh interpreter, whose imports the collector does not walk over again.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, initializer=gc.freeze) as pool:
        running = {pool.submit(broken_seed, *life): life for life in lives}
        with suppress(TimeoutError):
            for done in as_completed(running, seconds):
                yield running[done], done.result()
            return
        # The pool drops all lives that it has not begun as soon as a process of it is gone.
        for process in multiprocessing.active_children():
            process.terminate()


def tell(
    lives: Sequence[Life],
    outcomes: Iterable[tuple[Life, Broken | None]],
    lines: TextIO | None = None,
) -> int:
    """Print each broken life at once, all causes and all lives that are left at the end, and the
    same as JSON to `lines`; return 1 if a life is broken or left."""
    found: list[Broken] = []
    left, asked = dict.fromkeys(lives), Counter(kind for kind, _ in lives)
    for number, (life, result) in enumerate(outcomes, 1):
        left.pop(life)
        if result is not None:
            found.append(result)
            print(result, flush=True)
            _write(lines, **_written(result), story=str(result.story))
        if number % _TOLD_EVERY == 0:
            print(f"{number} of {len(lives)} lives, {len(found)} broken", flush=True)
    for result in sorted(found, key=lambda each: (each.kind, each.seed)):
        print(f"{result.kind} {result.seed}: {result.cause}")
    unplayed, broken = Counter(kind for kind, _ in left), Counter(each.kind for each in found)
    counts = {kind: (asked[kind] - unplayed[kind], broken[kind]) for kind in asked}
    if left:
        print(f"{len(left)} are left: --seeds {as_arguments(left)}")
    told = ", ".join(f"{number} {kind} ({worse})" for kind, (number, worse) in counts.items())
    total = len(lives) - len(left)
    print(f"{total} of {len(lives)} lives, {len(found)} broken: {told}", flush=True)
    _write(lines, played=total, asked=len(lives), broken=len(found), left=as_arguments(left))
    return 1 if found or left else 0


def _written(result: Broken) -> dict[str, Any]:
    return {"kind": result.kind, "seed": result.seed, "cause": result.cause, "words": result.words}


def _write(lines: TextIO | None, **values: Any) -> None:
    if lines is not None:
        print(json.dumps(values), file=lines, flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Return 1 if a life broke a promise, or was not played."""
    asked = _parse(sys.argv[1:] if arguments is None else arguments)
    lives = in_turn([(kind or asked.kind, seeds) for kind, seeds in asked.seeds])
    with ExitStack() as open_files:
        lines = open_files.enter_context(asked.json.open("w")) if asked.json else None
        return tell(lives, played(lives, asked.processes, asked.seconds), lines)


if __name__ == "__main__":
    sys.exit(main())
