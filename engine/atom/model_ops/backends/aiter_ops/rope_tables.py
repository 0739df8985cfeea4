"""RopeTables: cosines and sines in the dtype that AITER's kernels read, made once for each table.

A kernel reads them together or separately; each form is made only on demand.
"""

from __future__ import annotations

import torch
from torch.utils.weak import WeakIdKeyDictionary

NEOX = 0  # AITER's rotate_style of pairs (i, i + D / 2)


class RopeTables:
    """Converted tables, each kept as long as its source."""

    def __init__(self) -> None:
        self._joined = WeakIdKeyDictionary()
        self._halves = WeakIdKeyDictionary()

    def joined(self, cos_sin: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Convert cos_sin [positions, D] float32, as `Rotary` has it, to dtype."""
        made: torch.Tensor | None = self._joined.get(cos_sin)
        if made is None or made.dtype is not dtype:
            made = self._joined[cos_sin] = cos_sin.to(dtype)
        return made

    def halves(
        self, cos_sin: torch.Tensor, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the cosines and sines, [positions, 1, 1, D / 2] each."""
        made: tuple[torch.Tensor, torch.Tensor] | None = self._halves.get(cos_sin)
        if made is None or made[0].dtype is not dtype:
            cos, sin = (
                half.to(dtype).contiguous()[:, None, None] for half in cos_sin.chunk(2, dim=-1)
            )
            made = self._halves[cos_sin] = (cos, sin)
        return made
