"""Ranks: the part of each matrix that this process holds of a model that several ranks share.

Tensor parallelism divides a matrix by its outputs or by its inputs, in units that are not split (a
head, a group of quantised elements); a matrix that is not divided is on every rank. Pure; a single
rank holds the whole model.
"""

from __future__ import annotations

from dataclasses import dataclass

from atom.sizing.projection import Projection, Split


@dataclass(frozen=True, slots=True)
class Region:
    """A rectangle of a matrix: its rows and columns, first and end."""

    rows: tuple[int, int]
    columns: tuple[int, int]

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows[1] - self.rows[0], self.columns[1] - self.columns[0]


@dataclass(frozen=True, slots=True)
class Ranks:
    """The place of this process, number `rank` of the `size` ranks that share a model."""

    size: int = 1
    rank: int = 0

    def region(self, matrix: Projection) -> Region:
        """Return this rank's part of a matrix. Units that are fewer than the ranks (KV heads) are
        held by several."""
        whole = Region((0, matrix.rows), (0, matrix.columns))
        if matrix.split is Split.OUTPUTS:
            return Region(self._share(matrix.rows, matrix.unit), whole.columns)
        if matrix.split is Split.INPUTS:
            return Region(whole.rows, self._share(matrix.columns, matrix.unit))
        return whole

    def of(self, count: int) -> tuple[int, int]:
        """Return the first and the end of this rank's part of `count` equal units."""
        return self._share(count, 1)

    def _share(self, length: int, unit: int) -> tuple[int, int]:
        units = length // unit
        if units >= self.size:
            each = units // self.size
            first = self.rank * each
        else:
            each, first = 1, self.rank * units // self.size
        return first * unit, (first + each) * unit


ONE_RANK = Ranks()


@dataclass(frozen=True, slots=True)
class ExpertRanks:
    """The place of this process, number `rank` of the `size` ranks that share a layer's experts,
    each with whole ones. An expert's place is a slot; slots are numbered over all ranks, equally
    many on each. redundant: slots beyond the experts, for second copies of the most chosen experts;
    may_move: experts may change their slots while the model serves."""

    size: int
    rank: int
    redundant: int = 0
    may_move: bool = False

    def slots(self, experts: int) -> int:
        """Return the number of slots of each rank, for a layer of so many experts."""
        return (experts + self.redundant) // self.size

    def held(self, experts: int) -> range | list[int]:
        """Return which experts are in this rank's slots at first: all in turn, then the first
        again."""
        each = self.slots(experts)
        own = range(self.rank * each, (self.rank + 1) * each)
        return own if own.stop <= experts else [slot % experts for slot in own]
