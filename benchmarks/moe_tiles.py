"""Which tiles the experts' products want on this card, by how many tokens a step has.

    python -m benchmarks.moe_tiles --shape qwen3-30b-a3b [--tokens 1 64 256] [--mxfp4]

Both products of one layer, random weights and choices, activations in bfloat16; calls are captured
into a graph and rotate over choices. Prints the best tiles of each number of tokens with the share
of what the card allows, and where the engine's own choice (grouped_tiles.py) stands.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator
from functools import partial

import torch
import triton
from triton.runtime.errors import OutOfResources

from atom.model_ops.activations import Activation
from atom.model_ops.backends.triton_ops.moe.grouped_gemm import expert_parts, prepare_experts
from atom.model_ops.backends.triton_ops.moe.grouped_tiles import ExpertTile, expert_tile
from atom.model_ops.backends.triton_ops.timing import graph_microseconds
from atom.model_ops.routing import Routed
from atom.model_ops.values import ExpertsWeight, LinearWeight, Scales, WeightFormat
from atom.sizing import Experts, ModelFacts
from atom.utils.device import native_fp8
from benchmarks.measures.limits import H200
from benchmarks.workloads.shapes import SHAPES

_TOKENS = (1, 64, 256, 4096)
_CHOICES = 8  # sets of ids to rotate over
_SHOWN = 3


def candidates(tokens: int) -> Iterator[ExpertTile]:
    """Few enough that compiling them takes a minute or two."""
    rows = (16, 32) if tokens <= 64 else (16, 32, 64) if tokens <= 256 else (64, 128)
    for m, n, k, stages in itertools.product(rows, (16, 32, 64, 128), (64, 128), (3, 4)):
        if (m + 2 * n) * k * 2 * stages <= 220 * 1024:
            yield ExpertTile(m, n, k, 8 if m * n >= 64 * 128 else 4, stages)


def code_candidates(tokens: int) -> Iterator[ExpertTile]:
    """List the tiles for codes, whose rows are the tall side of the tensor core's tile."""
    rows, limits = ((16, 32), (96, 128, None)) if tokens <= 64 else ((32, 64), (128, 168, None))
    for m, (n, warps), stages, most in itertools.product(rows, ((64, 4), (128, 8)), (3, 4), limits):
        yield ExpertTile(m, n, 128, warps, stages, most)


def layer(experts: Experts, hidden: int, format: WeightFormat) -> ExpertsWeight:
    inner, count = experts.intermediate_size, experts.count
    return ExpertsWeight(
        prepare_experts(matrix((count, 2 * inner, hidden), format)),
        prepare_experts(matrix((count, hidden, inner), format)),
        Activation.SILU,
    )


def matrix(shape: tuple[int, ...], format: WeightFormat) -> LinearWeight:
    """Draw one [.., out, in], stored in a format: plain in bfloat16, blocks of 128 × 128."""
    *stack, rows, columns = shape
    if format is WeightFormat.MXFP4:
        exponents = torch.randint(118, 124, (*stack, rows, columns // 32), device="cuda")
        codes = torch.randint(0, 256, (*stack, rows, columns // 2), device="cuda")
        scales = Scales(format, exponents.to(torch.uint8), (1, 32), torch.bfloat16)
        return LinearWeight(codes.to(torch.uint8), scales=scales)
    data = torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_(0.0, 0.02)
    if format is WeightFormat.PLAIN:
        return LinearWeight(data)
    tall, wide = (128, 128) if format is WeightFormat.FP8_BLOCKS else (1, columns)
    blocks = (*stack, triton.cdiv(rows, tall), triton.cdiv(columns, wide))
    scale = torch.full(blocks, 1 / 1024, device="cuda")
    kind = torch.int8 if format is WeightFormat.INT8 else native_fp8(data.device)
    if kind is None:
        raise SystemExit(f"error: this card multiplies no fp8, which {format.value} needs")
    codes = data.mul_(1024).clamp_(-127, 127).to(kind)
    return LinearWeight(codes, scales=Scales(format, scale, (tall, wide), torch.bfloat16))


def choices(experts: Experts, tokens: int) -> list[Routed]:
    return [
        Routed(
            torch.rand(tokens, experts.count, device="cuda").topk(experts.per_token).indices.int(),
            torch.rand(tokens, experts.per_token, device="cuda"),
        )
        for _ in range(_CHOICES)
    ]


def least_microseconds(w: ExpertsWeight, experts: Experts, routed: list[Routed]) -> float:
    """Bound the time of reading what the choices touch, or of the products."""
    touched = sum(len(set(each.ids.flatten().tolist())) for each in routed) / len(routed)
    matrix = 3 * w.down.outputs * experts.intermediate_size
    held = (w.gate_up, w.down)
    stored = sum(
        each.data.nbytes + (each.scales.scale.nbytes if each.scales else 0) for each in held
    )
    read = touched * stored / experts.count / H200.bytes_per_second
    return max(read, 2 * routed[0].ids.numel() * matrix / H200.flops_per_second) * 1e6


def measure(w: ExpertsWeight, experts: Experts, tokens: int) -> None:
    hidden = w.down.outputs
    x = torch.randn(tokens, hidden, dtype=torch.bfloat16, device="cuda")
    routed = choices(experts, tokens)
    own = expert_tile(w.down, tokens * experts.per_token, 2)
    timed: dict[ExpertTile, float] = {}
    tried = candidates(tokens) if w.down.scales is None else code_candidates(tokens)
    for tile in dict.fromkeys([own, *tried]):
        calls = [partial(expert_parts, x, w, each, tile) for each in routed]
        try:
            timed[tile] = graph_microseconds(calls, 3)
        except (OutOfResources, triton.CompilationError, RuntimeError) as error:
            print(f"    left out {tile}: {str(error).splitlines()[0]}", file=sys.stderr)
    limit = least_microseconds(w, experts, routed)
    best = sorted(timed, key=timed.__getitem__)[:_SHOWN]
    for name, tile in [("now", own), *(("best", tile) for tile in best)]:
        share = limit / timed[tile]
        print(f"{tokens:>5} tokens  {name:<4} {timed[tile]:9.1f} us  {share:6.1%}  {tile}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Tiles of the experts' products, measured.")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen3-30b-a3b")
    parser.add_argument("--tokens", type=int, nargs="+", default=list(_TOKENS))
    parser.add_argument("--mxfp4", action="store_true", help="experts of four bits")
    args = parser.parse_args()
    facts = ModelFacts.from_hf_config(SHAPES[args.shape])
    experts = facts.layers[-1].mlp.experts
    if experts is None:
        parser.error(f"{args.shape} has no experts")
    format = WeightFormat.MXFP4 if args.mxfp4 else WeightFormat.PLAIN
    w = layer(experts, facts.hidden_size, format)
    for tokens in args.tokens:
        measure(w, experts, tokens)
    return 0


if __name__ == "__main__":
    sys.exit(main())
