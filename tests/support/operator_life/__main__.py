"""Plays generated lives by their seeds in several processes, without a test runner.

    python -m tests.support.operator_life --kind wider --seeds 0:2000 --processes 16

Prints each broken seed with its shortest story as soon as it is found, and ends with status 1 if
one broke. Where the project is not installed, PYTHONPATH=engine:operator is needed.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed

from tests.support.operator_life.lives import KINDS, Broken, broken_seed

_TOLD_EVERY = 100  # lives


def _seeds(text: str) -> range:
    """Parse FIRST:END, the end excluded, or one seed."""
    first, colon, end = text.partition(":")
    try:
        found = range(int(first), int(end) if colon else int(first) + 1)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not FIRST:END or one seed") from None
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} has no seed: the end is excluded")
    return found


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.operator_life",
        description="Play generated lives of an AtomDeployment and check its promises.",
    )
    parser.add_argument("--kind", choices=tuple(KINDS), default="plain", help="kind of lives")
    parser.add_argument(
        "--seeds", type=_seeds, nargs="+", required=True, help="ranges FIRST:END, or single seeds"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    return parser.parse_args(arguments)


def tell(kind: str, count: int, results: Iterable[Broken | None]) -> int:
    """Print each broken life at once and all broken seeds at the end; return 1 if there are any."""
    found: list[int] = []
    for number, result in enumerate(results, 1):
        if result is not None:
            found.append(result.seed)
            print(result, flush=True)
        if number % _TOLD_EVERY == 0:
            print(f"{number} of {count} lives, {len(found)} broken", flush=True)
    seeds = f": {' '.join(map(str, sorted(found)))}" if found else ""
    print(f"{count} {kind} lives, {len(found)} broken{seeds}", flush=True)
    return 1 if found else 0


def main(arguments: list[str] | None = None) -> int:
    """Return 1 if a life broke a promise."""
    asked = _parse(sys.argv[1:] if arguments is None else arguments)
    seeds = [seed for each in asked.seeds for seed in each]
    # Each process is a fresh interpreter, whose imports the collector does not walk over again.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(asked.processes, context, initializer=gc.freeze) as pool:
        lives = [pool.submit(broken_seed, asked.kind, seed) for seed in seeds]
        return tell(asked.kind, len(seeds), (life.result() for life in as_completed(lives)))


if __name__ == "__main__":
    sys.exit(main())
