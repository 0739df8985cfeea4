"""Products with matrices of every format, against dequantise-and-multiply in float64.

Two bounds: what the format loses against the plain matrix, and what a kernel loses against the
format. A kernel that rounds activations to eight bits loses what that rounding does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from atom.model_ops.activations import Activation
from atom.model_ops.backends.backend import Backend
from atom.model_ops.backends.op_case import ExpertsCase, OpCase
from atom.model_ops.quantised.codes import fp4_values, pack_pairs, unpack_pairs
from atom.model_ops.quantised.dequantise import dequantise
from atom.model_ops.quantised.quantise import quantise
from atom.model_ops.routing import Routed
from atom.model_ops.self_check.agreement import INPUT_ERROR, TOLERANCE
from atom.model_ops.values import (
    EIGHT_BITS,
    ExpertsWeight,
    InputGroups,
    LinearWeight,
    NormWeight,
    Scales,
    Stream,
    WeightFormat,
)
from tests.engine.ops.inputs import assert_rows_agree

pytestmark = pytest.mark.usefixtures("bfloat16")
# Rows are interleaved in stacks of experts alone.
FORMATS = [
    kind
    for kind in WeightFormat
    if kind not in (WeightFormat.PLAIN, WeightFormat.MXFP4_INTERLEAVED)
]
# Of normal numbers, ‖error‖ / ‖product‖: a step of e4m3 is 1/8 to 1/16 of a number, one of int8
# 1/127 of a row's largest, one of 4 bits a fifteenth of a group's range.
WEIGHT_ERROR = {
    WeightFormat.FP8: 0.04,
    WeightFormat.FP8_BLOCKS: 0.04,
    WeightFormat.INT8: 0.02,
    WeightFormat.INT4: 0.12,
    WeightFormat.INT4_ORDERED: 0.12,
    WeightFormat.MXFP4: 0.16,
}


def stored(
    weight: torch.Tensor, kind: WeightFormat, dtype: torch.dtype, group: int = 32
) -> LinearWeight:
    """A matrix [out, in] in the format, with zero points where it has them."""
    inner = weight.shape[1]
    if kind is WeightFormat.INT4_ORDERED:
        return ordered(weight, dtype, group)
    if kind is WeightFormat.INT4:
        parts = weight.float().unflatten(1, (-1, group))
        low, high = parts.amin(2).clamp_max(0), parts.amax(2).clamp_min(0)
        scale = ((high - low) / 15).half()
        zero = (-low / scale.float()).round().clamp(0, 15)
        codes = (parts / scale[..., None].float() + zero[..., None]).round().clamp(0, 15)
        packed = pack_pairs(zero.to(torch.uint8).t()).t().contiguous()
        scales = Scales(kind, scale, (1, group), dtype, packed)
        return LinearWeight(pack_pairs(codes.flatten(1).to(torch.uint8)), None, scales)
    block = {WeightFormat.FP8_BLOCKS: (128, 128), WeightFormat.MXFP4: (1, 32)}.get(kind, (1, inner))
    data, scale = quantise(weight, kind, block)
    return LinearWeight(data, None, Scales(kind, scale, block, dtype))


def ordered(
    weight: torch.Tensor,
    dtype: torch.dtype,
    group: int,
    rows: tuple[int, ...] | None = None,
    seeds: tuple[int, ...] = (0, 1),
) -> LinearWeight:
    """INT4 of inputs in an order of their own, which the stored matrix has not: one for the first
    third of the outputs and another for the rest, or one by each seed for so many rows."""
    third = weight.shape[0] // 6 * 2
    rows = rows or (third, weight.shape[0] - third)
    codes, scales, zeros, index = [], [], [], []
    for seed, part in zip(seeds, weight.split(rows), strict=True):
        draw = torch.Generator().manual_seed(seed)
        order = torch.randperm(weight.shape[1], generator=draw).to(weight.device)
        back = order.argsort()
        one = stored(part[:, order], WeightFormat.INT4, dtype, group)
        assert one.scales is not None
        assert one.scales.zero is not None
        codes.append(unpack_pairs(one.data)[:, back])
        scales.append(one.scales.scale)
        zeros.append(one.scales.zero)
        index.append((back // group).int())
    groups = InputGroups(torch.stack(index), rows)
    kind, block = WeightFormat.INT4_ORDERED, (1, group)
    both = Scales(kind, torch.cat(scales), block, dtype, torch.cat(zeros), groups)
    return LinearWeight(pack_pairs(torch.cat(codes)), None, both)


def stacked(experts: list[LinearWeight]) -> LinearWeight:
    """Matrices of one format as a stack."""
    scales = [w.scales for w in experts if w.scales is not None]
    zeros = [each.zero for each in scales if each.zero is not None]
    index = [each.groups.index for each in scales if each.groups is not None]
    groups = scales[0].groups and replace(scales[0].groups, index=torch.stack(index))
    both = replace(
        scales[0],
        scale=torch.stack([each.scale for each in scales]),
        zero=torch.stack(zeros) if zeros else None,
        groups=groups,
    )
    return LinearWeight(torch.stack([w.data for w in experts]), None, both)


def dequantised(w: LinearWeight) -> LinearWeight:
    """The plain matrix or stack, in float64."""
    assert w.scales is not None
    return LinearWeight(dequantise(w.data, w.scales).double())


def matrix(outputs: int, inner: int, device: torch.device) -> torch.Tensor:
    draw = torch.Generator().manual_seed(0)
    return (torch.randn(outputs, inner, generator=draw) / inner**0.5).to(device)


def error(out: torch.Tensor, expected: torch.Tensor) -> float:
    return float((out.double() - expected.double()).norm() / expected.double().norm())


def limit(kind: WeightFormat, dtype: torch.dtype, rounds_inputs: bool) -> float:
    return math.hypot(TOLERANCE[dtype], INPUT_ERROR.get(kind, 0.0) if rounds_inputs else 0.0)


def leaves(backend: Backend, kind: WeightFormat, dtype: torch.dtype, op: str = "linear") -> bool:
    """Whether the backend says that it has no such product; then the reference computes it."""
    formats = (WeightFormat.PLAIN, kind)
    case = OpCase(
        dtype=dtype, kv_dtype=dtype, formats=formats, experts=ExpertsCase(formats=(kind,))
    )
    reasons = backend.reasons_against(op, case)
    assert all(kind.value in reason for reason in reasons)
    return bool(reasons)


def formats_and_tokens() -> Iterator[Any]:
    """One token, a few, a part of a tile, and several tiles with a part of one; of four bits as
    many as make the matrix a plain one first, for the library, whose product nothing interprets."""
    for kind in FORMATS:
        yield from ((kind, tokens) for tokens in (1, 5, 40))
        if kind in EIGHT_BITS:
            yield kind, 140
            yield pytest.param(kind, 520, marks=pytest.mark.gpu)
        else:
            yield kind, 520


@pytest.mark.pairs
@pytest.mark.parametrize(("kind", "tokens"), formats_and_tokens())
@pytest.mark.parametrize(
    ("outputs", "inner", "dtype"),
    [
        (96, 320, torch.float32),
        (64, 256, torch.float16),
        pytest.param(4096, 4096, torch.bfloat16, marks=pytest.mark.gpu),
        pytest.param(6144, 12288, torch.bfloat16, marks=pytest.mark.gpu),
    ],
)
def test_a_product_is_the_dequantised_one(
    backend: Backend, reference: Backend, device: torch.device, kind: WeightFormat, tokens: int,
    outputs: int, inner: int, dtype: torch.dtype,
) -> None:  # fmt: skip
    if leaves(backend, kind, dtype):
        return
    weight, x = matrix(outputs, inner, device), torch.randn(tokens, inner, device=device).to(dtype)
    bias = torch.randn(outputs, device=device).to(dtype) if tokens == 5 else None
    w = stored(weight, kind, dtype)
    w = LinearWeight(w.data, bias, w.scales)
    expected = reference.operations["linear"](
        x.double(), LinearWeight(w.data, None if bias is None else bias.double(), w.scales)
    )
    plain = x.double() @ weight.double().t() + (0 if bias is None else bias.double())
    assert error(expected, plain) < WEIGHT_ERROR[kind]
    prepared = backend.operations["prepare_linear"](w)
    out = backend.operations["linear"](x, prepared)
    assert out.dtype is dtype
    rounds = backend.name == "triton" and kind in EIGHT_BITS
    assert error(out, expected) < limit(kind, dtype, rounds)
    added = backend.operations["add"](Stream(torch.zeros_like(out)), x, prepared)
    norm = NormWeight(torch.ones(outputs, device=device, dtype=dtype), 1e-6)
    _, settled = backend.operations["norm"](added, norm)
    assert error(settled.residual, expected) < limit(kind, dtype, rounds)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("tokens", [1, 40])
def test_a_norm_before_a_quantised_product_changes_nothing_of_it(
    backend: Backend, reference: Backend, device: torch.device, kind: WeightFormat, tokens: int
) -> None:
    if leaves(backend, kind, torch.float32):
        return
    x, norm = torch.randn(tokens, 128, device=device), NormWeight(torch.rand(128).to(device), 1e-6)
    w = stored(matrix(64, 128, device), kind, torch.float32)
    assert w.scales is not None
    normed = reference.operations["rms_norm"](x, norm)
    expected = normed.double() @ dequantise(w.data, w.scales).double().t()
    prepared = backend.operations["prepare_linear"](w)
    out, _ = backend.operations["norm_linear"](Stream(x.clone()), norm, prepared)
    # Few tokens may stay as they are, of many a kernel may round activations to eight bits.
    rounds = backend.name == "triton" and kind in EIGHT_BITS
    assert error(out, expected) < limit(kind, torch.float32, rounds)


@pytest.mark.parametrize("group", [32, 64, 128, 384])
def test_groups_of_any_size_share_a_scale(
    backend: Backend, device: torch.device, group: int
) -> None:
    x = torch.randn(3, 384, device=device)
    w = stored(matrix(48, 384, device), WeightFormat.INT4, torch.float32, group)
    assert w.scales is not None
    expected = x.double() @ dequantise(w.data, w.scales).double().t()
    out = backend.operations["linear"](x, backend.operations["prepare_linear"](w))
    assert_rows_agree(out, expected, torch.float32)


@pytest.mark.parametrize("tall", [1, 64, 128])
@pytest.mark.parametrize("wide", [16, 64, 128])
def test_blocks_of_any_shape_share_a_scale(
    backend: Backend, device: torch.device, tall: int, wide: int
) -> None:
    x = torch.randn(3, 320, device=device)
    data, scale = quantise(matrix(192, 320, device), WeightFormat.FP8_BLOCKS, (tall, wide))
    w = LinearWeight(
        data, None, Scales(WeightFormat.FP8_BLOCKS, scale, (tall, wide), torch.float32)
    )
    assert w.scales is not None
    expected = x.double() @ dequantise(w.data, w.scales).double().t()
    out = backend.operations["linear"](x, backend.operations["prepare_linear"](w))
    rounds = backend.name == "triton"
    assert error(out, expected) < limit(WeightFormat.FP8_BLOCKS, torch.float32, rounds)


def test_four_bit_codes_are_the_sixteen_numbers(device: torch.device) -> None:
    codes = torch.arange(16, dtype=torch.uint8, device=device)
    assert torch.equal(unpack_pairs(pack_pairs(codes)), codes)
    positive = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    assert fp4_values(codes).tolist() == positive + [-value for value in positive]


@pytest.mark.pairs
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("tokens", [1, 6, 300])
@pytest.mark.parametrize("weighs_inputs", [False, True], ids=["results", "inputs"])
def test_experts_are_the_dequantised_ones(
    backend: Backend, reference: Backend, device: torch.device, kind: WeightFormat, tokens: int,
    weighs_inputs: bool,
) -> None:  # fmt: skip
    """In float32 activations of experts stay as they are: no rounding but the dtype's."""
    count, hidden, inner, dtype = 6, 160, 64, torch.float32
    if leaves(backend, kind, dtype, "experts"):
        return
    draw = torch.Generator().manual_seed(2)

    def stack(parts: tuple[int, ...], columns: int) -> LinearWeight:
        made = []
        for expert in range(count):
            weight = torch.randn(sum(parts), columns, generator=draw) / columns**0.5
            if kind is WeightFormat.INT4_ORDERED:
                seeds = tuple(2 * expert + part for part in range(len(parts)))
                made.append(ordered(weight.to(device), dtype, 32, parts, seeds))
            else:
                made.append(stored(weight.to(device), kind, dtype))
        return stacked(made)

    w = ExpertsWeight(stack((inner, inner), hidden), stack((hidden,), inner), Activation.SILU)
    ids = torch.stack([torch.randperm(count, generator=draw)[:2] for _ in range(tokens)])
    routed = Routed(ids.int().to(device), torch.rand(tokens, 2, generator=draw).to(device))
    x = torch.randn(tokens, hidden, generator=draw).to(device)
    plain = ExpertsWeight(dequantised(w.gate_up), dequantised(w.down), w.activation, weighs_inputs)
    expected = reference.operations["experts"](x.double(), plain, routed)
    prepare = backend.operations["prepare_experts"]
    prepared = ExpertsWeight(prepare(w.gate_up), prepare(w.down), w.activation, weighs_inputs)
    out = backend.operations["experts"](x, prepared, routed)
    assert_rows_agree(out, expected, dtype, slack=4)


