"""Tiles of products with codes on a card like the one that was measured, and on others."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

if find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

from atom.model_ops.backends.triton_ops.gemm import measured_tiles, quantised_tiles
from atom.model_ops.backends.triton_ops.gemm.measured_tiles import measured_tile
from atom.model_ops.backends.triton_ops.gemm.quantised_tiles import choose_tile
from atom.model_ops.backends.triton_ops.nvidia import scaled_mm
from atom.model_ops.values import LinearWeight, Scales, WeightFormat

FORMATS = [
    WeightFormat.INT4, WeightFormat.INT4_ORDERED, WeightFormat.MXFP4, WeightFormat.FP8,
    WeightFormat.FP8_BLOCKS,
]  # fmt: skip
SIDES = [(24576, 4096), (4096, 12288), (6144, 4096), (4096, 4096), (2880, 2880), (96, 64)]


def matrix(format: WeightFormat, outputs: int, inner: int) -> LinearWeight:
    width = inner // format.elements_per_byte
    data = torch.empty(outputs, width, dtype=torch.uint8, device="meta")
    scale = torch.empty(outputs, -(-inner // 32), device="meta")
    return LinearWeight(data, scales=Scales(format, scale, (1, 32), torch.bfloat16))


@pytest.fixture
def an_h200(monkeypatch: pytest.MonkeyPatch) -> None:
    """132 multiprocessors, as far as tiles are concerned."""
    monkeypatch.setattr(measured_tiles, "_is_like", lambda device: True)
    for module in (measured_tiles, quantised_tiles):
        monkeypatch.setattr(module, "compute_units", lambda device: 132)


@pytest.mark.usefixtures("an_h200")
@pytest.mark.parametrize("tokens", [1, 2, 8, 16, 17, 32, 33, 64, 65, 128, 129, 511])
@pytest.mark.parametrize(("outputs", "inner"), SIDES)
@pytest.mark.parametrize("format", FORMATS)
def test_slices_hold_all_inputs(
    format: WeightFormat, outputs: int, inner: int, tokens: int
) -> None:
    w = matrix(format, outputs, inner)
    tile = measured_tile(torch.empty(tokens, inner, device="meta"), w, 128)
    assert tile.slice % tile.block_k == 0
    assert tile.splits * tile.slice >= inner
    assert tile.splits == 1 or tile.slice >= 4 * tile.block_k
    assert tile.block_t <= max(16, 2 * tokens)


@pytest.mark.usefixtures("an_h200")
@pytest.mark.parametrize(
    ("format", "tokens", "sides", "splits"),
    [
        (WeightFormat.INT4, 64, (24576, 4096), 1),
        (WeightFormat.INT4, 64, (4096, 12288), 4),
        (WeightFormat.MXFP4, 8, (24576, 4096), 2),
        (WeightFormat.MXFP4, 128, (24576, 4096), 2),
        (WeightFormat.MXFP4, 128, (4096, 12288), 4),
        (WeightFormat.FP8_BLOCKS, 8, (4096, 12288), 8),
        (WeightFormat.FP8_BLOCKS, 64, (24576, 4096), 1),
    ],
)
def test_what_was_fastest_is_chosen(
    format: WeightFormat, tokens: int, sides: tuple[int, int], splits: int
) -> None:
    tile = measured_tile(torch.empty(tokens, sides[1], device="meta"), matrix(format, *sides), 128)
    assert tile.splits == splits


def test_other_cards_keep_the_estimates() -> None:
    x, w = torch.empty(64, 4096), matrix(WeightFormat.INT4, 4096, 4096)
    assert measured_tile(x, w, 128, 64, 64) == choose_tile(x, w, 128, 64, 64)


def test_many_tokens_of_fp8_are_the_librarys() -> None:
    assert not scaled_mm.is_faster(16, in_parts=False)
    assert scaled_mm.is_faster(17, in_parts=False)
    assert not scaled_mm.is_faster(128, in_parts=True)
    assert scaled_mm.is_faster(129, in_parts=True)
