"""The host's tier of the KV cache on one GPU: rates of its copies, and agents with and without it.

    python -m benchmarks.engines.kv_tiers [--only gather copies prompt decode] [--block-size 16 64]
    python -m benchmarks.engines.kv_tiers --only agents same [--shape qwen3-8b] [--turns 10]

Copies are those of an 8B model's cache (36 layers, 8 KV heads of 128, bfloat16) by the classes that
the engine runs, beside what a pinned copy of 1 GiB reaches; `decode` is the memory traffic of 64
rows of that model in a graph, alone and beside a stream of loads and stores. `agents` are
conversations that take turns on a device cache that is too small, random weights; `same` compares
the greedy tokens of `--reproducible` engines. `--queue-mib 256` bounds the pages of a step that are
written at once, of which there is place for all otherwise. `--device cpu --tiny` shows that all
parts run.
Prints a row for each figure; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from atom.collectives.group import ALONE
from atom.model_engine.control import MovePages
from atom.model_engine.runner.pages.host_tier import RankTier
from atom.model_ops.backends.page_ops import page_ops
from atom.model_ops.page_table import PageTable
from atom.sizing import host_tier
from atom.sizing.host_tier import HostTier
from atom.utils.device import Device, detect_device
from benchmarks.workloads.agent_turns import Agents, same_tokens, with_and_without
from benchmarks.workloads.shapes import SHAPES, write_shape

PARTS = ("gather", "copies", "prompt", "decode", "agents", "same")
COUNTS = (1, 16, 64, 512)  # blocks that are copied together
PROMPT_TOKENS = 32_768
GB = 1e9
_SECONDS = 0.25  # of each measurement, at least
_REPEATS = 3


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a model: its cache and its matrices. rows, context: of the decode."""

    layers: int = 36
    heads: int = 8
    head_dim: int = 128
    hidden: int = 4096
    inner: int = 12288
    rows: int = 64
    context: int = 1024
    prompt_tokens: int = PROMPT_TOKENS

    def page_bytes(self, block_size: int) -> int:
        return self.layers * 2 * self.heads * self.head_dim * 2 * block_size


TINY = Sizes(2, 2, 16, 32, 64, 4, 64, 1024)


class Cache:
    """A cache without a model, and the tier below it. tokens: that both hold."""

    def __init__(self, device: Device, sizes: Sizes, block_size: int, tokens: int) -> None:
        self.device, self.page_bytes = device, sizes.page_bytes(block_size)
        self.blocks = tokens // block_size
        shape = (self.blocks, block_size, sizes.heads, sizes.head_dim)
        place = device.torch_device
        tensors = [
            torch.randn(shape, dtype=torch.bfloat16, device=place) for _ in range(2 * sizes.layers)
        ]
        self.table = PageTable.of(tensors)
        tier = HostTier(self.blocks, self.page_bytes, 0, 0, 1, tokens)
        self.most = tier.queue_sizes[0]
        self.tier = RankTier(tier, device, ALONE)
        self.tier.bind_tables([self.table])
        self._number = 0

    def move(self, saves: range = range(0), loads: range = range(0)) -> int:
        """Begin to move blocks, each with the row of its number."""
        self._number += 1
        moves = [[(0, block, block) for block in each] for each in (saves, loads)]
        self.tier.move(MovePages(self._number, *moves))
        return self._number

    def save(self, blocks: range, loads: range = range(0)) -> None:
        """Move blocks to the host, as many at once as may be under way, and as many others back."""
        for first in range(0, len(blocks), self.most):
            self.wait(self.move(*(each[first:][: self.most] for each in (blocks, loads))))

    def load(self, blocks: range) -> None:
        """Move blocks back to the device."""
        self.wait(self.move(loads=blocks))

    def wait(self, number: int) -> None:
        self.tier.wait_moved(number)
        while self.tier.moved_number < number:
            time.sleep(0)

    def close(self) -> None:
        self.tier.unbind()


