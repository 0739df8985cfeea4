"""Rules of Kimi Linear's layers and Mamba-2's on a GPU: device time beside what the card allows.

    python -m benchmarks.measures.state_rules [--only kimi granite nemotron] [--peer]

Heads are those of Kimi Linear 48B, Granite 4 Tiny and Nemotron Nano 9B v2, in bfloat16; rows are
those of benchmarks.state_kernels, which has Qwen3-Next's and what the limits are. `--peer` times
flash-linear-attention's kernels on the same rows; of Mamba-2's rule its simple GLA, which is given
keys of every value head and values as they are learnt. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F

from atom.model_ops.backends import resolve_ops
from atom.model_ops.backends.interface import Ops
from atom.model_ops.backends.op_case import OpCase
from atom.model_ops.backends.ssd_inputs import ssd_inputs
from atom.model_ops.backends.triton_ops.linear_attention.chunked_delta_rule import CHUNK
from atom.model_ops.backends.triton_ops.timing import copies_beyond_cache, graph_microseconds
from atom.model_ops.linear_attention import DeltaTokens, DeltaWeight, SsdTokens, SsdWeight
from atom.sizing.states import DeltaShape, SsdShape, StateShape
from atom.utils.forward_context import AttentionMetaData
from benchmarks.kernels import Row
from benchmarks.state_kernels import DECODES, PROMPTS, step_of

SHAPES: dict[str, StateShape] = {
    "kimi": DeltaShape(
        key_heads=32, value_heads=32, key_dim=128, value_dim=128, conv_width=4, channel_gates=True
    ),
    "granite": SsdShape(key_heads=1, value_heads=48, key_dim=128, value_dim=64, conv_width=4),
    "nemotron": SsdShape(key_heads=8, value_heads=128, key_dim=128, value_dim=80, conv_width=4),
}
_DTYPE = torch.bfloat16


def _drawn(*size: int, kind: torch.dtype = _DTYPE) -> torch.Tensor:
    return torch.randn(size, device="cuda").to(kind)


@dataclass(frozen=True, slots=True)
class Rule:
    """A step's tokens, and what the rule computes with."""

    shape: StateShape
    qkv: torch.Tensor
    gates: tuple[torch.Tensor, ...]
    weights: tuple[torch.Tensor, ...]
    states: torch.Tensor
    step: AttentionMetaData

    def compute(self, ops: Ops) -> torch.Tensor:
        if isinstance(self.shape, SsdShape):
            tokens = SsdTokens(self.qkv, *self.gates)
            weight = SsdWeight(*self.weights)
            return ops.state_space_dual(tokens, self.shape, weight, self.states, self.step)
        assert isinstance(self.shape, DeltaShape)
        return ops.gated_delta_rule(
            DeltaTokens(self.qkv, *self.gates), self.shape, DeltaWeight(*self.weights),
            self.states, self.step,
        )  # fmt: skip

    def peer(self) -> Callable[[], Any]:
        """Flash-linear-attention's kernel for the same rows."""
        is_kimi = isinstance(self.shape, DeltaShape)
        module = import_module("fla.ops.kda" if is_kimi else "fla.ops.simple_gla")
        kind = "kda" if is_kimi else "simple_gla"
        given = self._kimi_arguments() if is_kimi else self._gla_arguments()
        given |= {"initial_state": self.states[:-1], "output_final_state": True}
        if self.step.num_decodes:
            rows = {
                name: value.transpose(0, 1) if name in ("q", "k", "v", "g", "beta") else value
                for name, value in given.items()
            }
            return partial(getattr(module, f"fused_recurrent_{kind}"), **rows)
        starts = self.step.query_starts.long()
        return partial(getattr(module, f"chunk_{kind}"), **given, cu_seqlens=starts)

    def _kimi_arguments(self) -> dict[str, Any]:
        heads, (a_log, dt_bias) = self.shape.value_heads, self.weights
        q, k, v = (part.contiguous() for part in self.qkv.chunk(3, dim=1))
        return {
            "q": q.view(1, len(q), heads, -1),
            "k": k.view(1, len(q), heads, -1),
            "v": v.view(1, len(q), heads, -1),
            "g": self.gates[1][None],
            "beta": self.gates[0][None],
            "use_qk_l2norm_in_kernel": True,
            "use_gate_in_kernel": True,
            "use_beta_sigmoid_in_kernel": True,
            "A_log": a_log,
            "dt_bias": dt_bias.flatten(),
        }

    def _gla_arguments(self) -> dict[str, Any]:
        assert isinstance(self.shape, SsdShape)
        inputs = ssd_inputs(SsdTokens(self.qkv, *self.gates), self.shape, SsdWeight(*self.weights))
        tokens = {"q": inputs.q, "k": inputs.k, "v": inputs.learnt}
        given = {name: part.to(_DTYPE).contiguous()[None] for name, part in tokens.items()}
        return {**given, "g": inputs.log_decay[None], "scale": 1.0}


