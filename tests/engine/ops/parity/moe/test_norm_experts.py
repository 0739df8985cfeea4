"""A norm and the experts behind it, of few tokens, equal the single operations of the reference."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from atom.model_ops.activations import Activation, ClampedSwiGLU, Gating
from atom.model_ops.backends.backend import Backend
from atom.model_ops.backends.composed import ComposedOps
from atom.model_ops.backends.interface import Ops
from atom.model_ops.backends.op_names import FUSED_OPS
from atom.model_ops.quantised.mxfp4_interleaved import interleaved
from atom.model_ops.quantised.quantise import quantise
from atom.model_ops.routing import Routing, Scoring
from atom.model_ops.values import (
    ExpertsWeight,
    LinearWeight,
    MoEWeight,
    NormWeight,
    Pending,
    RouterWeight,
    Scales,
    SharedWeight,
    Stream,
    WeightFormat,
)
from tests.engine.ops.inputs import assert_rows_agree

gpu = pytest.mark.gpu
DTYPES = [torch.float32, torch.float16, pytest.param(torch.bfloat16, marks=gpu)]
SOFTMAX, SIGMOID = Scoring.SOFTMAX, Scoring.SIGMOID
MXFP4, FP8, FP8_BLOCKS, INT8 = (
    WeightFormat.MXFP4, WeightFormat.FP8, WeightFormat.FP8_BLOCKS, WeightFormat.INT8
)  # fmt: skip
ROUTINGS = {
    "one": Routing(top_k=1),
    "softmax": Routing(top_k=3, renormalize=True),
    "sigmoid": Routing(top_k=5, scoring=SIGMOID, renormalize=True, scale=2.5, group_top=2),
    "groups": Routing(top_k=3, scale=16.0, groups=4, groups_kept=2),
    "inputs": Routing(top_k=1, scoring=SIGMOID, weighs_inputs=True),
    "several inputs": Routing(top_k=2, scoring=SIGMOID, scale=1.5, weighs_inputs=True),
}


def layer(
    sizes: tuple[int, int, int], routing: Routing, device: torch.device, dtype: torch.dtype,
    *, shared: int = 0, bias: bool = False, activation: Gating = Activation.SILU,
) -> MoEWeight:  # fmt: skip
    """sizes: experts, hidden and inner; shared: the inner size of a shared expert."""
    draw = torch.Generator().manual_seed(7)
    experts, hidden, inner = sizes

    def matrix(*shape: int) -> LinearWeight:
        data = torch.randn(shape, generator=draw) * shape[-1] ** -0.5
        biases = torch.randn(shape[:-1], generator=draw).to(device, dtype) if bias else None
        return LinearWeight(data.to(device, dtype), biases)

    e_score_correction_bias = torch.rand(experts, generator=draw).to(device) if bias else None
    products = 2 if activation.has_gate else 1
    gate_up, down = matrix(experts, products * inner, hidden), matrix(experts, hidden, inner)
    beside = None
    if shared:
        beside = SharedWeight(matrix(products * shared, hidden), matrix(hidden, shared), activation)
    return MoEWeight(
        RouterWeight(matrix(experts, hidden), e_score_correction_bias), routing,
        ExpertsWeight(gate_up, down, activation, routing.weighs_inputs), beside,
    )  # fmt: skip


def coded(w: MoEWeight, kind: WeightFormat, block: tuple[int, int]) -> MoEWeight:
    """Experts and shared expert in a format. block: 0 inputs stand for all."""

    def matrix(plain: LinearWeight) -> LinearWeight:
        rows, wide = block[0], block[1] or plain.inputs
        stack = plain.data if plain.data.dim() == 3 else plain.data[None]
        parts = [quantise(each, kind, (rows, wide)) for each in stack]
        data, scale = (
            torch.stack(each).reshape(*plain.data.shape[:-2], *each[0].shape)
            for each in zip(*parts, strict=True)
        )
        scales = Scales(kind, scale, (rows, wide), plain.data.dtype)
        return LinearWeight(data, plain.bias, scales)

    experts = replace(w.experts, gate_up=matrix(w.experts.gate_up), down=matrix(w.experts.down))
    beside = w.shared
    if beside is not None:
        beside = replace(beside, gate_up=matrix(beside.gate_up), down=matrix(beside.down))
    return replace(w, experts=experts, shared=beside)


def stream_of(tokens: int, hidden: int, pending: Pending, dtype: torch.dtype) -> Stream:
    draw = torch.Generator().manual_seed(8)
    residual = torch.randn(tokens, hidden, generator=draw).to(dtype)
    if pending is Pending.NOTHING:
        return Stream(residual)
    if pending is Pending.WHOLE:
        return Stream(residual).plus(torch.randn(tokens, hidden, generator=draw).to(dtype))
    return Stream(residual, torch.randn(3, tokens, hidden, generator=draw), pending)


def on(device: torch.device, stream: Stream) -> Stream:
    """A copy there."""
    pending = None if stream.pending is None else stream.pending.clone().to(device)
    return Stream(stream.residual.clone().to(device), pending, stream.pending_is)


def check(
    backend: Backend, reference: Backend, device: torch.device, w: MoEWeight, stream: Stream,
    *, slack: float = 2.0,
) -> None:  # fmt: skip
    """What the next norm adds up, and the sum that it finds."""
    hidden = stream.residual.shape[1]
    norm = NormWeight(torch.rand(hidden).to(device, stream.residual.dtype) + 0.5, 1e-6)
    ops = SimpleNamespace(**reference.operations)
    vars(ops).update({op: getattr(ComposedOps(cast(Ops, ops)), op) for op in FUSED_OPS})
    whole: Any = on(device, stream)
    if stream.pending_is is Pending.PARTS:
        assert stream.pending is not None
        whole = on(device, Stream(stream.residual).plus(stream.pending.sum(0).to(norm.weight)))
    expected = ops.norm(ops.norm_experts(whole, norm, w), norm)[1].residual
    after = backend.operations["norm_experts"](on(device, stream), norm, w)
    got = backend.operations["norm"](after, norm)[1].residual
    assert_rows_agree(got, expected, got.dtype, slack=slack)
    again = backend.operations["norm_experts"](on(device, stream), norm, w)
    assert torch.equal(backend.operations["norm"](again, norm)[1].residual, got)


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=gpu)])
@pytest.mark.parametrize("routing", ROUTINGS.values(), ids=ROUTINGS.keys())
@pytest.mark.parametrize(
    ("tokens", "sizes", "shared"),
    [
        (1, (20, 72, 40), 0),
        (1, (12, 40, 24), 56),
        (2, (40, 48, 32), 24),
        (7, (12, 48, 24), 24),
        (17, (8, 32, 16), 0),
        pytest.param(1, (128, 2048, 768), 0, marks=gpu),
        pytest.param(4, (64, 2048, 1408), 2816, marks=gpu),
        pytest.param(16, (256, 7168, 256), 256, marks=gpu),
    ],
)
def test_norm_experts(
    backend: Backend, reference: Backend, device: torch.device, tokens: int,
    sizes: tuple[int, int, int], shared: int, routing: Routing, dtype: torch.dtype,
) -> None:  # fmt: skip
    w = layer(sizes, routing, device, dtype, shared=shared)
    check(backend, reference, device, w, stream_of(tokens, sizes[1], Pending.WHOLE, dtype))


@pytest.mark.parametrize("pending", [Pending.NOTHING, Pending.WHOLE, Pending.PARTS])
@pytest.mark.parametrize("tokens", [1, 3])
def test_streams_biases_and_corrections(
    backend: Backend, reference: Backend, device: torch.device, tokens: int, pending: Pending
) -> None:
    w = layer((60, 40, 24), ROUTINGS["sigmoid"], device, torch.float32, shared=20, bias=True)
    if backend.name != "triton" and pending is Pending.PARTS:
        pytest.skip("products of this backend come whole")
    check(backend, reference, device, w, stream_of(tokens, 40, pending, torch.float32))


@pytest.mark.parametrize("tokens", [1, 3])
def test_a_shared_expert_with_a_gate(
    backend: Backend, reference: Backend, device: torch.device, tokens: int
) -> None:
    w = layer((60, 40, 24), ROUTINGS["softmax"], device, torch.float32, shared=20)
    assert w.shared is not None
    gate = LinearWeight(torch.randn(1, 40, device=device))
    w = replace(w, shared=replace(w.shared, gate=gate))
    check(backend, reference, device, w, stream_of(tokens, 40, Pending.WHOLE, torch.float32))


def test_experts_without_gates(backend: Backend, reference: Backend, device: torch.device) -> None:
    """One token's, of which kernels for so few would take the half of a matrix for its gate."""
    if backend.name == "native_cpu":
        pytest.skip("native_cpu leaves this activation to another backend")
    relu2 = Activation.RELU2
    w = layer((24, 40, 24), ROUTINGS["sigmoid"], device, torch.float32, shared=20, activation=relu2)
    check(backend, reference, device, w, stream_of(1, 40, Pending.WHOLE, torch.float32))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("interleaves", [False, True])
