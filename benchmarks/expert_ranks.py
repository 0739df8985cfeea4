"""Ranks that share experts, one GPU each: decode, prefill, and what dispatch and combine take.

    python -m benchmarks.expert_ranks --shape qwen3-30b-a3b --ranks 2 --rows 1 64 256

Every rank has as many rows as one card has in `benchmarks.gpu`, whose figures these stand beside:
`speedup` there is what all ranks give, by what one card took for its share (--one-card, ms/step by
rows). Prints a table; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from atom.collectives.torch_group import TorchGroup
from atom.model_engine.executor.base import Executor
from atom.model_engine.executor.expert_parallel.executor import (
    ExpertParallelExecutor,
    PeerWatch,
    meet,
)
from atom.model_engine.model_runner import ModelRunner
from atom.model_engine.wire.peer_mesh import PeerMesh, mesh_sockets
from atom.model_ops.expert_parallel.dispatch import AllGatherDispatch
from atom.model_ops.routing import Routed
from atom.sampling_params import SamplingParams
from benchmarks.engines.offline_engine import OfflineEngine, end
from benchmarks.gpu import Measured, decode, prefill
from benchmarks.workloads.shapes import SHAPES, write_shape

_REPEATS = 48  # of an exchange in a graph, as many as layers have


class PeerEngine(OfflineEngine):
    """One rank of the group that `mesh` connects."""

    def __init__(self, rank: int, mesh: PeerMesh, model: str, **options: Any) -> None:
        self._rank, self._mesh = rank, mesh
        self.group: TorchGroup
        super().__init__(model, **options)

    def build_executor(self) -> Executor:
        parallel = dataclasses.replace(self.config.parallel, data_parallel_rank=self._rank)
        self.config = dataclasses.replace(self.config, parallel=parallel)
        watch = PeerWatch(self._mesh, end)
        watch.start()
        self.group = meet(self.config, self._mesh)
        runner = ModelRunner(self.config, links=self.group)
        return ExpertParallelExecutor(self.config, runner, self.group, self._mesh, watch)


def exchange_microseconds(group: TorchGroup, tokens: int, hidden: int) -> float:
    """One dispatch and combine of so many bfloat16 tokens of each rank, in a captured graph."""
    device = torch.device("cuda", group.rank)
    x = torch.randn(tokens, hidden, device=device).bfloat16()
    ids = torch.randint(0, 128, (tokens, 8), device=device, dtype=torch.int32)
    routed = Routed(ids, torch.rand(tokens, 8, device=device))
    exchange = AllGatherDispatch(group, tokens)

    def once() -> None:
        arrived = exchange.dispatch(x, routed, 128 // group.size)
        exchange.combine(arrived, arrived.x)

    once()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_REPEATS):
            once()
    graph.replay()
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(10):
        graph.replay()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    del graph
    return seconds / 10 / _REPEATS * 1e6


def measure(args: argparse.Namespace, rank: int, mesh: PeerMesh) -> dict[str, Any]:
    """Return what this rank sees; every rank makes the same calls."""
    with tempfile.TemporaryDirectory() as folder:
        engine = PeerEngine(
            rank,
            mesh,
            str(write_shape(args.shape, Path(folder))),
            load_dummy=True,
            max_model_len=4352,
            max_num_seqs=256,
            max_num_batched_tokens=args.max_num_batched_tokens,
            enable_prefix_caching=False,
            enforce_eager=args.enforce_eager,
            data_parallel_size=args.ranks,
            enable_dp_attention=True,
            enable_expert_parallel=True,
            device="auto",
        )
    measured = Measured.on(torch.device("cuda", torch.cuda.current_device()), engine)
    sampling = SamplingParams(temperature=0.6, ignore_eos=True)
    found: dict[str, Any] = {
        "shape": args.shape,
        "ranks": args.ranks,
        "graphs": not args.enforce_eager,
        "start_seconds": engine.start_seconds,
        "weights_bytes": engine.report.weights_bytes,
        "kv_blocks": engine.report.num_blocks,
        "decode": {str(rows): decode(measured, rows, sampling) for rows in args.rows},
    }
    if args.prefill:
        found["prefill"] = prefill(measured)
    hidden = engine.config.model.facts.hidden_size
    found["exchange_us"] = {
        str(tokens): exchange_microseconds(engine.group, tokens, hidden) for tokens in (1, 64, 256)
    }
    engine.close()
    return found


def table(found: dict[str, Any], one_card: dict[str, float]) -> str:
    """The figures of rank 0, for people."""
    lines = [f"{found['shape']} on {found['ranks']} ranks, start {found['start_seconds']:.1f} s"]
    for rows, row in found["decode"].items():
        line = f"  decode  B={rows:>4} a rank  {row['ms_per_step']:9.3f} ms/step"
        if rows in one_card:
            line += f"  {found['ranks'] * one_card[rows] / row['ms_per_step']:.2f} x one card"
        lines.append(line)
    if "prefill" in found:
        rate = found["ranks"] * found["prefill"]["tokens_per_second"]
        lines.append(f"  prefill {rate:9,.0f} tok/s of all ranks")
    for tokens, microseconds in found["exchange_us"].items():
        lines.append(f"  dispatch and combine of {tokens:>3} tokens {microseconds:7.1f} us")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Ranks that share experts, one GPU each.")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen3-30b-a3b")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--one-card", default="{}", help='its ms/step by rows: {"64": 18.26}')
    parser.add_argument("--max-num-batched-tokens", type=int, default=16384)
    parser.add_argument("--enforce-eager", action="store_true")
    parser.add_argument("--prefill", action="store_true")
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--connections", default=None, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.connections is not None:
        connections = {int(peer): fd for peer, fd in json.loads(args.connections).items()}
        measure(
            args,
            args.rank,
            PeerMesh({p: socket.socket(fileno=fd) for p, fd in connections.items()}),
        )
        return 0
    meshes = mesh_sockets(range(args.ranks))
    children = [_start(rank, meshes[rank]) for rank in range(1, args.ranks)]
    for connection in [
        connection for rank in range(1, args.ranks) for connection in meshes[rank].values()
    ]:
        connection.close()
    found = measure(args, 0, PeerMesh(meshes[0]))
    print(table(found, json.loads(args.one_card)))
    print(json.dumps(found))
    return max((child.wait() for child in children), default=0)


def _start(rank: int, mesh: dict[int, socket.socket]) -> subprocess.Popen[bytes]:
    """Another rank: this program with the same options, which inherits its sockets."""
    connections = json.dumps({peer: connection.fileno() for peer, connection in mesh.items()})
    command = [sys.executable, "-m", "benchmarks.expert_ranks", *sys.argv[1:]]
    return subprocess.Popen(
        [*command, "--rank", str(rank), "--connections", connections],
        pass_fds=[connection.fileno() for connection in mesh.values()],
        stdout=sys.stderr,
    )


if __name__ == "__main__":
    sys.exit(main())