def rule(shape: StateShape, rows: Sequence[tuple[int, int]], decodes: int) -> Rule:
    """Draw a step of such a shape, whose memory is between a token and thousands of them."""
    step, heads = step_of(rows, decodes), shape.value_heads
    count, by_channel = len(step.slot_mapping), isinstance(shape, DeltaShape)
    channels = (heads, shape.key_dim) if by_channel else (heads,)
    rate = torch.rand(heads, device="cuda").mul_(8.0).sub_(8.0)
    bias, gates = _drawn(*channels, kind=torch.float32), _drawn(count, *channels)
    states = _drawn(len(rows) + 1, heads, shape.key_dim, shape.value_dim, kind=torch.float32)
    mixed = F.silu(_drawn(count, shape.conv_channels))
    if by_channel:
        return Rule(shape, mixed, (_drawn(count, heads), gates), (rate, bias), states, step)
    skip = _drawn(heads, kind=torch.float32)
    return Rule(shape, mixed, (gates,), (rate, bias, skip), states, step)


def report(name: str, shape: StateShape, call_of: Callable[[Rule], Any]) -> Iterator[Row]:
    """Time decodes and prompts, by what a step is computed with."""
    values = shape.value_heads * shape.value_dim
    for count in DECODES:
        moved = 2 * count * values * shape.key_dim * 4
        cases = [
            rule(shape, [(900, 1)] * count, count)
            for _ in range(copies_beyond_cache(moved, most=32))
        ]
        took = graph_microseconds([call_of(case) for case in cases])
        yield Row(f"{name}, decode", f"{count} rows", took, moved)
    # A product more with the state, and one within a chunk, where something is solved.
    solves = isinstance(shape, DeltaShape)
    products = (6 if solves else 4) * shape.key_dim + (3 if solves else 2) * CHUNK
    for case_name, lengths in PROMPTS.items():
        case = rule(shape, [(0, length) for length in lengths], 0)
        moved = case.qkv.numel() * 2 + len(case.qkv) * values * 2
        took = graph_microseconds([call_of(case)])
        yield Row(f"{name}, prompts", case_name, took, moved, len(case.qkv) * values * products)


def main() -> int:
    parser = argparse.ArgumentParser(description="Device time of rules of layers with states.")
    parser.add_argument("--only", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--peer", action="store_true", help="flash-linear-attention's, not ours")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("error: kernels are timed on a GPU, and torch sees none here", file=sys.stderr)
        return 1
    ops = resolve_ops("cuda", OpCase(dtype=_DTYPE, kv_dtype=_DTYPE), "triton").ops
    results = []

    def call_of(case: Rule) -> Callable[[], Any]:
        return case.peer() if args.peer else partial(case.compute, ops)

    with torch.inference_mode():
        for name in args.only:
            for row in report(name, SHAPES[name], call_of):
                print(row.text(), flush=True)
                results.append({**asdict(row), "limit_share": round(row.limit_share, 4)})
    print(json.dumps({"device": torch.cuda.get_device_name(), "kernels": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
