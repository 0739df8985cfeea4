"""Stacks of MXFP4 whose rows lie by eight hold the numbers that they held."""

from __future__ import annotations

import pytest
import torch

from atom.model_ops.activations import Activation
from atom.model_ops.quantised.dequantise import plain
from atom.model_ops.quantised.mxfp4_interleaved import (
    ROWS_TOGETHER,
    can_interleave,
    in_rows,
    interleaved,
)
from atom.model_ops.values import LinearWeight, Scales, WeightFormat


def stack(outputs: int, inputs: int, gated: bool = False) -> LinearWeight:
    draw = torch.Generator().manual_seed(2)
    codes = torch.randint(0, 256, (3, outputs, inputs // 2), generator=draw).byte()
    exponents = torch.randint(110, 140, (3, outputs, inputs // 32), generator=draw).byte()
    scales = Scales(WeightFormat.MXFP4, exponents, (1, 32), torch.bfloat16)
    return LinearWeight(codes, scales=scales, gating=Activation.SILU if gated else None)


def test_numbers_stay() -> None:
    w = stack(48, 192)
    moved = interleaved(w)
    assert moved.format is WeightFormat.MXFP4_INTERLEAVED
    assert (moved.outputs, moved.inputs) == (48, 192)
    assert torch.equal(plain(moved, torch.float32), plain(w, torch.float32))
    assert torch.equal(plain(moved.of(1), torch.float32), plain(w.of(1), torch.float32))
    assert moved.scales is not None
    assert w.scales is not None
    data, scales = in_rows(moved.data, moved.scales)
    assert torch.equal(data, w.data)
    assert torch.equal(scales.scale, w.scales.scale)


def test_eight_rows_are_one_piece_of_memory() -> None:
    w = stack(16, 320)
    moved = interleaved(w)
    assert w.scales is not None
    assert moved.scales is not None
    of_first = moved.data[0].flatten()[: ROWS_TOGETHER * 160]
    second, last = (
        of_first[ROWS_TOGETHER * 64 : ROWS_TOGETHER * 128],
        of_first[ROWS_TOGETHER * 128 :],
    )
    assert torch.equal(second.view(ROWS_TOGETHER, 64), w.data[0, :ROWS_TOGETHER, 64:128])
    assert torch.equal(last.view(ROWS_TOGETHER, 32), w.data[0, :ROWS_TOGETHER, 128:])
    exponents = moved.scales.scale[0].flatten()[: ROWS_TOGETHER * 16].view(2, ROWS_TOGETHER, 8)
    assert torch.equal(exponents[0], w.scales.scale[0, :ROWS_TOGETHER, :8])
    assert torch.equal(exponents[1, :, :2], w.scales.scale[0, :ROWS_TOGETHER, 8:])


@pytest.mark.parametrize(
    ("outputs", "inputs", "gated", "fits"),
    [(16, 64, True, True), (24, 64, True, False), (24, 64, False, True), (8, 96, False, False)],
)
def test_only_whole_eights_of_whole_runs_fit(
    outputs: int, inputs: int, gated: bool, fits: bool
) -> None:
    assert can_interleave(stack(outputs, inputs, gated)) is fits
