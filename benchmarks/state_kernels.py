"""Gated delta nets on one GPU: errors against float64, and device time beside what the card allows.

    python -m benchmarks.state_kernels [--key-heads 16 --value-heads 32] [--only errors times]

Errors are of random steps whose rows, heads and sizes are drawn anew at each run (`--seed` repeats
one). Times are of Qwen3-Next's sizes in bfloat16, as benchmarks.kernels measures: a decode's limit
is its states read and written once, a prompt's its tokens or its products. Where flash-linear-
attention is installed, its own kernels compute the same rows: the rule alone, without convolution
and norm. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random as numbers
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import accumulate, chain
from typing import Any

import torch
import torch.nn.functional as F

from atom.model_ops.backends import resolve_ops
from atom.model_ops.backends.interface import Ops
from atom.model_ops.backends.op_case import OpCase
from atom.model_ops.backends.triton_ops.linear_attention.chunked_delta_rule import CHUNK
from atom.model_ops.backends.triton_ops.timing import copies_beyond_cache, graph_microseconds
from atom.model_ops.linear_attention import (
    ConvWeight,
    DeltaNetWeight,
    DeltaSlots,
    DeltaTokens,
    DeltaWeight,
)
from atom.model_ops.values import NormWeight
from atom.sizing.states import DeltaShape
from atom.utils.forward_context import AttentionMetaData
from benchmarks.kernels import Row

DECODES = (1, 8, 64, 256)
PROMPTS = {
    "1 × 512": [512],
    "1 × 4096": [4096],
    "1 × 16384": [16384],
    "16 × 4096": [4096] * 16,
    "29 of 100…1024": [100 + 33 * row for row in range(29)],
}
_EPS = 1e-6
_PEER = "fla.ops.gated_delta_rule"
# ‖error‖ / ‖result‖ of a token or row, at most. What a net convolves may be rounded to its dtype.
LIMITS = {
    torch.float32: {"rule": 3e-5, "rule's states": 1e-4, "net": 3e-5, "net's states": 1e-4},
    torch.bfloat16: {"rule": 3.6e-2, "rule's states": 3e-4, "net": 5e-2, "net's states": 2e-2},
}


@dataclass(frozen=True, slots=True)
class Net:
    """A step's tokens in a gated delta net, before its convolution, and what it computes with."""

    tokens: DeltaTokens
    z: torch.Tensor
    weight: DeltaNetWeight
    kept: DeltaSlots
    step: AttentionMetaData

    def copied(self) -> Net:
        """Take the same step with slots of its own."""
        kept = replace(self.kept, states=self.kept.states.clone(), tails=self.kept.tails.clone())
        return replace(self, kept=kept)

    def compute(self, ops: Ops) -> torch.Tensor:
        return ops.gated_delta_net(self.tokens, self.z, self.weight, self.kept, self.step)

    def rule(self, ops: Ops) -> torch.Tensor:
        """Compute the rule alone, of tokens as they are."""
        tokens = replace(self.tokens, qkv=self.tokens.qkv.contiguous())
        return ops.gated_delta_rule(
            tokens, self.kept.shape, self.weight.rule, self.kept.states, self.step
        )


def step_of(rows: Sequence[tuple[int, int]], decodes: int) -> AttentionMetaData:
    """Describe rows of (history, tokens), decodes first, each in a slot of its own."""
    counts = [count for _, count in rows]
    contexts = [history + count for history, count in rows]

    def ints(values: Sequence[int], dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device="cuda")

    return AttentionMetaData(
        query_starts=ints([0, *accumulate(counts)]),
        context_lens=ints(contexts),
        block_tables=ints([0] * len(rows)).view(-1, 1),
        slot_mapping=ints([0] * sum(counts), torch.int64),
        num_decodes=decodes,
        max_query_len=max(counts),
        max_context_len=max(contexts),
        slots=torch.randperm(len(rows), device="cuda"),
    )