@pytest.mark.pairs
@pytest.mark.parametrize(
    ("tokens", "top_k"), [(1, 2), (7, 2), (50, 1), (530, 2)], ids=["pair", "few", "one", "in order"]
)
@pytest.mark.parametrize("form", ["orders of each", "an order of both", "of a rank", "symmetric"])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)]
)
def test_experts_whose_inputs_are_ordered(
    backend: Backend, reference: Backend, device: torch.device, tokens: int, top_k: int,
    dtype: torch.dtype, form: str,
) -> None:  # fmt: skip
    """Gates and ups in two orders or, as GPTQ writes them, in one, another of each expert; downs of
    a rank's share of the inputs, whose groups are of no equal size then."""
    count, hidden, inner = 5, 96, 128
    draw = torch.Generator().manual_seed(3)

    def expert(parts: tuple[int, ...], columns: int, seeds: tuple[int, ...]) -> LinearWeight:
        weight = (torch.randn(sum(parts), columns, generator=draw) / columns**0.5).to(device)
        w = ordered(weight, dtype, 32, parts, seeds)
        assert w.scales is not None
        return replace(w, scales=replace(w.scales, zero=None)) if form == "symmetric" else w

    both = form == "an order of both"
    gates = [expert((inner, inner), hidden, (9 * e, 9 * e + (not both))) for e in range(count)]
    downs = [expert((hidden,), inner, (9 * e + 2,)) for e in range(count)]
    gate_up, down = stacked(gates), stacked(downs)
    if form == "of a rank":
        gate_up, down = share_of_gates(gate_up, inner // 2), share_of_inputs(down, inner // 2)
    prepare = backend.operations["prepare_experts"]
    own = ExpertsWeight(prepare(gate_up), prepare(down), Activation.SILU)
    if backend.name == "triton":
        assert own.gate_up.scales is not None
        assert own.gate_up.scales.groups is not None
        assert own.gate_up.scales.groups.index.shape[1] == (1 if both else 2)
        assert own.down.scales is not None
        assert own.down.scales.groups is not None
        assert own.down.scales.groups.whole == (form != "of a rank")
    ids = torch.stack([torch.randperm(count, generator=draw)[:top_k] for _ in range(tokens)])
    routed = Routed(ids.int().to(device), torch.rand(tokens, top_k, generator=draw).to(device))
    x = torch.randn(tokens, hidden, generator=draw).to(device, dtype)
    plain = ExpertsWeight(dequantised(gate_up), dequantised(down), Activation.SILU)
    expected = reference.operations["experts"](x.double(), plain, routed)
    out = backend.operations["experts"](x, own, routed)
    assert_rows_agree(out, expected, dtype, slack=4)


def share_of_gates(w: LinearWeight, rows: int) -> LinearWeight:
    """The first `rows` of gates and of ups."""
    scales = w.scales
    assert scales is not None
    assert scales.groups is not None
    assert scales.zero is not None

    def halves(tensor: torch.Tensor, kept: int) -> torch.Tensor:
        return torch.cat([half[:, :kept] for half in tensor.chunk(2, dim=1)], dim=1).contiguous()

    own = replace(
        scales,
        scale=halves(scales.scale, rows),
        zero=halves(scales.zero, rows // 2),
        groups=replace(scales.groups, rows=(rows, rows)),
    )
    return LinearWeight(halves(w.data, rows), None, own)


def share_of_inputs(w: LinearWeight, columns: int) -> LinearWeight:
    """The first `columns` inputs, with the scales of all groups, of which any may be theirs."""
    scales = w.scales
    assert scales is not None
    assert scales.groups is not None
    groups = replace(scales.groups, index=scales.groups.index[..., :columns].contiguous())
    data = w.data[..., : columns // 2].contiguous()
    return LinearWeight(data, None, replace(scales, groups=groups))
