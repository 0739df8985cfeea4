"""Pages of an engine of several ranks beside those of one rank: which bytes differ, and where.

    python -m benchmarks.engines.page_bytes --shape qwen3-0.6b --ranks 2
    python -m benchmarks.engines.page_bytes --shape tiny --device cpu --chunk 256

Both engines are `--reproducible`, so the pages of a prompt are equal to the byte if ranks compute
as one does. Prompts are computed together, and their pages are read while the steps of others run
(`running`), at the end (`together`), and once more (`again`); then each prompt is computed alone.
Each reading is held against the same prompts' pages of one rank. `again` and `running` differ from
`together` if reading is at fault, and `alone` if a step's other rows are. Prints a JSON line for
each reading: pages that differ, of how many prompts, and their layers, heads and tokens.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from atom.kv_transfer_config.values import KVTransferConfig
from atom.model_engine.page_access import PageAccess
from atom.model_engine.request import Request
from atom.sampling_params import SamplingParams
from benchmarks.engines.offline_engine import OfflineEngine
from benchmarks.workloads.checkpoints import write_checkpoint
from benchmarks.workloads.shapes import SHAPES

_SEED = 5
_SHOWN = 12  # of each kind of place

# The pages of each prompt: of each group, in their order.
Pages = list[list[list[bytes]]]


class Computed:
    """An engine, and the prompts that it computes. running: their pages as they were read while
    steps of other prompts ran."""

    def __init__(self, model: Path, **options: Any) -> None:
        self.engine = OfflineEngine(
            str(model), kv_transfer=KVTransferConfig(port=0), reproducible=True, **options
        )
        self.access: PageAccess = self.engine.executor.transferred_pages()
        self.running: Pages = []

    def compute(self, prompts: Sequence[list[int]], salt: str, *, together: bool) -> None:
        """Compute prompts, all at once or one after another."""
        self.running = [[] for _ in prompts]
        for number, prompt in enumerate(prompts):
            self._add(number, prompt, salt)
            if not together:
                self._run(prompts, salt)
        self._run(prompts, salt)

    def pages(self, prompts: Sequence[list[int]], salt: str) -> Pages:
        """Read the pages of all prompts."""
        return [self._pages_of(prompt, salt) for prompt in prompts]

    def _add(self, number: int, prompt: list[int], salt: str) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
        self.engine.pipeline.add(
            Request(
                id=number,
                prompt_token_ids=prompt,
                params=params,
                max_total_tokens=len(prompt) + 1,
                arrive_time=time.monotonic(),
                cache_salt=salt,
            )
        )

    def _run(self, prompts: Sequence[list[int]], salt: str) -> None:
        while self.engine.has_work():
            result = self.engine.step()
            for row in () if result is None else result.finished:
                self.running[row.request_id] = self._pages_of(prompts[row.request_id], salt)

    def _pages_of(self, prompt: list[int], salt: str) -> list[list[bytes]]:
        tokens = np.array(prompt, dtype=np.int32)
        match = self.engine.scheduler.blocks.match_prefix(tokens, salt, None)
        return [
            [bytes(page) for page in self.access.read(group, block_ids)]
            for group, block_ids in enumerate(match.block_ids)
        ]


def places(description: str, one: bytes, other: bytes) -> list[tuple[int, int, int]]:
    """Name the places at which two pages differ: number of the tensor, piece (a token of the block,
    or the whole of it), head. description: of the group's page, as PageAccess describes it."""
    found, offset = [], 0
    for number, part in enumerate(description.rpartition(":")[2].split(",")):
        pieces, heads, width = map(int, part.split("x"))
        size = pieces * heads * width
        shape = (pieces, heads, width)
        parts = [
            np.frombuffer(page, np.uint8, size, offset).reshape(shape) for page in (one, other)
        ]
        differ = (parts[0] != parts[1]).any(axis=2)
        found += [
            (number, int(piece), int(head)) for piece, head in zip(*differ.nonzero(), strict=True)
        ]
        offset += size
    return found


def compare(access: PageAccess, ones: Pages, others: Pages) -> Mapping[str, Any]:
    """Count the pages of prompts that differ, and where."""
    described, prompts, pages, total = access.tensors(), [], 0, 0
    where = {name: collections.Counter[int]() for name in ("tensors", "heads", "tokens")}
    for prompt, (one, other) in enumerate(zip(ones, others, strict=True)):
        before = pages
        for group, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            total += max(len(mine), len(theirs))
            pages += abs(len(mine) - len(theirs))
            for index, (left, right) in enumerate(zip(mine, theirs, strict=False)):
                if left == right:
                    continue
                pages += 1
                found = places(described[group], left, right)
                where["tensors"].update({tensor for tensor, _, _ in found})
                where["heads"].update({head for _, _, head in found})
                where["tokens"].update([index])
        if pages > before:
            prompts.append(prompt)
    shown = {name: dict(counter.most_common(_SHOWN)) for name, counter in where.items()}
    first = min(where["tensors"], default=None)
    return {"pages": total, "differ": pages, "prompts": prompts, "first_tensor": first, **shown}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shape", default="qwen3-0.6b", choices=SHAPES)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--memory", type=float, default=0.15, help="share of a card, each")
    parser.add_argument("--num-kv-blocks", type=int, default=2500)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--tokens", type=int, nargs=2, default=[200, 1000])
    parser.add_argument("--chunk", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=2, help="each with other prompts")
    parser.add_argument("--enforce-eager", action="store_true")
    args = parser.parse_args(argv)
    options: dict[str, Any] = {
        "device": args.device,
        "max_model_len": args.tokens[1] + 32,
        "max_num_seqs": args.prompts + 1,
        "max_num_batched_tokens": args.chunk,
        "num_kv_blocks": args.num_kv_blocks,
        "enforce_eager": args.enforce_eager,
    }
    if args.device != "cpu":
        options["gpu_memory_utilization"] = args.memory
    dice, vocabulary, differ = random.Random(_SEED), SHAPES[args.shape]["vocab_size"], 0
    with tempfile.TemporaryDirectory() as folder:
        model = write_checkpoint(args.shape, Path(folder))
        one = Computed(model, **options)
        several = Computed(model, tensor_parallel_size=args.ranks, **options)
        for number in range(args.rounds):
            lengths = [dice.randrange(*args.tokens) for _ in range(args.prompts)]
            prompts = [[dice.randrange(3, vocabulary) for _ in range(count)] for count in lengths]
            salt = f"together {number}"
            one.compute(prompts, salt, together=True)
            expected = one.pages(prompts, salt)
            several.compute(prompts, salt, together=True)
            read = {"together": several.pages(prompts, salt), "running": several.running}
            read["again"] = several.pages(prompts, salt)
            read["one rank, running"] = one.running
            alone = f"alone {number}"
            several.compute(prompts, alone, together=False)
            read["alone"] = several.pages(prompts, alone)
            for name, pages in read.items():
                figures = compare(several.access, expected, pages)
                differ += figures["differ"]
                print(json.dumps({"round": number, "reading": name, **figures}), flush=True)
        several.engine.close()
        one.engine.close()
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
