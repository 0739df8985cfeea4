"""Tiles of products of some tokens with quantised weights, as they were measured on an H200.

By format and number of tokens, for matrices of 4,096 to 24,576 outputs (docs/results/gpu/
quantised.md). Few tokens want as many programs as read at the memory's rate, so the inner dimension
is divided until there are; of 4-bit weights narrow tiles win as long as their programs make numbers
faster than they multiply. Other cards have the estimates of quantised_tiles.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from atom.model_ops.backends.triton_ops.gemm.quantised_tiles import (
    LEAST_TILES,
    MOST_SPLITS,
    QuantisedTile,
    choose_tile,
)
from atom.model_ops.backends.triton_ops.launch import compute_units, shared_bytes
from atom.model_ops.values import LinearWeight, WeightFormat

# Of a program: the memory of the widest of these tiles. An H200 has 227 KiB.
_SHARED_BYTES = 160 * 1024
# Eight warps with 128 × 128 results fill a multiprocessor.
_FULL = 128


@dataclass(frozen=True, slots=True)
class _Tile:
    """A measured tile. programs: at least this many per multiprocessor."""

    block_t: int
    block_n: int
    num_warps: int
    num_stages: int
    programs: float = 1.4


def measured_tile(
    x: torch.Tensor, w: LinearWeight, block_k: int, least_n: int = 32, most_t: int = 128
) -> QuantisedTile:
    """Return the measured tile of int32-packed weights and of fp8, if the card is like the measured
    one; else that of `choose_tile`, which uses least_n and most_t."""
    tokens, units = x.shape[0], compute_units(x.device) if _is_like(x.device) else 0
    form = _measured(w.format, tokens, w.outputs / units) if units else None
    if form is None:
        return choose_tile(x, w, block_k, least_n, most_t)
    tiles = triton.cdiv(w.inputs, block_k)
    programs = triton.cdiv(tokens, form.block_t) * triton.cdiv(w.outputs, form.block_n)
    most = max(1, min(MOST_SPLITS, tiles // LEAST_TILES))
    splits = _splits(form, programs, units, most)
    return QuantisedTile(
        form.block_t, form.block_n, block_k, splits, triton.cdiv(tiles, splits) * block_k,
        form.num_warps, form.num_stages,
    )  # fmt: skip


def _is_like(device: torch.device) -> bool:
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return shared_bytes(device) >= _SHARED_BYTES


def _measured(format: WeightFormat, tokens: int, outputs_per_unit: float) -> _Tile | None:
    if format is WeightFormat.INT8:
        return None
    if format in (WeightFormat.FP8, WeightFormat.FP8_BLOCKS):
        if tokens <= 16:
            return _Tile(16, 128, 4, 3, programs=1.9)
        if tokens <= 32:
            return _Tile(32, 128, 8, 3, programs=1.9)
        return _Tile(64, 64, 4, 3, programs=1.9) if tokens <= 128 else None
    if format is not WeightFormat.MXFP4 and tokens <= 128:
        if tokens <= 32:
            return _Tile(16 if tokens <= 16 else 32, 64, 4, 3, programs=2.0)
        return _Tile(64, 64, 4, 3)
    if tokens <= 32:
        return _Tile(16 if tokens <= 16 else 32, 64, 4, 3, programs=3.5)
    if tokens <= 64:
        return _Tile(64, 64 if outputs_per_unit >= 128 else 128, 4, 3)
    return _Tile(_FULL, _FULL, 8, 3)


def _splits(form: _Tile, programs: int, units: int, most: int) -> int:
    """Return the splits, a power of two up to `most`: as few as give enough programs, or, for tiles
    that fill a multiprocessor, as few as leave none idle at the end."""
    counts = [1 << power for power in range(most.bit_length())]
    if form.block_t == _FULL:
        return min(counts, key=lambda count: triton.cdiv(programs * count, units) / count)
    enough = (count for count in counts if programs * count >= form.programs * units)
    return next(enough, counts[-1])