@pytest.mark.parametrize(
    ("tokens", "sizes"),
    [
        (1, (6, 192, 64)),
        (2, (24, 64, 128)),
        pytest.param(1, (32, 2880, 2880), marks=gpu),
        pytest.param(2, (32, 2880, 2880), marks=gpu),
    ],
)
def test_experts_in_mxfp4(
    backend: Backend, reference: Backend, device: torch.device, tokens: int,
    sizes: tuple[int, int, int], interleaves: bool, dtype: torch.dtype,
) -> None:  # fmt: skip
    """interleaves: as a card has them, in what order rows lie."""
    if backend.name == "native_cpu":
        pytest.skip("native_cpu leaves quantised experts to another backend")
    clamped = ClampedSwiGLU(1.702, 7.0)
    w = layer(sizes, ROUTINGS["softmax"], device, dtype, bias=True, activation=clamped)
    w = coded(w, MXFP4, (1, 32))
    if interleaves:
        stacks = w.experts
        stacks = replace(stacks, gate_up=interleaved(stacks.gate_up), down=interleaved(stacks.down))
        w = replace(w, experts=stacks)
    check(backend, reference, device, w, stream_of(tokens, sizes[1], Pending.WHOLE, dtype))


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=gpu)])
@pytest.mark.parametrize("kind", [FP8, FP8_BLOCKS, INT8])
@pytest.mark.parametrize(
    ("tokens", "sizes", "routing", "shared"),
    [
        (1, (12, 160, 48), "one", 0),
        (2, (24, 64, 16), "softmax", 16),
        (1, (8, 72, 40), "groups", 24),
        pytest.param(1, (128, 2048, 768), "softmax", 0, marks=gpu),
        pytest.param(4, (256, 2048, 1408), "sigmoid", 2816, marks=gpu),
        pytest.param(2, (256, 7168, 256), "groups", 256, marks=gpu),
    ],
)
def test_experts_in_eight_bits(
    backend: Backend, reference: Backend, device: torch.device, tokens: int,
    sizes: tuple[int, int, int], routing: str, shared: int, kind: WeightFormat,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    """Shared experts too; blocks that end within a matrix, biases and corrections."""
    if backend.name == "native_cpu":
        pytest.skip("native_cpu leaves quantised experts to another backend")
    w = layer(sizes, ROUTINGS[routing], device, dtype, shared=shared, bias=True)
    blocks = (16, 64) if sizes[1] < 2048 else (128, 128)
    w = coded(w, kind, blocks if kind is FP8_BLOCKS else (1, 0))
    stream = stream_of(tokens, sizes[1], Pending.WHOLE, dtype)
    # More tokens than the fused kernels take are multiplied in fp8 (test_experts.py).
    in_fp8 = dtype is torch.bfloat16 and kind is not INT8
    check(backend, reference, device, w, stream, slack=6.0 if in_fp8 else 2.0)
