"""The nano workload through HTTP: 256 streams at once against the real server, on one GPU.

    python -m benchmarks.served --shape qwen3-0.6b

Starts `atom serve` with random weights and a made-up tokenizer, streams every answer from client
processes of its own, then runs the same workload offline: the last line's `share_of_offline` is
what the server leaves of the engine's throughput.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from atom.entrypoints.bench.exchange import Exchange, Sender, exchange_once
from atom.entrypoints.bench.report_options import ReportOptions
from atom.entrypoints.bench.serving_report import serving_report
from atom.entrypoints.bench.workload import Ask
from benchmarks.engines.server_process import started_server
from benchmarks.workloads.nano_workload import nano_requests
from benchmarks.workloads.shapes import SHAPES, write_shape

RUN_SECONDS = 300
ENGINE_OPTIONS = {
    "max_num_seqs": 256,
    "max_model_len": 4352,
    "load_dummy": True,
    "enable_prefix_caching": False,
}


def write_tokenizer(folder: Path, vocab_size: int) -> None:
    """Every id a different short text: detokenising costs what a real vocabulary costs, of whose
    tokens nearly all are whole characters."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = [entry for entry in alphabet if entry.isascii()]
    words = itertools.chain(
        alphabet,
        ("".join(entries) for entries in itertools.product(plain, repeat=2)),
        ("".join(entries) for entries in itertools.product(plain, repeat=3)),
    )
    vocabulary = {word: index for index, word in enumerate(itertools.islice(words, vocab_size))}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=alphabet[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))


async def stream_all(url: str, requests: list[tuple[list[int], int]]) -> list[Exchange]:
    timeout = aiohttp.ClientTimeout(total=RUN_SECONDS)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(url, connector=connector, timeout=timeout) as session:
        sender = Sender(session, "bench")
        tasks = [exchange_once(sender, Ask(prompt, count)) for prompt, count in requests]
        return list(await asyncio.gather(*tasks))


def client(url: str, requests: list[tuple[list[int], int]]) -> list[Exchange]:
    return asyncio.run(stream_all(url, requests))


def measure_served(url: str, clients: int) -> dict[str, Any]:
    """All streams at once, spread over client processes so that reading is not the limit."""
    requests = [(request.prompt, request.output_tokens) for request in nano_requests()]
    shares = [(url, requests[index::clients]) for index in range(clients)]
    with multiprocessing.get_context("spawn").Pool(clients) as pool:
        pool.starmap(client, [(url, [([1, 2, 3], 4)])] * clients)  # processes and kernels warm
        started = time.perf_counter()
        exchanges = list(itertools.chain.from_iterable(pool.starmap(client, shares)))
        elapsed = time.perf_counter() - started
    return serving_report(exchanges, elapsed, ReportOptions())


def main() -> int:
    parser = argparse.ArgumentParser(description="Served against offline throughput on one GPU.")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen3-0.6b")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--api-server-count", type=int, default=1)
    parser.add_argument(
        "--data-parallel-size", type=int, default=1, help="cards to serve on; offline stays on one"
    )
    args = parser.parse_args()
    flags = ["--api-server-count", str(args.api_server_count)]
    flags += ["--data-parallel-size", str(args.data_parallel_size), "--disable-access-log"]
    with tempfile.TemporaryDirectory() as name:
        folder = write_shape(args.shape, Path(name))
        write_tokenizer(folder, SHAPES[args.shape]["vocab_size"])
        started = time.perf_counter()
        with started_server(folder, ENGINE_OPTIONS, *flags) as server:
            ready_seconds = time.perf_counter() - started
            served = measure_served(server.address, args.clients)
    offline = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--shape", args.shape, "--workload", "nano"],
        capture_output=True,
        text=True,
        check=True,
    )
    nano = json.loads(offline.stdout.splitlines()[-1])["nano"]
    share = float(served["output_throughput"]) / nano["output_tokens_per_second"]
    print(f"ready in {ready_seconds:.1f} s")
    print(f"served   {served['output_throughput']:>12,.0f} out tok/s, {served['failed']} failed")
    print(f"offline  {nano['output_tokens_per_second']:>12,.0f} out tok/s")
    print(f"share    {share:12.1%}")
    results = {
        "shape": args.shape,
        "api_server_count": args.api_server_count,
        "data_parallel_size": args.data_parallel_size,
        "ready_seconds": ready_seconds,
        "share_of_offline": share,
    }
    print(json.dumps({**results, "served": served, "offline": nano}))
    return 0 if served["failed"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