def seconds_of(device: Device, call: Callable[[], object]) -> float:
    """Return the least mean time of a call, of some measurements."""

    def wait() -> None:
        if device.is_gpu:
            torch.cuda.synchronize()

    call()
    wait()
    found = []
    for _ in range(_REPEATS):
        began, calls = time.perf_counter(), 0
        while time.perf_counter() - began < _SECONDS / _REPEATS:
            call()
            wait()
            calls += 1
        found.append((time.perf_counter() - began) / calls)
    return min(found)


def gather(cache: Cache, name: str) -> Iterator[tuple[str, float]]:
    """Rates of one launch that gathers blocks, and of one that scatters them."""
    ops, place = page_ops(cache.device.torch_device), cache.device.torch_device
    for count in COUNTS:
        if count > cache.blocks:
            continue
        blocks = torch.randperm(cache.blocks)[:count].to(place)
        pages = torch.empty(count, cache.page_bytes, dtype=torch.uint8, device=place)
        for which, copy in (("gather", ops.read_pages), ("scatter", ops.write_pages)):
            seconds = seconds_of(cache.device, partial(copy, cache.table, blocks, pages))
            yield f"{name}_{which}_{count}_gb_per_s", pages.nbytes / seconds / GB


def copies(cache: Cache, name: str) -> Iterator[tuple[str, float]]:
    """Rates of moves to the host and back, from the call to the last checksum, and of both at
    once. More blocks than may be saved at once go in several calls."""
    for count in (each for each in COUNTS if 2 * each <= cache.blocks):
        own, others = range(count), range(count, 2 * count)
        cache.save(range(2 * count))
        size = count * cache.page_bytes
        ways = {
            "out": partial(cache.save, own),
            "in": partial(cache.load, own),
            "both": partial(cache.save, own, others),
        }
        for which, call in ways.items():
            yield f"{name}_{which}_{count}_gb_per_s", size / seconds_of(cache.device, call) / GB


def pinned(device: Device) -> Iterator[tuple[str, float]]:
    """Rates of one large pinned copy, which nothing exceeds."""
    if not device.is_gpu:
        return
    host = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    card = torch.empty(1 << 30, dtype=torch.uint8, device=device.torch_device)
    for which, to, source in (("out", host, card), ("in", card, host)):
        seconds = seconds_of(device, partial(to.copy_, source, non_blocking=True))
        yield f"pinned_{which}_gb_per_s", host.nbytes / seconds / GB


def prompt(cache: Cache, name: str) -> Iterator[tuple[str, float]]:
    """Seconds until a long prompt's pages are on the device."""
    blocks = range(cache.blocks)
    cache.save(blocks)
    seconds = seconds_of(cache.device, partial(cache.load, blocks))
    yield f"{name}_prompt_gb", cache.blocks * cache.page_bytes / GB
    yield f"{name}_prompt_seconds", seconds


class Decode:
    """The products and the attention of a step of decodes, which read every weight and every
    key."""

    def __init__(self, device: Device, sizes: Sizes) -> None:
        def drawn(*size: int) -> torch.Tensor:
            return torch.randn(size, dtype=torch.bfloat16, device=device.torch_device)

        hidden, inner = sizes.hidden, sizes.inner
        qkv = hidden + 2 * sizes.heads * sizes.head_dim
        shapes = ((qkv, hidden), (hidden, hidden), (2 * inner, hidden), (hidden, inner))
        self._matrices = [[drawn(*shape) for shape in shapes] for _ in range(sizes.layers)]
        pairs = sizes.rows * sizes.heads
        self._kept = [drawn(2, pairs, sizes.context, sizes.head_dim) for _ in range(sizes.layers)]
        self._rows = {width: drawn(sizes.rows, width) for width in (hidden, inner)}
        self._queries = drawn(pairs, 4, sizes.head_dim)
        self.run: Callable[[], None] = self._step
        self._step()
        if device.is_gpu:
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._step()
            self.run = graph.replay

    def _step(self) -> None:
        for matrices, (keys, values) in zip(self._matrices, self._kept, strict=True):
            for matrix in matrices:
                torch.nn.functional.linear(self._rows[matrix.shape[1]], matrix)
            torch.bmm(torch.bmm(self._queries, keys.mT).softmax(-1), values)


