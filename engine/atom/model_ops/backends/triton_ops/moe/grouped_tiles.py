"""Tiles of the experts' products, by how many rows an expert has on average.

Measured on an H200 with 128 experts of 2,048 × 768 in bfloat16 (benchmarks.moe_tiles): few rows
read weights at the memory's rate, which takes tiles deep in their inputs; many rows are bound by
the tensor cores. Matrices of four bits have tiles of their own: weights are their tall side, of 64
rows at least.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from atom.model_ops.backends.triton_ops.launch import compute_units
from atom.model_ops.backends.triton_ops.nvidia.tma_tiles import has_tma
from atom.model_ops.values import LinearWeight, WeightFormat

_DEQUANTISED_ROWS, _DEQUANTISED_HI_LO_ROWS = 128, 256
_WIDE_ROWS = 1024  # from which w2's tiles are wide that are read by pointers


@dataclass(frozen=True, slots=True)
class ExpertTile:
    """A tile of the experts' products. block_m: pairs; block_n: rows of a matrix, of w1 and w3
    each, and of w2 twice as many with wide_w2; block_k: inputs; registers: most of a thread, beyond
    which a turn's values spill to memory, None for no limit; by_tma: copied by TMA, if the card and
    the tensors support it (tma_tiles.py)."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    registers: int | None = None
    wide_w2: bool = False
    by_tma: bool = False


def dequantised_rows(w: LinearWeight) -> int:
    """Return the average rows of an expert from which a quantised matrix is dequantised first."""
    return (
        _DEQUANTISED_HI_LO_ROWS if w.format is WeightFormat.MXFP4_INTERLEAVED else _DEQUANTISED_ROWS
    )


def expert_tile(down: LinearWeight, pairs: int, element_bytes: int) -> ExpertTile:
    """Choose the tile for so many pairs of a token and an expert, over a stack of matrices like
    `down`."""
    count, rows = down.data.shape[0], pairs / down.data.shape[0]
    if down.format is WeightFormat.INT4_ORDERED:  # never made plain ones
        rows = min(rows, _DEQUANTISED_ROWS - 1)
    if torch.version.hip:  # local memory holds two stages of these tiles
        return _small_memory(rows, element_bytes)
    if down.format in (WeightFormat.FP8, WeightFormat.FP8_BLOCKS) and element_bytes == 2:
        return _fp8(rows, has_tma(down.data.device, down.inputs))
    if rows < dequantised_rows(down):
        if down.format is WeightFormat.MXFP4_INTERLEAVED:
            return _hi_lo(rows)
        if down.format.elements_per_byte > 1:
            return _packed(rows, element_bytes)
    block_k = 128 // element_bytes
    if rows <= 12:
        programs = min(pairs, count) * (down.inputs // 128)
        wide = programs >= 4 * compute_units(down.data.device)
        return ExpertTile(16, 64 if wide else 32, 2 * block_k, 4, 3)
    if rows <= 48:
        return ExpertTile(32, 64, 2 * block_k, 4, 3)
    if rows <= 96:
        return ExpertTile(64, 128, block_k, 8, 4)
    is_plain = down.format is WeightFormat.PLAIN or rows >= dequantised_rows(down)
    if is_plain and element_bytes == 2 and has_tma(down.data.device, 2 * down.inputs):
        return ExpertTile(128, 128, block_k, 8, 4, wide_w2=True, by_tma=True)
    return ExpertTile(128, 128, block_k, 8, 3, wide_w2=rows >= _WIDE_ROWS)


def _fp8(rows: float, by_tma: bool) -> ExpertTile:
    if rows <= 12:
        return ExpertTile(16, 64 if rows < 1 else 128, 128, 4, 3)
    if rows <= 48:
        return ExpertTile(32, 128, 128, 4, 3)
    return ExpertTile(64, 64, 128, 4, 3, wide_w2=by_tma, by_tma=by_tma)


def _hi_lo(rows: float) -> ExpertTile:
    if rows <= 12:
        return ExpertTile(16, 32, 128, 4, 3, registers=80, wide_w2=True)
    # An expert's pairs in few tiles: each dequantises all weights again.
    if rows <= 80:
        return ExpertTile(32, 32, 128, 4, 3, wide_w2=True)
    return ExpertTile(64, 32, 128, 4, 3, registers=168, wide_w2=True)


def _packed(rows: float, element_bytes: int) -> ExpertTile:
    block_k = 256 // element_bytes
    if rows <= 12:
        return ExpertTile(16, 64, block_k, 4, 3)
    if rows <= 48:
        return ExpertTile(32, 64, block_k, 4, 3)
    return ExpertTile(64, 64, block_k, 4, 3)


def _small_memory(rows: float, element_bytes: int) -> ExpertTile:
    block_k = 128 // element_bytes
    if rows <= 16:
        return ExpertTile(16, 32, 2 * block_k, 4, 2)
    if rows <= 48:
        return ExpertTile(32, 64, block_k, 4, 2)
    if rows <= 128:
        return ExpertTile(64, 64, block_k, 4, 2)
    return ExpertTile(128, 64, block_k, 8, 2)
