"""Several models in one server, asked for by Zipf's law: how long first tokens take, and what is
left of the hottest one's speed.

    python -m benchmarks.engines.several_models --shapes qwen3-4b qwen3-8b qwen3-0.6b --seconds 60

Starts `atom serve --models FILE` with random weights and a made-up tokenizer; the first shape is
asked for most, the n-th 1/n times as often. Requests arrive at random moments, first those of the
hottest model alone, then all. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import numpy as np

from benchmarks.engines.server_process import started
from benchmarks.served import write_tokenizer
from benchmarks.workloads.shapes import SHAPES, write_shape

OUTPUT_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Asked:
    """One request's times. model: its number; first: seconds to its first token; each: seconds
    between two tokens."""

    model: int
    first: float
    each: float


async def ask(session: aiohttp.ClientSession, address: str, model: int, length: int) -> Asked:
    body = {
        "model": f"m{model}",
        "prompt": list(range(100, 100 + length)),
        "max_tokens": OUTPUT_TOKENS,
        "ignore_eos": True,
        "stream": True,
    }
    begun, times = time.perf_counter(), []
    async with session.post(f"{address}/v1/completions", json=body) as response:
        if response.status != 200:
            raise SystemExit(f"m{model}: {response.status} {await response.text()}")
        async for line in response.content:
            if line.startswith(b"data: {"):
                times.append(time.perf_counter())
    return Asked(model, times[0] - begun, (times[-1] - times[0]) / (OUTPUT_TOKENS - 1))


async def load(address: str, models: Sequence[int], moments: Sequence[float]) -> list[Asked]:
    """Ask each model at its moment, in seconds from now."""
    draw = np.random.default_rng(3)
    lengths = draw.integers(50, 500, len(models))
    timeout = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(
        timeout=timeout, connector=aiohttp.TCPConnector(limit=0)
    ) as session:
        begun, asked = time.perf_counter(), []
        for model, moment, length in zip(models, moments, lengths, strict=True):
            await asyncio.sleep(max(0.0, begun + moment - time.perf_counter()))
            asked.append(asyncio.create_task(ask(session, address, int(model), int(length))))
        return list(await asyncio.gather(*asked))


def arrivals(args: argparse.Namespace, rate: float) -> tuple[list[int], list[float]]:
    """Draw which models are asked, and when."""
    draw = np.random.default_rng(2)
    shares = 1 / np.arange(1, len(args.shapes) + 1)
    count = int(args.seconds * rate)
    models = draw.choice(len(args.shapes), count, p=shares / shares.sum())
    moments = np.cumsum(draw.exponential(1 / rate, count))
    return models.tolist(), moments.tolist()


async def measure(args: argparse.Namespace, address: str) -> list[dict[str, object]]:
    for model in range(len(args.shapes)):  # each once, for what is compiled at the first time
        await load(address, [model], [0.0])
    return [await measure_rate(args, address, rate) for rate in args.rates]


async def measure_rate(args: argparse.Namespace, address: str, rate: float) -> dict[str, object]:
    models, moments = arrivals(args, rate)
    hottest = [moment for model, moment in zip(models, moments, strict=True) if model == 0]
    alone = await load(address, [0] * len(hottest), hottest)
    together = await load(address, models, moments)
    firsts = np.array([each.first for each in together])
    result: dict[str, object] = {
        "rate": rate,
        "requests": len(together),
        "first_token_p50_s": float(np.quantile(firsts, 0.5)),
        "first_token_p95_s": float(np.quantile(firsts, 0.95)),
        "first_token_worst_s": float(firsts.max()),
    }
    speeds = [
        float(np.median([1 / each.each for each in asked if each.model == 0]))
        for asked in (alone, together)
    ]
    result["hottest_tokens_per_second"] = {"alone": speeds[0], "together": speeds[1]}
    result["hottest_share"] = speeds[1] / speeds[0]
    print(json.dumps(result), flush=True)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--shapes", nargs="+", choices=sorted(SHAPES), required=True)
    parser.add_argument("--shares", nargs="+", type=float, help="of the device's memory, by model")
    parser.add_argument("--capacity", type=float, default=0.8, help="of the models awake")
    parser.add_argument(
        "--rates", nargs="+", type=float, default=[2.0, 4.0], help="requests a second, in turn"
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    args = parser.parse_args()
    shares = args.shares or [args.capacity / 2] * len(args.shapes)
    with tempfile.TemporaryDirectory() as folder:
        lines = []
        for number, (shape, share) in enumerate(zip(args.shapes, shares, strict=True)):
            path = Path(folder) / f"m{number}"
            path.mkdir()
            write_tokenizer(write_shape(shape, path), SHAPES[shape]["vocab_size"])
            options = {"gpu-memory-utilization": share, "load-dummy": True}
            lines.append({"name": f"m{number}", "model": str(path), "options": options})
        file = Path(folder) / "models.yaml"
        file.write_text(json.dumps(lines))  # which is YAML, too
        arguments = ["serve", "--models", str(file), "--disable-access-log"]
        arguments += ["--gpu-memory-utilization", str(args.capacity)]
        arguments += ["--max-model-len", "2048", "--max-num-seqs", "32"]
        begun = time.perf_counter()
        with started("atom.entrypoints.cli", *arguments) as server:
            start_seconds = time.perf_counter() - begun
            rates = asyncio.run(measure(args, server.address))
    print(json.dumps({"start_s": start_seconds, "rates": rates}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
