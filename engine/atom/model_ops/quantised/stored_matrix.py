"""StoredMatrix: the rows of several projections as one matrix, in the checkpoint's format.

It allocates the tensors of the format and states the source of each projection's part
(checkpoint_layouts.py). A rank holds its region. Scales that its rows share with another rank's, or
with another projection's, are stored once per group of rows by which all of them are divisible.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from atom.errors import ModelError
from atom.model_ops.parallel import Region
from atom.model_ops.placement import Placement
from atom.model_ops.quantised.checkpoint_layouts import (
    InStack,
    Part,
    part_placements,
    side_by_side,
    stack_placements,
)
from atom.model_ops.quantised.converted_layouts import converted_placement
from atom.model_ops.values import (
    INT4_FORMATS,
    InputGroups,
    LinearWeight,
    Scales,
    WeightFormat,
)
from atom.sizing.projection import Projection
from atom.sizing.quantization import MXFP4_GROUP, Element, Quantization

# int32 words of eight inputs, and bytes of two outputs, are read whole.
_WORD = 8


def format_of(quantization: Quantization | None) -> WeightFormat:
    """Return the format of matrices in this quantisation."""
    if quantization is None:
        return WeightFormat.PLAIN
    if quantization.element is Element.FP8:
        blocks = quantization.granularity == "block"
        return WeightFormat.FP8_BLOCKS if blocks else WeightFormat.FP8
    if quantization.ordered:
        return WeightFormat.INT4_ORDERED
    return {
        Element.INT8: WeightFormat.INT8,
        Element.INT4: WeightFormat.INT4,
        Element.FP4: WeightFormat.MXFP4,
    }[quantization.element]


class StoredMatrix:
    """The tensors that a matrix is stored in. parts: projections of the same inputs with this
    rank's regions, their rows one below the other; orders: by a projection's name, of a head's
    rows; copies: of a stack of such matrices, which is the first dimension then. Raises
    `ModelError` for shapes that the format cannot hold."""

    def __init__(
        self,
        parts: Sequence[tuple[Projection, Region]],
        orders: dict[str, torch.Tensor | None],
        copies: int | None = None,
    ) -> None:
        self._parts, self._orders = parts, orders
        quantization = _one_format(parts)
        for matrix, region in parts:
            _check_shape(matrix, region, quantization)
        self._quantization, self._format = quantization, format_of(quantization)
        rows = sum(region.shape[0] for _, region in parts)
        columns = parts[0][1].shape[1]
        self._block = self._shared_block(columns)
        stack = () if copies is None else (copies,)
        inputs = columns // self._format.elements_per_byte
        self.data = torch.empty(*stack, rows, inputs, dtype=_DATA[quantization.element])
        tall, wide = self._block
        dtype, group_rows = _SCALE.get(self._format, torch.float32), -(-rows // tall)
        # An input may be of any group, whichever inputs a rank has.
        shared_by = parts[0][0].columns if quantization.ordered else columns
        self.scale = torch.empty(*stack, group_rows, -(-shared_by // wide), dtype=dtype)
        self.groups = None
        if quantization.ordered:
            index = torch.empty(*stack, len(parts), columns, dtype=torch.int32)
            self.groups = InputGroups(index, tuple(region.shape[0] for _, region in parts))
        self.zero = None
        if quantization.zero_point_bits:
            self.zero = torch.empty(*stack, rows // 2, self.scale.shape[-1], dtype=torch.uint8)

    @property
    def is_online(self) -> bool:
        """Return whether a checkpoint has it plain."""
        return self._quantization.online

    def weight(self, bias: torch.Tensor | None) -> LinearWeight:
        """Return the weight that the operations take. Its dtype is torch's default, as for plain
        weights."""
        dtype = torch.get_default_dtype()
        quantization = self._quantization
        fp4_inputs = quantization.element is Element.FP4 and quantization.input_bits == 4
        scales = Scales(
            self._format, self.scale, self._block, dtype, self.zero, self.groups, fp4_inputs
        )
        return LinearWeight(self.data, bias, scales)

    def placements(self, names: Sequence[str], copy: int | None = None) -> Iterator[Placement]:
        """Yield the placements of a checkpoint's tensors. names: of the projections' modules in the
        checkpoint, one for each part; copy: of a stack, the index of the matrix."""
        index = None if self.groups is None else self.groups.index
        data, scale, zero, index = (
            tensor if tensor is None or copy is None else tensor[copy]
            for tensor in (self.data, self.scale, self.zero, index)
        )
        assert data is not None
        assert scale is not None
        first = 0
        for number, (name, (matrix, region)) in enumerate(zip(names, self._parts, strict=True)):
            end = first + region.shape[0]
            tall = self._block[0]
            part = Part(
                name=name,
                matrix=matrix,
                region=region,
                order=self._orders.get(matrix.name),
                block=self._block,
                data=data[first:end],
                scale=scale[first // tall : -(-end // tall)],
                zero=None if zero is None else zero[first // 2 : end // 2],
                index=None if index is None else index[number],
            )
            if self._quantization.converted is None:
                yield from part_placements(part, self._quantization, self._format)
            else:
                yield converted_placement(part, self._quantization)
            first = end

    def stack_placements(self, name: str, copy: int, slot: int) -> Iterator[Placement]:
        """Yield the placements of the tensors of a checkpoint's stack. name: of the tensor that has
        every copy's rows of all parts, alternating; slot: the index of this copy here."""
        matrix, region = self._parts[0]
        part = Part(
            name=name,
            matrix=matrix,
            region=region,
            order=None,
            block=self._block,
            data=self.data[slot],
            scale=self.scale[slot],
            zero=None,
        )
        yield from stack_placements(part, copy, len(self._parts), self._quantization, self._format)

    def stacked_part(
        self, name: str, slot: int, number: int, place: InStack
    ) -> Iterator[Placement]:
        """Yield the placements of one part of a copy. name: of the tensor that has all copies'
        rows, part after part; slot: the index of this copy in the stack; place: of the part in that
        tensor."""
        first = sum(region.shape[0] for _, region in self._parts[:number])
        matrix, region = self._parts[number]
        end, tall = first + region.shape[0], self._block[0]
        part = Part(
            name=name,
            matrix=matrix,
            region=region,
            order=None,
            block=self._block,
            data=self.data[slot, first:end],
            scale=self.scale[slot, first // tall : -(-end // tall)],
            zero=None,
        )
        yield from side_by_side(part, place, self._quantization, self._format)

    def _shared_block(self, columns: int) -> tuple[int, int]:
        if self._format is not WeightFormat.FP8_BLOCKS:
            return 1, self._quantization.group or columns
        tall, wide = self._quantization.block
        first, edges = 0, []
        for matrix, region in self._parts:
            edges += [first, region.rows[0]]
            order = self._orders.get(matrix.name)
            if order is not None and tall % len(order):
                edges.append(1)  # a head's rows change places beyond their block
            first += region.shape[0]
        return math.gcd(tall, *edges), wide


_DATA = {
    Element.FP8: torch.float8_e4m3fn,
    Element.INT8: torch.int8,
    Element.INT4: torch.uint8,
    Element.FP4: torch.uint8,
}
_SCALE = {**dict.fromkeys(INT4_FORMATS, torch.float16), WeightFormat.MXFP4: torch.uint8}


def _one_format(parts: Sequence[tuple[Projection, Region]]) -> Quantization:
    formats = {matrix.quantization: matrix.name for matrix, _ in parts}
    if len(formats) == 1:
        (quantization,) = formats
        assert quantization is not None, "a plain matrix is a parameter"
        return quantization
    said = " and ".join(f"{name} as {kind or 'plain'}" for kind, name in formats.items())
    raise ModelError(
        f"quantization_config: stores {said}, which are one product here; use a checkpoint that "
        "quantises all or none of the matrices of one input"
    )


def _check_shape(matrix: Projection, region: Region, quantization: Quantization) -> None:
    """Check that a part holds whole scales, words and bytes."""
    wide = quantization.input_multiple
    if quantization.element is Element.FP4:
        wide = MXFP4_GROUP
    if quantization.element is Element.INT4:
        wide = math.lcm(wide, _WORD)
    (first_row, end_row), (first, end) = region.rows, region.columns
    whole = matrix.columns if quantization.granularity == "block" else None
    if first % wide or (end % wide and end != whole):
        raise ModelError(
            f"{matrix.name}: its {end - first} of {matrix.columns} inputs are no whole groups of "
            f"the {wide} that share a scale or a word in {quantization}; use another "
            "tensor-parallel size, or a checkpoint with smaller groups"
        )
    if quantization.element is Element.INT4 and (first_row % _WORD or end_row % _WORD):
        raise ModelError(
            f"{matrix.name}: its {end_row - first_row} of {matrix.rows} outputs are no multiple of "
            f"{_WORD}, the outputs of a word in {quantization}; use another checkpoint"
        )