def decode(cache: Cache, sizes: Sizes) -> Iterator[tuple[str, float]]:
    """Milliseconds of a step of decodes, alone and beside moves both ways."""
    step, half = Decode(cache.device, sizes), cache.blocks // 2
    most = min(cache.most, half)
    cache.save(range(cache.blocks))
    alone = seconds_of(cache.device, step.run)
    before, began = cache.tier.totals, time.perf_counter()
    last, first = 0, 0

    def beside() -> None:
        nonlocal last, first
        if cache.tier.moved_number >= last:
            first = (first + most) % (half - most + 1)
            own = range(first, first + most)
            last = cache.move(own, range(half + own.start, half + own.stop))
        step.run()

    both = seconds_of(cache.device, beside)
    cache.wait(last)
    seconds, after = time.perf_counter() - began, cache.tier.totals
    yield "decode_alone_ms", alone * 1e3
    yield "decode_beside_ms", both * 1e3
    yield "decode_slower_percent", (both / alone - 1) * 100
    yield "decode_loads_gb_per_s", (after.load_bytes - before.load_bytes) / seconds / GB
    yield "decode_stores_gb_per_s", (after.store_bytes - before.store_bytes) / seconds / GB


def rates(args: argparse.Namespace, device: Device) -> Iterator[tuple[str, float]]:
    """Every figure of copies that was asked for."""
    sizes = TINY if args.tiny else Sizes()
    if "copies" in args.only:
        yield from pinned(device)
    for block_size in args.block_size:
        if not {"gather", "copies", "prompt"} & set(args.only):
            break
        cache, name = Cache(device, sizes, block_size, sizes.prompt_tokens), f"b{block_size}"
        for part, measure in (("gather", gather), ("copies", copies), ("prompt", prompt)):
            if part in args.only:
                yield from measure(cache, name)
        cache.close()
        del cache
        gc.collect()
    if "decode" in args.only:
        cache = Cache(device, sizes, 16, sizes.prompt_tokens)
        yield from decode(cache, sizes)
        cache.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts to measure")
    parser.add_argument("--block-size", nargs="+", type=int, default=[16, 64])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen3-8b", help="of agents")
    parser.add_argument("--turns", type=int, help="of an agent")
    parser.add_argument("--write", choices=("back", "through"), default="through")
    parser.add_argument("--queue-mib", type=int, help="of pages that are written at once")
    parser.add_argument("--tiny", action="store_true", help="small sizes, which show that it runs")
    args = parser.parse_args()
    device = detect_device(args.device)
    if args.queue_mib:
        host_tier.MOST_QUEUE_BYTES = args.queue_mib << 20
    summary: dict[str, float | str] = {"device": device.name}

    def tell(figures: Iterator[tuple[str, float]]) -> None:
        for name, value in figures:
            summary[name] = round(value, 4)
            print(f"{name:<36}{value:14.3f}", flush=True)

    with torch.inference_mode():
        tell(rates(args, device))
    gc.collect()
    agents = replace(Agents.tiny() if args.tiny else Agents(), write=args.write)
    if args.turns:
        agents = agents.longer(args.turns)
    with tempfile.TemporaryDirectory() as folder:
        shape = write_shape("tiny" if args.tiny else args.shape, Path(folder))
        if "agents" in args.only:
            tell(with_and_without(shape, args.device, agents))
        if "same" in args.only:
            tell(same_tokens(shape, args.device, agents))
    print(json.dumps(summary))
    return 0


if __name__ == "__main__":
    sys.exit(main())