def net(
    shape: DeltaShape, rows: Sequence[tuple[int, int]], decodes: int, dtype: torch.dtype
) -> Net:
    """Draw a net of such a shape, whose memory is between a token and thousands of them."""
    step = step_of(rows, decodes)
    assert step.slots is not None
    count, slots = len(step.slot_mapping), len(step.slots) + 1
    values = shape.value_heads * shape.value_dim

    def drawn(*size: int, kind: torch.dtype = dtype) -> torch.Tensor:
        return torch.randn(size, device="cuda").to(kind)

    product = drawn(count, shape.conv_channels + values)
    qkv, z = product.tensor_split([shape.conv_channels], dim=1)
    b, a = drawn(count, 2 * shape.value_heads).chunk(2, dim=1)
    rate = torch.rand(shape.value_heads, device="cuda").mul_(8.0).sub_(8.0)
    rule = DeltaWeight(rate, drawn(shape.value_heads, kind=torch.float32))
    conv = drawn(shape.conv_channels, shape.conv_width)
    states = drawn(slots, shape.value_heads, shape.key_dim, shape.value_dim, kind=torch.float32)
    tails = drawn(slots, shape.conv_channels, shape.conv_width - 1, kind=torch.float32)
    for slot, (history, _) in zip(step.slots.tolist(), rows, strict=True):
        if 0 < history < shape.conv_width - 1:  # before a row's first token there was nothing
            tails[slot, :, :-history] = 0.0
    return Net(
        DeltaTokens(qkv, b, a),
        z,
        DeltaNetWeight(conv, rule, NormWeight(drawn(shape.value_dim), _EPS)),
        DeltaSlots(shape, states, tails),
        step,
    )


Result = tuple[torch.Tensor, torch.Tensor]  # by token, and states by row


def exact_net(case: Net) -> Result:
    """Compute the whole net in float64."""
    mixed = torch.cat([_convolved(case, row) for row in range(len(case.step.context_lens))])
    found, states = exact_rule(replace(case.tokens, qkv=mixed), case)
    norm = case.weight.norm
    scale = (found.square().mean(-1, keepdim=True) + norm.eps).rsqrt()
    return (found * scale * norm.weight.double()).flatten(1) * F.silu(case.z.double()), states


def _convolved(case: Net, row: int) -> torch.Tensor:
    own, begins, slot = _row(case, row)
    tail = case.kept.tails[slot].double() * (not begins)
    seen = torch.cat((tail, case.tokens.qkv[own].t().double()), dim=1)
    mixed = F.conv1d(seen[None], case.weight.conv.double()[:, None], groups=len(seen))[0]
    return F.silu(mixed).t()


def _row(case: Net, row: int) -> tuple[slice, bool, int]:
    """A row's tokens, whether it begins, and its slot."""
    step = case.step
    assert step.slots is not None
    first, end = step.query_starts[row : row + 2].tolist()
    return slice(first, end), int(step.context_lens[row]) == end - first, int(step.slots[row])


def exact_rule(tokens: DeltaTokens, case: Net) -> Result:
    """Go through each row's tokens, behind the convolution, one after the other in float64."""
    shape, rule = case.kept.shape, case.weight.rule
    keys = shape.key_heads * shape.key_dim
    q, k, v = tokens.qkv.double().tensor_split([keys, 2 * keys], dim=1)
    q, k = (
        part.reshape(len(part), shape.key_heads, -1).repeat_interleave(shape.heads_per_key, dim=1)
        for part in (q, k)
    )
    q, k = (part * (part.square().sum(-1, keepdim=True) + _EPS).rsqrt() for part in (q, k))
    v = v.reshape(len(v), shape.value_heads, -1)
    beta = tokens.b.double().sigmoid()
    grown = F.softplus(tokens.a.double() + rule.dt_bias.double())
    decay = (-rule.a_log.double().exp() * grown).exp()
    answers, states = torch.empty_like(v), []
    for row in range(len(case.step.context_lens)):
        own, begins, slot = _row(case, row)
        state = case.kept.states[slot].double() * (not begins)
        for token in range(own.start, own.stop):
            state = state * decay[token, :, None, None]
            known = torch.einsum("hk,hkv->hv", k[token], state)
            learnt = (v[token] - known) * beta[token, :, None]
            state = state + k[token, :, :, None] * learnt[:, None]
            answers[token] = torch.einsum("hk,hkv->hv", q[token], state) * shape.key_dim**-0.5
        states.append(state)
    return answers, torch.stack(states)


