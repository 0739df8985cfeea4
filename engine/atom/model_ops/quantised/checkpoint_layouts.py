"""Layouts of quantised matrices in checkpoints: names, shapes and packings of a method's tensors.

One function per layout returns a part's placements; each rank reads its region of every tensor. The
stored matrix is always [outputs, inputs] with scales [outputs, groups] (values.Scales), whatever
the checkpoint's order is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch

from atom.errors import ModelError
from atom.model_ops.parallel import Region
from atom.model_ops.placement import FLOATS, Placement, in_order
from atom.model_ops.quantised.codes import pack_pairs, unpack_pairs
from atom.model_ops.quantised.quantise import quantise
from atom.model_ops.values import WeightFormat
from atom.sizing.projection import Projection
from atom.sizing.quantization import MXFP4_GROUP, Element, Quantization

_Side = TypeVar("_Side")
_WORD = 8  # codes of four bits in an int32
# AutoAWQ puts column 2·i of a word into place i, then the odd ones: where each column is.
_AWQ_PLACES = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The rows of one projection in a stored matrix. name: of its module in the checkpoint; order:
    of a head's rows; block: the outputs and inputs that share a scale in the stored matrix; data,
    scale, zero, index: the tensors to fill."""

    name: str
    matrix: Projection
    region: Region
    order: torch.Tensor | None
    block: tuple[int, int]
    data: torch.Tensor
    scale: torch.Tensor
    zero: torch.Tensor | None
    index: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class InStack:
    """The rows of a part in one tensor of all copies: copy, first and end, and the number of all
    rows; and whether outputs come before inputs."""

    copy: int
    rows: tuple[int, int]
    all_rows: int
    outputs_first: bool


@dataclass(frozen=True, slots=True)
class QuantisingPlacement(Placement):
    """Quantise a plain tensor as it is read; target: the data; `scale` is filled as well."""

    scale: torch.Tensor | None = None
    format: WeightFormat = WeightFormat.PLAIN
    block: tuple[int, int] = (1, 1)

    def fill(self, part: torch.Tensor, *companions: torch.Tensor) -> None:
        """Quantise the part; this needs memory for the part in float32."""
        assert self.scale is not None
        if self.convert is not None:
            part = self.convert(part)
        rows = in_order(part.to(self.target.device), self.order)
        data, scale = quantise(rows, self.format, self.block)
        self.target.copy_(data)
        self.scale.copy_(scale)


def part_placements(
    part: Part, quantization: Quantization, format: WeightFormat
) -> Iterator[Placement]:
    """Yield the placement of every tensor of the checkpoint that fills the part."""
    if quantization.online:
        yield _online(part, format)
    elif quantization.element in (Element.FP8, Element.INT8):
        yield _eight_bits(part, quantization)
        yield (
            _block_scales(part, quantization)
            if format is WeightFormat.FP8_BLOCKS
            else (_row_scales(part, quantization))
        )
    elif quantization.element is Element.FP4:
        yield from _microscaled(part)
    elif quantization.method == "compressed-tensors":
        yield from _packed_by_rows(part, quantization)
    else:
        yield from _packed_by_columns(part, quantization)
    if part.index is not None:
        yield _input_groups(part, quantization)


