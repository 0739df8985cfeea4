"""Experts of which a checkpoint has one tensor, gates before ups: each rank finds its rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from atom.model_ops.backends import resolve_ops
from atom.model_ops.linear import Build
from atom.model_ops.moe.stacked_linear import StackedLinear
from atom.model_ops.parallel import Ranks
from atom.model_ops.quantised.dequantise import dequantise
from atom.sizing.layers import Stacking
from atom.sizing.projection import Projection, Split
from atom.sizing.quantization.online import ONLINE
from tests.engine.ops.inputs import FLOAT32

_GATE = Projection(name="mlp.experts.0.gate_proj", rows=8, columns=6, split=Split.OUTPUTS, copies=3)
_PARTS = (_GATE, replace(_GATE, name="mlp.experts.0.up_proj"))


def _loaded(stack: torch.Tensor, ranks: Ranks, *, online: str | None = None) -> StackedLinear:
    parts = [replace(part, quantization=ONLINE[online] if online else None) for part in _PARTS]
    build = Build(resolve_ops("cpu", FLOAT32, "torch_ref").ops, ranks)
    linear = StackedLinear(parts, build, stacking=Stacking.SIDE_BY_SIDE)
    for placement in linear.placements("layers.0.mlp.experts.gate_up_proj"):
        assert placement.name == "layers.0.mlp.experts.gate_up_proj"
        assert placement.shape == tuple(stack.shape)
        placement.fill(stack[tuple(slice(*bounds) for bounds in placement.region)])
    return linear


@pytest.mark.parametrize("size", [1, 2, 4])
def test_ranks_have_their_gates_and_their_ups(size: int) -> None:
    stack = torch.randn(3, 6, 16)
    parts = [_loaded(stack, Ranks(size, rank)).w.data.unflatten(1, (2, -1)) for rank in range(size)]
    whole = stack.transpose(1, 2).unflatten(1, (2, -1))
    assert torch.equal(torch.cat(parts, dim=2), whole)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_part_is_quantised_as_it_is_read(rank: int) -> None:
    stack = torch.randn(3, 6, 16)
    plain, w = (
        _loaded(stack, Ranks(2, rank)).w.data,
        _loaded(stack, Ranks(2, rank), online="int8").w,
    )
    assert w.scales is not None
    torch.testing.assert_close(dequantise(w.data, w.scales), plain, atol=0.02, rtol=0.0)