def drawn_cases(count: int, draw: numbers.Random) -> Iterator[tuple[DeltaShape, Any, int]]:
    """Draw shapes, each of which kernels are compiled for, and of each three times rows and how
    many of them are decodes."""
    for _ in range(count):
        heads = draw.choice((1, 2, 3, 4))
        shape = DeltaShape(
            key_heads=heads,
            value_heads=heads * draw.choice((1, 2, 3)),
            key_dim=draw.choice((16, 40, 64, 96, 128)),
            value_dim=draw.choice((16, 48, 64, 80, 128)),
            conv_width=draw.choice((2, 3, 4)),
        )
        for prompts in (0, draw.randrange(1, 4), draw.randrange(1, 4)):
            decodes = draw.randrange(0 if prompts else 1, 5)
            rows = [(draw.choice((0, 1, 2, 900)), 1) for _ in range(decodes)]
            rows += [(draw.choice((0, 1, 5, 900)), draw.randrange(1, 200)) for _ in range(prompts)]
            yield shape, rows, decodes


def errors(ops_of: Callable[[torch.dtype], Ops], seed: int, count: int) -> list[dict[str, Any]]:
    """The largest errors of drawn steps; raises AssertionError for one over its limit."""
    draw = numbers.Random(seed)
    torch.manual_seed(seed)
    found = []
    for dtype, limits in LIMITS.items():
        ops, worst = ops_of(dtype), dict.fromkeys(limits, 0.0)
        for shape, rows, decodes in drawn_cases(count, draw):
            case = net(shape, rows, decodes, dtype)
            by_rule, by_net = case.copied(), case.copied()
            results = _against(by_rule, by_rule.rule(ops), exact_rule(case.tokens, case), "rule")
            results |= _against(by_net, by_net.compute(ops), exact_net(case), "net")
            for name, error in results.items():
                assert error <= limits[name], f"{name}, {shape}, {rows}, {dtype}: {error:.1e}"
                worst[name] = max(worst[name], error)
        found.append({"dtype": str(dtype), **worst})
        told = ", ".join(f"{name} {error:.1e}" for name, error in worst.items())
        print(f"{count} drawn shapes in {dtype}: {told}", flush=True)
    return found


def _against(ran: Net, out: torch.Tensor, expected: Result, name: str) -> dict[str, float]:
    states = ran.kept.states[ran.step.slots]
    return {
        name: _row_error(out, expected[0]),
        f"{name}'s states": _row_error(states, expected[1]),
    }


def _row_error(result: torch.Tensor, expected: torch.Tensor) -> float:
    result, expected = result.double().flatten(1), expected.flatten(1)
    assert result.isfinite().all()
    return float(((result - expected).norm(dim=1) / expected.norm(dim=1)).max())


def decode_rows(ops: Ops, shape: DeltaShape) -> Iterator[Row]:
    """Time the whole net in one kernel, its parts one by one, and the other's rule."""
    state = shape.value_heads * shape.key_dim * shape.value_dim * 4
    tail = shape.conv_channels * (shape.conv_width - 1) * 4
    for count in DECODES:
        copies = copies_beyond_cache(2 * count * state, most=32)
        cases = [net(shape, [(900, 1)] * count, count, torch.bfloat16) for _ in range(copies)]
        name, moved = f"{count} rows", 2 * count * (state + tail)
        took = graph_microseconds([partial(case.compute, ops) for case in cases])
        yield Row("delta net, decode", name, took, moved)
        took = graph_microseconds([partial(_parts, ops, case) for case in cases])
        yield Row("  its parts", name, took, moved)
        if find_spec("fla"):
            took = graph_microseconds([peer_decode(case) for case in cases])
            yield Row("  rule of fla", name, took, 2 * count * state)


def prompt_rows(ops: Ops, shape: DeltaShape) -> Iterator[Row]:
    """Time the rule in chunks, the whole net, and the other's rule."""
    size, values = shape.key_dim, shape.value_heads * shape.value_dim
    for name, lengths in PROMPTS.items():
        case = net(shape, [(0, length) for length in lengths], 0, torch.bfloat16)
        mixed = case.tokens.qkv.contiguous()
        tokens = replace(case.tokens, qkv=mixed)
        plain = replace(case, tokens=tokens)
        moved = mixed.numel() * 2 + len(mixed) * values * 2
        # Three products with the state, and three within a chunk of which half is needed.
        flops = len(mixed) * values * (6 * size + 3 * CHUNK)
        yield Row(
            "delta rule, prompts",
            name,
            graph_microseconds([partial(plain.rule, ops)]),
            moved,
            flops,
        )
        took = graph_microseconds([partial(case.compute, ops)])
        yield Row("  the whole net", name, took, moved, flops)
        if find_spec("fla"):
            took = graph_microseconds([peer_prompt(plain)])
            yield Row("  rule of fla", name, took, moved, flops)


