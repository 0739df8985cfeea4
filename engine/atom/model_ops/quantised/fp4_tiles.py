"""MXFP4 in tiles of 64 outputs and 64 inputs, which lie in memory as a program reads them.

A tile's rows are 32 bytes of codes and two exponents. Row after row of a matrix, a program of 64
outputs reads such pieces a row's width apart, and memory gives half of its rate; a tile is one
piece. Shapes stay what they are in rows.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from atom.model_ops.values import LinearWeight, Scales, WeightFormat

SIDE = 64  # of a tile
_CODES, _EXPONENTS = SIDE // 2, SIDE // 32  # of a tile's row, bytes


def fits_tiles(w: LinearWeight) -> bool:
    return w.format is WeightFormat.MXFP4 and w.outputs % SIDE == 0 and w.inputs % SIDE == 0


def in_tiles(w: LinearWeight) -> LinearWeight:
    """Lay a matrix, or a stack, whose sides tiles divide in them."""
    assert w.scales is not None
    scale = _laid(w.scales.scale, _EXPONENTS)
    return replace(
        w, data=_laid(w.data, _CODES), scales=replace(w.scales, scale=scale, tiled=True)
    )


def in_rows(data: torch.Tensor, scales: Scales) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and exponents of tiles → row after row."""
    return _raised(data, _CODES), _raised(scales.scale, _EXPONENTS)


def _laid(rows: torch.Tensor, piece: int) -> torch.Tensor:
    *_, height, width = rows.shape
    pieces = rows.unflatten(-1, (width // piece, piece)).unflatten(-3, (height // SIDE, SIDE))
    return pieces.transpose(-3, -2).reshape(rows.shape)


def _raised(tiles: torch.Tensor, piece: int) -> torch.Tensor:
    *most, height, width = tiles.shape
    pieces = tiles.reshape(*most, height // SIDE, width // piece, SIDE, piece)
    return pieces.transpose(-3, -2).reshape(tiles.shape)
