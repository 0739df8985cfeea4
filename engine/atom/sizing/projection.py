"""Projection: one matrix of a layer as sizes, and its division over ranks. Values only.

weights.py and states/weights.py build projections from a layer's facts and count their bytes; the
engine's layers are built from them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from atom.sizing.quantization import Quantization


class Split(enum.Enum):
    """The side of a matrix that is divided over the ranks of tensor parallelism."""

    OUTPUTS = enum.auto()
    INPUTS = enum.auto()
    NOTHING = enum.auto()


@dataclass(frozen=True, slots=True)
class Fused:
    """The place of a projection's rows in a checkpoint's matrix of several projections. name: of
    its module below the layer; first: of the rows; rows: of all projections."""

    name: str
    first: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """A projection: `copies` matrices of `rows` outputs and `columns` inputs; `unit` rows are never
    divided.

    `name`: the module's below its layer, as in a checkpoint unless `fused`; for copies, the first
    one's. `quantization` None: in the model's own element type; `absorbed`: multiplied in halves,
    and so held in that type in any format of the checkpoint; `fused`: a part of another matrix in a
    checkpoint.
    """

    name: str
    rows: int
    columns: int
    split: Split
    unit: int = 1
    copies: int = 1
    bias: bool = False
    quantizable: bool = True
    quantization: Quantization | None = None
    absorbed: bool = False
    fused: Fused | None = None

    @property
    def stored_name(self) -> str:
        """Return the module's name below its layer in a checkpoint; for copies, the first one's."""
        return self.name if self.fused is None else self.fused.name

    def copy_name(self, copy: int) -> str:
        """Return the module's name in a checkpoint of copy number `copy`."""
        return self.stored_name.replace(".0.", f".{copy}.")

    @property
    def stack_name(self) -> str:
        """Return the name of the module that holds all copies."""
        return self.name.partition(".0.")[0]

    def on_rank(self, ranks: int) -> tuple[int, int]:
        """Return the rows and columns that one of `ranks` ranks holds."""
        if self.split is Split.OUTPUTS:
            return _ceil(self.rows // self.unit, ranks) * self.unit, self.columns
        if self.split is Split.INPUTS:
            return self.rows, _ceil(self.columns // self.unit, ranks) * self.unit
        return self.rows, self.columns


def fused_projections(name: str, matrices: Sequence[Projection]) -> Iterator[Projection]:
    """Yield the matrices as rows of one, `name` in a checkpoint, in their order."""
    first, rows = 0, sum(matrix.rows for matrix in matrices)
    for matrix in matrices:
        yield replace(matrix, fused=Fused(name, first, rows))
        first += matrix.rows


def _ceil(value: int, divisor: int) -> int:
    return -(-value // divisor)