def stack_placements(
    part: Part, copy: int, turns: int, quantization: Quantization, format: WeightFormat
) -> Iterator[Placement]:
    """Yield alternative placements of a part in tensors of all copies of a matrix: gpt-oss'
    experts, in which the outputs of `turns` projections alternate. part: the first of these, with
    the tensors that all fill."""
    matrix, (first, end) = part.matrix, part.region.columns
    rows = (part.region.rows[0] * turns, part.region.rows[1] * turns)
    if quantization.online:
        yield QuantisingPlacement(
            name=part.name,
            shape=(matrix.copies, matrix.columns, matrix.rows * turns),
            region=((copy, copy + 1), (first, end), rows),
            target=part.data,
            convert=lambda read: _one_below_the_other(read[0].t(), turns).contiguous(),
            scale=part.scale,
            format=format,
            block=part.block,
        )
        return
    groups, group = (first // MXFP4_GROUP, _ceil(end, MXFP4_GROUP)), ((0, MXFP4_GROUP // 2),)
    for last, target, inner in (("blocks", part.data, group), ("scales", part.scale, ())):
        yield Placement(
            name=f"{part.name}_{last}",
            shape=(
                matrix.copies,
                matrix.rows * turns,
                _ceil(matrix.columns, MXFP4_GROUP),
                *(size for _, size in inner),
            ),
            region=((copy, copy + 1), rows, groups, *inner),
            target=target,
            dtypes=(torch.uint8,),
            convert=lambda read: _one_below_the_other(read[0].flatten(1), turns),
        )


def side_by_side(
    part: Part, place: InStack, quantization: Quantization, format: WeightFormat
) -> Iterator[Placement]:
    """Place a tensor of all copies whose projections follow one another: plain, and quantised as it
    is read, or 8 bits with a scale of each output in a separate tensor (outputs first as in
    compressed-tensors' Granite, else as in transformers' FbgemmFp8Llama4TextExperts)."""
    matrix, one = part.matrix, (place.copy, place.copy + 1)
    outputs = place.outputs_first
    shape = (matrix.copies, *_turned((matrix.columns, place.all_rows), outputs))
    region = (one, *_turned((part.region.columns, place.rows), outputs))
    if quantization.online:
        yield QuantisingPlacement(
            name=part.name,
            shape=shape,
            region=region,
            target=part.data,
            convert=lambda read: (read[0] if outputs else read[0].t()).contiguous(),
            scale=part.scale,
            format=format,
            block=part.block,
        )
        return
    fp8 = quantization.element is Element.FP8
    yield Placement(
        name=part.name,
        shape=shape,
        region=region,
        target=part.data.view(torch.uint8),
        dtypes=(torch.float8_e4m3fn,) if fp8 else (torch.int8,),
        convert=lambda read: _bytes(read[0]) if outputs else _transposed_bytes(read[0]),
    )
    # FBGEMM's scales are along the inputs for several projections, along the outputs for one.
    flat = outputs or place.all_rows == matrix.rows
    yield Placement(
        name=f"{part.name}_scale",
        shape=(matrix.copies, place.all_rows) if flat else (matrix.copies, 1, place.all_rows),
        region=(one, place.rows) if flat else (one, (0, 1), place.rows),
        target=part.scale,
        convert=lambda read: read.float().flatten(),
    )


def _turned(sides: tuple[_Side, _Side], turned: bool) -> tuple[_Side, _Side]:
    return (sides[1], sides[0]) if turned else sides


def _one_below_the_other(rows: torch.Tensor, turns: int) -> torch.Tensor:
    """Reorder rows of several projections that alternate → one projection's after the other's."""
    return rows.unflatten(0, (-1, turns)).transpose(0, 1).flatten(0, 1)


def _online(part: Part, format: WeightFormat) -> Placement:
    return QuantisingPlacement(
        name=f"{part.name}.weight",
        shape=(part.matrix.rows, part.matrix.columns),
        region=(part.region.rows, part.region.columns),
        target=part.data,
        order=part.order,
        scale=part.scale,
        format=format,
        block=part.block,
    )


def _eight_bits(part: Part, quantization: Quantization) -> Placement:
    fp8 = quantization.element is Element.FP8
    return Placement(
        name=f"{part.name}.weight",
        shape=(part.matrix.rows, part.matrix.columns),
        region=(part.region.rows, part.region.columns),
        target=part.data.view(torch.uint8),
        order=part.order,
        dtypes=(torch.float8_e4m3fn,) if fp8 else (torch.int8,),
        convert=_bytes,
    )


def _row_scales(part: Part, quantization: Quantization) -> Placement:
    """Place the scale of each output; a single scale is repeated for every output."""
    whole = quantization.granularity == "tensor"
    rows = part.region.rows
    return Placement(
        name=f"{part.name}.weight_scale",
        shape=() if whole else (part.matrix.rows,),
        region=() if whole else (rows,),
        target=part.scale,
        order=None if whole else part.order,
        aliases=(f"{part.name}.weight_scale_inv",),
        convert=lambda read: read.float().reshape(-1, 1).expand(rows[1] - rows[0], 1),
    )


def _block_scales(part: Part, quantization: Quantization) -> Placement:
    (tall, wide), stored_tall = quantization.block, part.block[0]
    (first, end), (first_in, end_in) = part.region.rows, part.region.columns

    def convert(read: torch.Tensor) -> torch.Tensor:
        rows = read.float().repeat_interleave(tall, 0)[first % tall :][: end - first]
        return rows[::stored_tall]

    return Placement(
        name=f"{part.name}.weight_scale_inv",
        shape=(_ceil(part.matrix.rows, tall), _ceil(part.matrix.columns, wide)),
        region=((first // tall, _ceil(end, tall)), (first_in // wide, _ceil(end_in, wide))),
        target=part.scale,
        order=part.order if stored_tall == 1 else None,
        # DeepSeek V4's, which may be exponents.
        aliases=(f"{part.name}.weight_scale", f"{part.name}.scale"),
        dtypes=(*FLOATS, torch.float8_e8m0fnu),
        convert=convert,
    )


def _microscaled(part: Part) -> Iterator[Placement]:
    """Place MXFP4 as Quark, compressed-tensors and DeepSeek V4 have it: bytes of two neighbouring
    inputs, and exponents."""
    matrix, rows, (first, end) = part.matrix, part.region.rows, part.region.columns
    for name, inputs, target, alias in (
        ("weight", 2, part.data, "weight_packed"),
        ("weight_scale", MXFP4_GROUP, part.scale, "scale"),
    ):
        yield Placement(
            name=f"{part.name}.{name}",
            shape=(matrix.rows, matrix.columns // inputs),
            region=(rows, (first // inputs, end // inputs)),
            target=target,
            order=part.order,
            aliases=(f"{part.name}.{alias}",),
            dtypes=(torch.uint8, torch.int8, torch.float8_e8m0fnu),
            convert=_bytes,
        )


def _input_groups(part: Part, quantization: Quantization) -> Placement:
    """Place the group index of each input, for GPTQ's desc_act and compressed-tensors' actorder,
    which sort inputs into groups by their importance."""
    assert part.index is not None
    last = "weight_g_idx" if quantization.method == "compressed-tensors" else "g_idx"
    count, _ = _groups(part, quantization)
    name = f"{part.name}.{last}"

    def convert(read: torch.Tensor) -> torch.Tensor:
        if int(read.min()) < 0 or int(read.max()) >= count:
            raise ModelError(
                f"{name}: names groups {int(read.min())} to {int(read.max())}, where the matrix "
                f"has 0 to {count - 1}; download the checkpoint again"
            )
        return read

    return Placement(
        name=name,
        shape=(part.matrix.columns,),
        region=(part.region.columns,),
        target=part.index,
        dtypes=(torch.int32, torch.int64),
        convert=convert,
    )


def _packed_by_rows(part: Part, quantization: Quantization) -> Iterator[Placement]:
    """Place compressed-tensors' packed weights: int32 words of eight inputs; zero points in words
    of eight outputs."""
    matrix, rows, columns = part.matrix, part.region.rows, part.region.columns
    count, groups = _groups(part, quantization)
    yield Placement(
        name=f"{part.name}.weight_packed",
        shape=(matrix.rows, matrix.columns // _WORD),
        region=(rows, _words(columns)),
        target=part.data,
        order=part.order,
        dtypes=(torch.int32,),
        convert=_bytes,
    )
    yield Placement(
        name=f"{part.name}.weight_scale",
        shape=(matrix.rows, count),
        region=(rows, groups),
        target=part.scale,
        order=part.order,
    )
    if part.zero is not None:
        yield Placement(
            name=f"{part.name}.weight_zero_point",
            shape=(matrix.rows // _WORD, count),
            region=(_words(rows), groups),
            target=part.zero,
            dtypes=(torch.int32,),
            convert=lambda read: _zeros(unpack_pairs(_bytes(read.t())), 0, part.order),
        )


def _packed_by_columns(part: Part, quantization: Quantization) -> Iterator[Placement]:
    """Place AutoAWQ's and AutoGPTQ's tensors: inputs outermost, scales and zero points by group,
    then output."""
    matrix, rows, columns = part.matrix, part.region.rows, part.region.columns
    count, groups = _groups(part, quantization)
    awq = quantization.method == "awq"
    words: Callable[[torch.Tensor], torch.Tensor] = _awq_codes if awq else _codes
    yield Placement(
        name=f"{part.name}.qweight",
        shape=(
            (matrix.columns, matrix.rows // _WORD)
            if awq
            else (matrix.columns // _WORD, matrix.rows)
        ),
        region=(columns, _words(rows)) if awq else (_words(columns), rows),
        target=part.data,
        order=part.order,
        dtypes=(torch.int32,),
        convert=(lambda read: pack_pairs(_awq_codes(read).t())) if awq else _transposed_bytes,
    )
    yield Placement(
        name=f"{part.name}.scales",
        shape=(count, matrix.rows),
        region=(groups, rows),
        target=part.scale,
        order=part.order,
        convert=torch.t,
    )
    assert part.zero is not None, "both methods store zero points"
    yield Placement(
        name=f"{part.name}.qzeros",
        shape=(count, matrix.rows // _WORD),
        region=(groups, _words(rows)),
        target=part.zero,
        dtypes=(torch.int32,),
        convert=partial(_stored_zeros, words, quantization.zero_offset, part.order),
    )


def _stored_zeros(
    codes: Callable[[torch.Tensor], torch.Tensor],
    offset: int,
    order: torch.Tensor | None,
    read: torch.Tensor,
) -> torch.Tensor:
    return _zeros(codes(read), offset, order)


def _zeros(codes: torch.Tensor, offset: int, order: torch.Tensor | None) -> torch.Tensor:
    """Pack zero points [groups, out] → [out / 2, groups], two outputs a byte; stored values wrap
    around."""
    moved = in_order(((codes + offset) & 15).t(), order)
    return pack_pairs(moved.t()).t()


def _bytes(read: torch.Tensor) -> torch.Tensor:
    return read.contiguous().view(torch.uint8)


def _transposed_bytes(read: torch.Tensor) -> torch.Tensor:
    return _bytes(read.t())


def _codes(read: torch.Tensor) -> torch.Tensor:
    """Unpack int32 [.., n] → codes [.., 8·n] in the order of the bits."""
    return unpack_pairs(_bytes(read))


def _awq_codes(read: torch.Tensor) -> torch.Tensor:
    return _codes(read).unflatten(-1, (-1, _WORD))[..., _AWQ_PLACES].flatten(-2)


def _groups(part: Part, quantization: Quantization) -> tuple[int, tuple[int, int]]:
    """Return the number of groups of an output, and the part's first and end group."""
    size = quantization.group or part.matrix.columns
    first, end = part.region.columns
    if quantization.ordered:
        first, end = 0, part.matrix.columns
    return _ceil(part.matrix.columns, size), (first // size, _ceil(end, size))


def _words(bounds: tuple[int, int]) -> tuple[int, int]:
    return bounds[0] // _WORD, _ceil(bounds[1], _WORD)


def _ceil(value: int, divisor: int) -> int:
    return -(-value // divisor)
