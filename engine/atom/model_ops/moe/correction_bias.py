"""Correction: where a checkpoint stores the bias that corrects a router's choice of experts."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from atom.model_ops.placement import Placement


@dataclass(frozen=True, slots=True)
class Correction:
    """An e_score_correction_bias by its `name` below the layer; in_row: as a matrix of one row."""

    name: str
    in_row: bool = False

    def placement(self, name: str, target: torch.Tensor) -> Placement:
        """Return the placement that fills `target` [E] from the tensor `name`."""
        if not self.in_row:
            return Placement.whole(name, target)
        count = len(target)
        return Placement(name, (1, count), ((0, 1), (0, count)), target)
