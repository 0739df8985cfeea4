"""4-bit matrices by words and byte by byte: groups of every kind, orders of inputs, 16-bit
activations."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from atom.model_ops.backends.triton_ops.gemm.linear import linear, prepare_linear
from atom.model_ops.backends.triton_ops.gemm.packed_int32_gemm import takes
from atom.model_ops.quantised.codes import pack_pairs, unpack_pairs
from atom.model_ops.quantised.dequantise import dequantise
from atom.model_ops.self_check.agreement import TOLERANCE
from atom.model_ops.values import LinearWeight, WeightFormat
from tests.engine.ops.parity.gemm.test_quantised_linear import error, matrix, stored

INT4, ORDERED, MXFP4 = WeightFormat.INT4, WeightFormat.INT4_ORDERED, WeightFormat.MXFP4
INNER = 384
pytestmark = pytest.mark.usefixtures("bfloat16")


def expected(x: torch.Tensor, w: LinearWeight) -> torch.Tensor:
    assert w.scales is not None
    return x.double() @ dequantise(w.data, w.scales).double().t()


def of_one_order(w: LinearWeight) -> LinearWeight:
    """As GPTQ stores projections of one input: every part with the first one's groups."""
    assert w.scales is not None
    assert w.scales.groups is not None
    groups = w.scales.groups
    same = replace(groups, index=groups.index[:1].expand_as(groups.index).contiguous())
    return replace(w, scales=replace(w.scales, groups=same))


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("tokens", [1, 17, 130])
@pytest.mark.parametrize(
    ("kind", "group"),
    [(INT4, 32), (INT4, 64), (INT4, 128), (INT4, INNER), (ORDERED, 128), (MXFP4, 32)],
)
def test_words_are_the_dequantised_matrix(
    device: torch.device, kind: WeightFormat, group: int, tokens: int, dtype: torch.dtype
) -> None:
    x = torch.randn(tokens, INNER, device=device).to(dtype)
    w = stored(matrix(80, INNER, device), kind, dtype, group)
    w = of_one_order(w) if kind is ORDERED else w
    prepared = prepare_linear(w)
    assert takes(x, prepared)
    assert error(linear(x, prepared), expected(x, w)) < TOLERANCE[dtype]


@pytest.mark.parametrize("tokens", [1, 17])
@pytest.mark.parametrize("kind", [INT4, MXFP4])
def test_inputs_are_no_whole_tiles(device: torch.device, kind: WeightFormat, tokens: int) -> None:
    x = torch.randn(tokens, INNER + 32, device=device).half()
    w = stored(matrix(80, INNER + 32, device), kind, torch.float16, 32)
    assert takes(x, w)
    assert error(linear(x, w), expected(x, w)) < TOLERANCE[torch.float16]


def test_what_lies_behind_the_last_rows_scales_is_not_read(device: torch.device) -> None:
    x = torch.randn(17, INNER + 32, device=device).half()
    w = stored(matrix(80, INNER + 32, device), INT4, torch.float16, 32)
    scales = w.scales
    assert scales is not None
    memory = torch.full((2 * scales.scale.numel(),), torch.nan, device=device).half()
    behind = memory[: scales.scale.numel()].view_as(scales.scale).copy_(scales.scale)
    guarded = replace(w, scales=replace(scales, scale=behind))
    assert error(linear(x, guarded), expected(x, w)) < TOLERANCE[torch.float16]


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_zero_points_of_inputs_that_are_all_large(device: torch.device, kind: torch.dtype) -> None:
    """What codes and zero points add up to is a hundred times what they leave."""
    x = (torch.randn(17, 4096, device=device) + 3).to(kind)
    w = stored(matrix(16, 4096, device), INT4, kind, 128)
    assert error(linear(x, w), expected(x, w)) < TOLERANCE[kind]


@pytest.mark.parametrize("tokens", [3, 520])
@pytest.mark.parametrize("group", [24, 96, 384])
def test_groups_that_fit_no_tile_of_words(device: torch.device, group: int, tokens: int) -> None:
    x = torch.randn(tokens, INNER, device=device).half()
    for kind in (INT4, ORDERED):
        w = stored(matrix(48, INNER, device), kind, torch.float16, group)
        out = linear(x, prepare_linear(w))
        assert error(out, expected(x, w)) < TOLERANCE[torch.float16]


@pytest.mark.parametrize("tokens", [1, 40, 520])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_ranks_have_inputs_of_any_group(
    device: torch.device, dtype: torch.dtype, tokens: int
) -> None:
    """Each rank's share of the inputs, with scales of all groups: their products add up."""
    w = stored(matrix(48, INNER, device), ORDERED, dtype, 32)
    assert w.scales is not None
    assert w.scales.groups is not None
    x = torch.randn(tokens, INNER, device=device).to(dtype)
    total = torch.zeros(tokens, 48, dtype=torch.float64, device=device)
    for rank in range(3):
        own = slice(rank * 128, rank * 128 + 128)
        groups = replace(w.scales.groups, index=w.scales.groups.index[:, own].contiguous())
        share = replace(
            w,
            data=pack_pairs(unpack_pairs(w.data)[:, own].contiguous()),
            scales=replace(w.scales, groups=groups),
        )
        prepared = prepare_linear(share)
        assert not takes(x, prepared)
        total += linear(x[:, own], prepared)
    assert error(total, expected(x, w)) < TOLERANCE[dtype]


def test_sorted_inputs_stand_for_the_same_matrix(device: torch.device) -> None:
    w = stored(matrix(48, INNER, device), ORDERED, torch.float32, 32)
    assert w.scales is not None
    for given, parts in ((w, 2), (of_one_order(w), 1)):
        prepared = prepare_linear(given)
        assert given.scales is not None
        assert prepared.scales is not None
        assert prepared.scales.groups is not None
        assert len(prepared.scales.groups.rows) == parts
        before = dequantise(given.data, given.scales)
        assert torch.equal(dequantise(prepared.data, prepared.scales), before)