def _parts(ops: Ops, case: Net) -> torch.Tensor:
    weight, kept, step = case.weight, case.kept, case.step
    mixed = ops.short_convolution(case.tokens.qkv, ConvWeight(weight.conv), kept.tails, step)
    tokens = replace(case.tokens, qkv=mixed)
    found = ops.gated_delta_rule(tokens, kept.shape, weight.rule, kept.states, step)
    return ops.rms_norm(found, weight.norm).flatten(1) * F.silu(case.z)


def _peer_arguments(case: Net) -> dict[str, Any]:
    shape = case.kept.shape
    keys = shape.key_heads * shape.key_dim
    q, k, v = (part.contiguous() for part in case.tokens.qkv.tensor_split([keys, 2 * keys], dim=1))
    return {
        "q": q.view(1, len(q), shape.key_heads, -1),
        "k": k.view(1, len(q), shape.key_heads, -1),
        "v": v.view(1, len(q), shape.value_heads, -1),
        "g": case.tokens.a.contiguous()[None],
        "beta": case.tokens.b.contiguous()[None],
        "initial_state": case.kept.states[:-1],
        "output_final_state": True,
        "use_qk_l2norm_in_kernel": True,
        "use_gate_in_kernel": True,
        "use_beta_sigmoid_in_kernel": True,
        "A_log": case.weight.rule.a_log,
        "dt_bias": case.weight.rule.dt_bias,
    }


def peer_decode(case: Net) -> Callable[[], Any]:
    """Flash-linear-attention's recurrent rule, of rows of a token each."""
    arguments = _peer_arguments(case)
    for name in ("q", "k", "v", "g", "beta"):
        arguments[name] = arguments[name].transpose(0, 1)
    return partial(import_module(_PEER).fused_recurrent_gated_delta_rule, **arguments)


def peer_prompt(case: Net) -> Callable[[], Any]:
    """Flash-linear-attention's rule in chunks."""
    starts = case.step.query_starts.long()
    rule = import_module(_PEER).chunk_gated_delta_rule
    return partial(rule, **_peer_arguments(case), cu_seqlens=starts)


def main() -> int:
    parser = argparse.ArgumentParser(description="Errors and device time of gated delta nets.")
    parser.add_argument("--key-heads", type=int, default=16)
    parser.add_argument("--value-heads", type=int, default=32)
    parser.add_argument("--only", nargs="+", choices=("errors", "times"), default=None)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--shapes", type=int, default=4, help="that are drawn, of each dtype")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("error: kernels are timed on a GPU, and torch sees none here", file=sys.stderr)
        return 1
    wanted = args.only or ("errors", "times")
    seed = numbers.SystemRandom().randrange(2**31) if args.seed is None else args.seed
    results: dict[str, Any] = {"device": torch.cuda.get_device_name(), "seed": seed}

    def ops_of(dtype: torch.dtype) -> Ops:
        return resolve_ops("cuda", OpCase(dtype=dtype, kv_dtype=dtype), "triton").ops

    with torch.inference_mode():
        if "times" in wanted:
            shape = DeltaShape(
                key_heads=args.key_heads,
                value_heads=args.value_heads,
                key_dim=128,
                value_dim=128,
                conv_width=4,
            )
            ops, rows = ops_of(torch.bfloat16), []
            for row in chain(decode_rows(ops, shape), prompt_rows(ops, shape)):
                print(row.text(), flush=True)
                rows.append({**asdict(row), "limit_share": round(row.limit_share, 4)})
            results["kernels"] = rows
        if "errors" in wanted:
            print(f"seed {seed}", flush=True)
            results["errors"] = errors(ops_of, seed, args.shapes)
    print(json.dumps(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
