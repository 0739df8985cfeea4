"""One format of quantised matrices, and the bytes that a matrix has in it.

config.py reads a format from a checkpoint's config.json; online.py makes
one from an option. scheme.py assigns formats to matrices. This module does not know
whether an engine computes with a format.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Literal

Granularity = Literal["tensor", "row", "block", "group"]

SCALE_BYTES = 4  # of 8-bit formats: float32
GROUP_SCALE_BYTES = 2  # of int4: float16
MXFP4_GROUP = 32
INT4_WORD = 8  # in an int32


class Element(enum.StrEnum):
    """The type of a stored number."""

    FP8 = "fp8"  # e4m3
    INT8 = "int8"
    INT4 = "int4"
    FP4 = "fp4"  # e2m1


class Source(enum.StrEnum):
    """A format of a checkpoint's matrices that is converted to another one as they are loaded."""

    NVFP4 = "nvfp4"  # e2m1, a scale in e4m3 of 16 inputs, and one in float32 of the matrix
    MXFP8 = "mxfp8"  # e4m3, a power of two of 32 inputs
    MXFP6 = "mxfp6"  # e2m3, four in three bytes, a power of two of 32 inputs

    @property
    def bits(self) -> int:
        """Count the bits of one element in the checkpoint."""
        return {Source.NVFP4: 4, Source.MXFP8: 8, Source.MXFP6: 6}[self]

    @property
    def group(self) -> int:
        """Return the number of neighbouring inputs that share a scale."""
        return 16 if self is Source.NVFP4 else 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """The storage format of a matrix' numbers and their scales.

    `method` is the writer of the tensors, or "online": the matrices are plain and are quantised as
    they are loaded. `group` is the number of inputs that share a scale, 0 for all; `block`
    (outputs, inputs) likewise. `zero_point_bits`: of one group of one output, 0 if the format is
    symmetric; `zero_offset`: to add to the stored zero points. `ordered`: inputs are stored in
    another order (GPTQ's desc_act). `input_bits`: of the activations that are multiplied with it.
    `converted`: the format in the checkpoint, if it is another than this one.
    """

    method: str
    element: Element
    granularity: Granularity
    scale_bytes: int
    group: int = 0
    block: tuple[int, int] = (0, 0)
    zero_point_bits: int = 0
    zero_offset: int = 0
    ordered: bool = False
    input_bits: int = 16
    converted: Source | None = None

    @property
    def bits(self) -> int:
        """Count the bits of one element."""
        return 8 if self.element in (Element.FP8, Element.INT8) else 4

    @property
    def online(self) -> bool:
        return self.method == "online"

    def matrix_bytes(self, rows: int, columns: int, all_columns: int | None = None) -> int:
        """Return the bytes of a matrix of `rows` outputs and `columns` inputs, its scales included.
        all_columns: of every rank's share of the inputs, if there are others."""
        # An input in another order may be of any group, so that each rank has the scales of all.
        shared_by = columns if all_columns is None or not self.ordered else all_columns
        scales = self._scales_bytes(rows, shared_by)
        order = 4 * columns if self.ordered else 0
        return _ceil(rows * columns * self.bits, 8) + scales + order

    def _scales_bytes(self, rows: int, columns: int) -> int:
        # A tensor's one scale becomes each output's: matrices of one input are stored as one.
        if self.granularity in ("tensor", "row"):
            return rows * self.scale_bytes
        if self.granularity == "block":
            tall, wide = self.block
            return _ceil(rows, tall) * _ceil(columns, wide) * self.scale_bytes
        groups = rows * _ceil(columns, self.group or columns)
        return groups * self.scale_bytes + _ceil(groups * self.zero_point_bits, 8)

    @property
    def input_multiple(self) -> int:
        """Return the number by which a rank's share of a matrix' inputs must be divisible, for
        whole scales and words."""
        if self.granularity == "block":
            return self.block[1]
        group = self.group if self.converted is None else self.converted.group
        return math.lcm(max(1, group), self._word)

    @property
    def output_multiple(self) -> int:
        """Return the number by which a rank's share of a matrix' outputs must be divisible, for
        whole scales and words."""
        return self.block[0] if self.granularity == "block" else self._word

    @property
    def _word(self) -> int:
        """Return how many elements a checkpoint packs into one number, of inputs, outputs or
        both."""
        return INT4_WORD if self.element is Element.INT4 else 1

    def __str__(self) -> str:
        """Describe the format, as in "fp8 in blocks of 128 x 128 (compressed-tensors)"."""
        return f"{self.conversion or self._stored} ({self.method})"

    @property
    def conversion(self) -> str:
        """Describe the conversion at load, as in "NVFP4 converted to fp8 with a scale per output";
        "" without one."""
        source = self.converted
        return "" if source is None else f"{source.upper()} converted to {self._stored}"

    @property
    def _stored(self) -> str:
        shared = {
            "tensor": " with a scale per matrix",
            "row": " with a scale per output",
            "block": " in blocks of {} x {}".format(*self.block),
            "group": f" in groups of {self.group}" if self.group else " with a scale per output",
        }[self.granularity]
        return f"{self.element}{shared}"


def _ceil(value: int, divisor: int) -> int:
    return -(-value // divisor)
