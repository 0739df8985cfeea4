"""Tiles of the experts' products, by how many rows an expert has on average.

Estimates, not measured on any card yet: few rows read weights at the memory's rate, which takes
narrow tiles in deep pipelines; many rows are bound by the tensor cores.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class ExpertTile:
    """block_m: pairs; block_n: rows of a matrix, of gates and ups each; block_k: inputs."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int


def expert_tile(rows_per_expert: float, element_bytes: int) -> ExpertTile:
    """For so many rows of an expert, on average."""
    block_k = 128 // element_bytes
    # AMD's local memory holds two stages of these tiles.
    stages = 2 if torch.version.hip else 4
    if rows_per_expert <= 16:
        return ExpertTile(16, 32, 2 * block_k, 4, stages if torch.version.hip else 3)
    if rows_per_expert <= 48:
        return ExpertTile(32, 64, block_k, 4, stages)
    if rows_per_expert <= 128:
        return ExpertTile(64, 64, block_k, 4, stages)
    return ExpertTile(128, 64, block_k, 8, stages)
