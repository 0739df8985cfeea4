"""Norm and experts of a layer, of few tokens: the fused way beside the single kernels, and tiles.

    python -m benchmarks.moe_gemv [--cases qwen3-30b-a3b qwen3-30b-a3b:fp8-blocks] [--tokens 1 4]

A case is a shape and how its experts, and shared ones, are stored: plain unless it says. Random
weights and tokens, activations in bfloat16; calls are captured into a graph and rotate over tokens,
whose experts the cache does not hold. "layer" is all from the second norm to the next layer's
normed tokens. Kernels are compiled side by side before any is timed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from atom.model_ops.activations import Activation
from atom.model_ops.backends import resolve_ops
from atom.model_ops.backends.composed import ComposedOps
from atom.model_ops.backends.op_case import OpCase
from atom.model_ops.backends.triton_ops.compile.warmup import warmup_compile
from atom.model_ops.backends.triton_ops.moe import gemv
from atom.model_ops.backends.triton_ops.moe.grouped_gemm import expert_parts
from atom.model_ops.backends.triton_ops.moe.norm_router import norm_router
from atom.model_ops.backends.triton_ops.timing import graph_microseconds
from atom.model_ops.routing import Routing
from atom.model_ops.values import (
    LinearWeight,
    MoEWeight,
    NormWeight,
    RouterWeight,
    SharedWeight,
    Stream,
    WeightFormat,
)
from atom.sizing import ModelFacts
from benchmarks.measures.limits import H200
from benchmarks.moe_tiles import layer as experts_of
from benchmarks.moe_tiles import matrix
from benchmarks.workloads.shapes import SHAPES

_CASES = (
    "qwen3-30b-a3b",
    "qwen3-30b-a3b:fp8-blocks",
    "qwen3-30b-a3b:fp8",
    "gpt-oss-20b:mxfp4",
    "deepseek-v2-lite",
    "deepseek-v2-lite:fp8-blocks",
)
_FORMATS = {
    "plain": WeightFormat.PLAIN,
    "fp8": WeightFormat.FP8,
    "fp8-blocks": WeightFormat.FP8_BLOCKS,
    "int8": WeightFormat.INT8,
    "mxfp4": WeightFormat.MXFP4,
}
_INPUTS = 8  # sets of tokens to rotate over


@dataclass(frozen=True, slots=True)
class Timed:
    """One line of the table: calls, and the bytes of the matrices that one reads."""

    name: str
    calls: Sequence[Callable[[], object]]
    read_bytes: float

    def text(self) -> str:
        took = graph_microseconds(self.calls, 3)
        return f"{self.name:<44} {took:8.2f} us  {self.read_bytes / took / 1e6:6.2f} TB/s"


def random(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_(0.0, 0.02)


def weight(case: str) -> MoEWeight:
    shape, _, stored = case.partition(":")
    if shape not in SHAPES or stored not in ("", *_FORMATS):
        known = f"one of {', '.join(sorted(SHAPES))}, and :{', :'.join(_FORMATS)}"
        raise SystemExit(f"error: no case {case!r}; use {known}")
    facts = ModelFacts.from_hf_config(SHAPES[shape])
    experts, hidden = facts.layers[-1].mlp.experts, facts.hidden_size
    if experts is None:
        raise SystemExit(f"error: {shape} has no experts")
    format = _FORMATS[stored or "plain"]
    inner = experts.shared_intermediate_size
    shared = None
    if inner:
        beside = WeightFormat.PLAIN if format is WeightFormat.MXFP4 else format
        gate_up, down = matrix((2 * inner, hidden), beside), matrix((hidden, inner), beside)
        shared = SharedWeight(gate_up, down, Activation.SILU)
    router = RouterWeight(LinearWeight(random(experts.count, hidden)))
    routing = Routing(top_k=experts.per_token, renormalize=True)
    return MoEWeight(router, routing, experts_of(experts, hidden, format), shared)


def gated_tiles(own: gemv.GemvTile) -> Iterator[gemv.GemvTile]:
    """The engine's own and others around it."""
    if own.num_warps > 1:
        for rows, warps in ((own.rows, 4), (own.rows // 2, 4), (own.rows, 8), (own.rows // 2, 2)):
            yield replace(own, rows=rows, num_warps=warps)
        return
    for rows, turns in ((own.rows, own.unroll), (own.rows, 1), (own.rows, 2)):
        yield replace(own, rows=rows, unroll=turns)
    yield replace(own, rows=own.rows // 2)
    yield replace(own, rows=2 * own.rows, unroll=1)
    yield replace(own, rows=2 * own.rows, block=own.block // 2, unroll=own.unroll)
    yield replace(own, rows=2 * own.rows, num_warps=2, unroll=2)


def down_tiles(own: gemv.GemvTile) -> Iterator[gemv.GemvTile]:
    half = own.block // 2
    for rows, block, warps in (
        (own.rows, own.block, 4), (own.rows // 2, own.block, 4), (2 * own.rows, own.block, 4),
        (2 * own.rows, half, 2), (own.rows, 2 * own.block, 8),
    ):  # fmt: skip
        yield replace(own, rows=rows, block=block, num_warps=warps)
    if own.unroll > 1:
        yield replace(own, unroll=1)
        yield replace(own, rows=own.rows // 2, unroll=1)


class Layer:
    """One shape's layer and the calls that are timed of it."""

    def __init__(self, case: str, tokens: int, w: MoEWeight, ops: Any) -> None:
        self._name, self._tokens, self._w, self._ops = f"{case} {tokens}", tokens, w, ops
        hidden = w.experts.down.outputs
        self._norm = NormWeight(torch.ones(hidden, dtype=torch.bfloat16, device="cuda"), 1e-6)
        self._x = [random(tokens, hidden) * 50 for _ in range(_INPUTS)]
        self._routed = [ops.route(x, w.router, w.routing) for x in self._x]

    def lines(self) -> Iterator[Timed]:
        """Old beside new, also beyond the tokens that it takes; then its tiles where it runs."""
        w, ops = self._w, self._ops
        yield self._line("layer, single kernels", self._layer(ComposedOps(ops).norm_experts), 3)
        yield self._line("layer, fused", self._layer(ops.norm_experts), 3)
        yield self._line("norm and route", self._of_streams(self._routed_alone))
        alone = partial(norm_router, norm=self._norm, w=w.router.matrix)
        yield self._line("norm and logits at once", self._of_streams(alone))
        parts = [partial(expert_parts, x, w.experts, each) for x, each in self._pairs()]
        yield self._line("experts, tensor core", parts, 3)
        if not gemv.multiplies(w):
            return
        logits = self._logits()
        both = [partial(gemv.moe_gemv, x, y, w, None) for x, y in logits]
        yield self._line("experts, few", both, 3)
        if gemv.takes(w, self._tokens):
            yield from self._tiles(logits)

    def _tiles(self, logits: list[tuple[torch.Tensor, torch.Tensor]]) -> Iterator[Timed]:
        w, tokens = self._w, self._tokens
        own = gemv.w13_tile(w, tokens, 2)
        chosen = [partial(gemv.w13_gemv, x, y, w, r, own) for (x, y), r in self._sets(logits)]
        yield self._line(f"gates and ups, chosen before {_text(own)}", chosen, 2)
        for tile in dict.fromkeys(gated_tiles(own)):
            calls = [partial(gemv.w13_gemv, x, y, w, None, tile) for x, y in logits]
            yield self._line(f"gates and ups {_text(tile)}", calls, 2)
        own = gemv.w2_tile(w, tokens, 2)
        inner = w.routing.top_k * w.experts.down.inputs
        inner += 0 if w.shared is None else w.shared.down.inputs
        active = random(tokens, inner)
        for tile in dict.fromkeys(down_tiles(own)):
            given = [partial(gemv.w2_gemv, active, w, each, tile) for each in self._routed]
            yield self._line(f"downs {_text(tile)}", given, 1)

    def _layer(self, way: Callable[..., Stream]) -> list[Callable[[], object]]:
        def run(stream: Stream) -> object:
            return self._ops.norm(way(stream, self._norm, self._w), self._norm)

        return self._of_streams(run)

    def _of_streams(self, run: Callable[[Stream], object]) -> list[Callable[[], object]]:
        return [partial(run, Stream(x.clone()).plus(x.clone())) for x in self._x]

    def _routed_alone(self, stream: Stream) -> object:
        x, _ = self._ops.norm(stream, self._norm)
        return self._ops.route(x, self._w.router, self._w.routing)

    def _logits(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        planes = gemv.planes_of(self._w.experts)
        matrix = self._w.router.matrix
        return [norm_router(Stream(x), self._norm, matrix, planes)[:2] for x in self._x]

    def _pairs(self) -> Iterator[tuple[torch.Tensor, Any]]:
        return zip(self._x, self._routed, strict=True)

    def _sets(self, logits: list[tuple[torch.Tensor, torch.Tensor]]) -> Iterator[Any]:
        return zip(logits, self._routed, strict=True)

    def _line(self, name: str, calls: Sequence[Callable[[], object]], matrices: int = 0) -> Timed:
        """Describe what is timed by its name; `matrices`: of a gated MLP, how many of the three are
        read."""
        w = self._w
        stored = w.experts.gate_up.data.nbytes + w.experts.down.data.nbytes
        for each in (w.experts.gate_up, w.experts.down):
            stored += each.scales.scale.nbytes if each.scales else 0
        touched = sum(len(set(each.ids.flatten().tolist())) for each in self._routed) / _INPUTS
        read = matrices / 3 * touched * stored / w.experts.count
        if w.shared is not None and "tensor" not in name:
            own = w.shared.gate_up.data.nbytes + w.shared.down.data.nbytes
            read += matrices / 3 * own
        return Timed(f"{self._name}: {name}", calls, read)


def _text(tile: gemv.GemvTile) -> str:
    turns = f", {tile.unroll} turns" if tile.unroll > 1 else ""
    return f"{tile.rows} x {tile.block}, {tile.num_warps} warps{turns}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Norm and experts of few tokens, timed.")
    parser.add_argument("--cases", nargs="+", default=list(_CASES), metavar="SHAPE[:FORMAT]")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 4, 16])
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("error: kernels are timed on a GPU, and torch sees none here", file=sys.stderr)
        return 1
    device = torch.device("cuda", 0)
    computed = OpCase(dtype=torch.bfloat16, kv_dtype=torch.bfloat16)
    ops = resolve_ops("cuda", computed, "triton").ops
    print(f"{torch.cuda.get_device_name()}, reads {H200.bytes_per_second / 1e12:.1f} TB/s at most")
    for case in args.cases:
        w = weight(case)
        with warmup_compile(device, f"few experts {case}", os.cpu_count() or 1) as finish:
            for tokens in args.tokens:
                for line in Layer(case, tokens, w, ops).lines():
                    line.calls[0]()
        finish()
        for tokens in args.tokens:
            for line in Layer(case, tokens, w, ops).lines():
                print(line.text(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
