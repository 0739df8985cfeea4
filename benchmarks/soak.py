"""What a server keeps of the requests that it has served: memory, files, threads and blocks.

    python -m benchmarks.soak [--minutes 30] [--clients 6] [MODEL]

Mixed requests for so long (streams, cuts, several answers, guided ones, some hopeless, stops,
log-probabilities, drafts by n-grams), against a real server on the CPU. Every sample is a row of
each process's resident memory, open files and threads; the last line is one JSON object with how
they grew between the first and the last quarter of the samples, and what is held when all is over.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from benchmarks.engines.server_process import started_server

_SAMPLE_SECONDS = 15.0
_SETTLE_SAMPLES = 4  # compiled grammars, caches and pools are being filled
_OPTIONS = {"device": "cpu", "max_num_seqs": 32, "num_kv_blocks": 512, "max_num_batched_tokens": 64}
_DRAFTS = ("--method", "ngram", "--num-speculative-tokens", "3")
_AMBIGUOUS = "root ::= r0 r0\n" + "\n".join(f'r{i} ::= r{i + 1} r{i + 1} | ""' for i in range(24))
_GRAMMAR = f'{_AMBIGUOUS}\nr24 ::= [a-z] | ""'


@dataclass(frozen=True, slots=True)
class Sample:
    """One process at one time."""

    seconds: float
    name: str
    resident_mib: float
    files: int
    threads: int


def request_of(draw: random.Random) -> dict[str, Any]:
    """The body of one completion."""
    body: dict[str, Any] = {
        "model": "bench",
        "prompt": " ".join(draw.choices(("atom", "serves", "the", "quick", "model"), k=8)),
        "max_tokens": draw.randint(1, 60),
        "stream": draw.random() < 0.5,
        "temperature": draw.choice((0, 0.7, 1.2)),
    }
    kind = draw.randrange(9)
    if kind == 0:
        body["structured_outputs"] = {"regex": r"[a-z]{3,9}( [0-9]+)?"}
    elif kind == 1:
        properties = {f"p{draw.randrange(40)}": {"type": "string", "maxLength": 8}}
        body["structured_outputs"] = {"json": {"type": "object", "properties": properties}}
    elif kind == 2:
        body["structured_outputs"] = {"grammar": _GRAMMAR}
    elif kind == 3:
        body["n"] = 3
    elif kind == 4:
        body["stop"] = ["e", "model"]
    elif kind == 5:
        body["logprobs"] = 3
    elif kind == 6:
        body |= {"prompt": " ".join(["again and"] * 30), "max_tokens": 100}
    return body


async def client(url: str, until: float, draw: random.Random, ends: Counter[str]) -> None:
    """One client after another's fashion: asks, and sometimes leaves."""
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < until:
            leaves = draw.random() < 0.15
            try:
                async with session.post(f"{url}/v1/completions", json=request_of(draw)) as answer:
                    if leaves:
                        await answer.content.readany()
                        ends["left"] += 1
                        continue
                    await answer.read()
                    ends[str(answer.status)] += 1
            except aiohttp.ClientError as error:
                ends[type(error).__name__] += 1


def samples_of(root: int, seconds: float) -> list[Sample]:
    """The server's process and all below it now."""
    parent = psutil.Process(root)
    found = []
    for process in (parent, *parent.children(recursive=True)):
        try:
            found.append(
                Sample(
                    round(seconds, 1),
                    _name(process),
                    round(process.memory_info().rss / 2**20, 1),
                    process.num_fds(),
                    process.num_threads(),
                )
            )
        except psutil.NoSuchProcess:  # a compiler that has ended meanwhile
            continue
    return found


def _name(process: psutil.Process) -> str:
    words = process.cmdline()
    module = words[words.index("-m") + 1] if "-m" in words else (words or ["?"])[0]
    return module.rpartition(".")[2]


async def watch(root: int, until: float, samples: list[Sample]) -> None:
    start = time.monotonic()
    while time.monotonic() < until:
        await asyncio.sleep(_SAMPLE_SECONDS)
        for sample in samples_of(root, time.monotonic() - start):
            samples.append(sample)
            print(
                f"{sample.seconds:8.1f} s  {sample.name:14} {sample.resident_mib:8.1f} MiB "
                f"{sample.files:4d} files {sample.threads:3d} threads",
                flush=True,
            )


def growth(samples: list[Sample]) -> dict[str, dict[str, float]]:
    """Compute by process the medians of the last quarter less those of the first one behind the
    settling."""
    found = {}
    for name in dict.fromkeys(sample.name for sample in samples):
        mine = [sample for sample in samples if sample.name == name][_SETTLE_SAMPLES:]
        quarter = len(mine) // 4
        if quarter < 1:
            continue
        found[name] = {
            field: round(
                statistics.median(getattr(each, field) for each in mine[-quarter:])
                - statistics.median(getattr(each, field) for each in mine[:quarter]),
                1,
            )
            for field in ("resident_mib", "files", "threads")
        }
    return found


async def held(url: str) -> dict[str, float]:
    """Return what requests hold, by /metrics, once none is open."""
    names = ("requests_running", "requests_waiting", "kv_cache_blocks_used")
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return {
        name: sum(float(line.split()[-1]) for line in lines if line.startswith(f"atom:{name}{{"))
        for name in names
    }


async def soak(url: str, root: int, options: argparse.Namespace) -> dict[str, Any]:
    until = time.monotonic() + 60 * options.minutes
    ends: Counter[str] = Counter()
    samples: list[Sample] = []
    draws = [random.Random(number) for number in range(options.clients)]
    await asyncio.gather(
        watch(root, until, samples), *(client(url, until, draw, ends) for draw in draws)
    )
    return {
        "minutes": options.minutes,
        "requests": sum(ends.values()),
        "ends": dict(ends),
        "growth": growth(samples),
        "held_at_the_end": await held(url),
        "last": [asdict(sample) for sample in samples_of(root, 60 * options.minutes)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="examples/models/atom-tiny")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--clients", type=int, default=6)
    options = parser.parse_args()
    with started_server(Path(options.model), _OPTIONS, *_DRAFTS) as server:
        result = asyncio.run(soak(server.address, server.process_id, options))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
