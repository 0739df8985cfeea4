"""Device time of a sum over ranks with the norm behind it: over peers' memory, and the library's.

    python -m benchmarks.allreduce_norm [--ranks 2] [--hidden 4096] [--rows 1 8 128 256]

A process per GPU; calls are captured into a graph whose replays are timed by events. bfloat16.
Prints a table; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
from types import SimpleNamespace
from typing import cast

import numpy as np
import torch
import torch.multiprocessing as mp

from atom.collectives.group import Group
from atom.collectives.torch_group import Place, TorchGroup, find_store, open_store
from atom.model_ops.all_reduce import with_all_reduce
from atom.model_ops.backends.interface import Ops
from atom.model_ops.backends.triton_ops import backend
from atom.model_ops.backends.triton_ops.allreduce_group import join
from atom.model_ops.backends.triton_ops.timing import graph_microseconds
from atom.model_ops.values import NormWeight, Pending, Stream

_CALLS = 200
_DTYPE = torch.bfloat16


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 64, 128, 256])
    args = parser.parse_args()
    store = open_store(args.ranks)
    others = [
        mp.get_context("spawn").Process(target=_other, args=(rank, store.port, args))
        for rank in range(1, args.ranks)
    ]
    for other in others:
        other.start()
    rows = _measure(TorchGroup(_place(0, args), store), args)
    for other in others:
        other.join()
    print(f"{args.ranks} ranks, H {args.hidden}, {torch.cuda.get_device_name()}")
    for row in rows:
        print(
            f"  {row['rows']:4} rows  {row['peers_us']:7.1f} µs  library {row['library_us']:7.1f}"
        )
    print(json.dumps(rows))
    return 0


def _other(rank: int, port: int, args: argparse.Namespace) -> None:
    _measure(TorchGroup(_place(rank, args), find_store(port, args.ranks)), args)


def _place(rank: int, args: argparse.Namespace) -> Place:
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    return Place(rank, args.ranks, device, np.zeros(1, np.int64))


def _measure(group: TorchGroup, args: argparse.Namespace) -> list[dict[str, float]]:
    device = torch.device("cuda", group.rank)
    joined = join(group, device, args.hidden * _DTYPE.itemsize)
    assert joined is not group, "these cards do not see each other's memory"
    measured = [
        {
            "rows": rows,
            "peers_us": _microseconds(joined, rows, args.hidden),
            "library_us": _microseconds(group, rows, args.hidden),
        }
        for rows in args.rows
    ]
    torch.cuda.synchronize()
    joined.close()
    return measured


def _microseconds(group: Group, rows: int, hidden: int) -> float:
    device = torch.device("cuda", group.rank)
    ops = with_all_reduce(cast(Ops, SimpleNamespace(**backend().operations)), group)
    norm = NormWeight(torch.ones(hidden, dtype=_DTYPE, device=device), 1e-6)
    share = torch.randn(rows, hidden, dtype=_DTYPE, device=device)
    residual = torch.randn_like(share)

    def call() -> None:
        ops.norm(Stream(residual, share, Pending.ALL_REDUCE), norm)

    group.barrier()
    return graph_microseconds([call] * _CALLS)


if __name__ == "__main__":
    sys.exit(main())
