"""RopeTables: cosines and sines in the dtype that AITER's kernels read, made once of each table."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.utils.weak import WeakIdKeyDictionary

NEOX = 0  # AITER's rotate_style of pairs (i, i + D / 2)


@dataclass(frozen=True, slots=True)
class RopeTable:
    """both [positions, D], cosines then sines; cos, sin [positions, 1, 1, D / 2]."""

    both: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor


class RopeTables:
    """Held as long as what they were made of."""

    def __init__(self) -> None:
        self._made = WeakIdKeyDictionary()

    def of(self, cos_sin: torch.Tensor, dtype: torch.dtype) -> RopeTable:
        """cos_sin [positions, D] float32, as `Rotary` has it."""
        table: RopeTable | None = self._made.get(cos_sin)
        if table is None or table.both.dtype is not dtype:
            both = cos_sin.to(dtype)
            cos, sin = (half.contiguous()[:, None, None] for half in both.chunk(2, dim=-1))
            table = self._made[cos_sin] = RopeTable(both, cos, sin)
        return table
