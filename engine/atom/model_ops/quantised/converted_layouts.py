"""Placements of matrices that are converted to fp8 as they are loaded: NVFP4, MXFP8, MXFP6.

A matrix' numbers, the scales of its groups and that of the whole are separate tensors, which mean
nothing one by one. They are read together, each by this rank's region, and converted some rows at a
time, so that the memory of a conversion does not grow with the matrix.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from atom.errors import ModelError
from atom.model_ops.placement import FLOATS, Placement, in_order
from atom.model_ops.quantised.checkpoint_layouts import Part
from atom.model_ops.quantised.codes import FP8_MAX
from atom.model_ops.quantised.convert import group_scales, numbers, to_fp8_rows
from atom.sizing.quantization import Quantization, Source

_AT_ONCE = 1 << 19  # numbers that are converted at once, some 35 bytes each


@dataclass(frozen=True, slots=True)
class ConvertingPlacement(Placement):
    """Convert a matrix' tensors as they are read; target: its data in fp8; `scale`, of each output,
    is filled as well. beside: the tensors of the scales, of groups first; inverse: whether the
    scale of the matrix divides."""

    scale: torch.Tensor | None = None
    source: Source = Source.NVFP4
    beside: tuple[Placement, ...] = ()
    inverse: bool = False

    @property
    def companions(self) -> tuple[Placement, ...]:
        """Return the placements of the scales."""
        return self.beside

    def fill(self, part: torch.Tensor, *companions: torch.Tensor) -> None:
        """Convert the numbers by their scales. Raises ModelError if a scale is no number."""
        assert self.scale is not None
        device = self.target.device
        scales = group_scales(self.source, companions[0].to(device))
        _check(self.beside[0], scales * FP8_MAX)
        scales = in_order(scales, self.order)
        codes = in_order(_bytes(part.to(device)), self.order).view(part.dtype)
        factor = self._factor(companions[1:]).to(device)
        rows = max(1, _AT_ONCE // self.target.shape[1])
        for first in range(0, len(codes), rows):
            some = slice(first, first + rows)
            values = numbers(self.source, codes[some], scales[some])
            data, scale = to_fp8_rows(values, factor)
            self.target[some].copy_(data)
            self.scale[some].copy_(scale)

    def _factor(self, whole: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Return the scale of the matrix, by which numbers are multiplied."""
        if not whole:
            return torch.ones(())
        factor = whole[0].float().reshape(())
        if self.inverse:
            factor = 1.0 / factor
        _check(self.beside[1], factor)
        return factor


def converted_placement(part: Part, quantization: Quantization) -> Placement:
    """Return the placement of a part, from all tensors that the checkpoint has of its matrix."""
    source = quantization.converted
    assert source is not None
    compressed = quantization.method == "compressed-tensors"
    matrix, rows, (first, end) = part.matrix, part.region.rows, part.region.columns
    packed = source is not Source.MXFP8
    return ConvertingPlacement(
        name=f"{part.name}.weight_packed" if packed and compressed else f"{part.name}.weight",
        shape=(matrix.rows, matrix.columns * source.bits // 8),
        region=(rows, (first * source.bits // 8, end * source.bits // 8)),
        target=part.data,
        order=part.order,
        dtypes=(torch.uint8,) if packed else (torch.float8_e4m3fn,),
        scale=part.scale,
        source=source,
        beside=tuple(_scales(part, source, compressed=compressed)),
        inverse=compressed,
    )


def _scales(part: Part, source: Source, *, compressed: bool) -> Iterator[Placement]:
    """Yield the placements of the scales of groups, and of that of an NVFP4 matrix."""
    matrix, rows, (first, end) = part.matrix, part.region.rows, part.region.columns
    group, nvfp4 = source.group, source is Source.NVFP4
    yield Placement(
        name=f"{part.name}.weight_scale",
        shape=(matrix.rows, matrix.columns // group),
        region=(rows, (first // group, end // group)),
        target=part.scale,
        aliases=() if nvfp4 else (f"{part.name}.weight_scale_inv",),
        dtypes=(torch.float8_e4m3fn,) if nvfp4 else (torch.uint8, torch.float8_e8m0fnu),
    )
    if nvfp4:
        last = "weight_global_scale" if compressed else "weight_scale_2"
        yield Placement(f"{part.name}.{last}", (), (), part.scale, dtypes=FLOATS)


def _check(placement: Placement, scales: torch.Tensor) -> None:
    """Refuse scales that leave a matrix without numbers."""
    if not bool((torch.isfinite(scales) & (scales >= 0)).all()):
        raise ModelError(
            f"{placement.name}: holds a scale that is negative, infinite or not a number, so that "
            "the matrix has no numbers; download the checkpoint again, or use another one"
        )


def _bytes(read: torch.Tensor) -> torch.Tensor:
    return read.contiguous().view(torch.uint8)
