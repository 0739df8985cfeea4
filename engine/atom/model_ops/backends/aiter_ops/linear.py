"""Products: plain matrices by AITER's tuned GEMM, quantised ones by the GEMM of their format.

A tuned GEMM looks a shape up in AITER's tables (AITER_CONFIG_GEMM_*), and uses a default kernel for
missing shapes. Matrices of 8 bits are prepared once: converted to the card's e4m3, and shuffled
into tiles of 16 rows if both sizes allow it. So are matrices of MXFP4 for inputs of MXFP4 (fp4.py);
other matrices of MXFP4 are multiplied with unquantised inputs.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from atom.model_ops.backends.aiter_ops import fp4
from atom.model_ops.backends.aiter_ops.card import Card
from atom.model_ops.backends.aiter_ops.library import Library
from atom.model_ops.quantised.codes import to_fnuz
from atom.model_ops.quantised.dequantise import expanded
from atom.model_ops.values import LinearWeight, WeightFormat

# Of shuffle_weight's tiles: rows, and columns of one byte.
TILE_ROWS, TILE_COLUMNS = 16, 32
# Inputs and outputs that share a scale in AITER's block-scaled GEMMs.
BLOCK = (128, 128)


class Products:
    def __init__(self, library: Library, card: Card) -> None:
        self._library = library
        self._card = card

    def prepare_linear(self, w: LinearWeight) -> LinearWeight:
        if w.format is WeightFormat.FP8_BLOCKS and not has_whole_blocks(w):
            return expanded(w)
        if fp4.for_fp4_inputs(w):
            return fp4.in_tiles(self._library, w)
        w = for_card(w, self._card)
        if is_shuffled(w):
            return replace(w, data=self._library["shuffle_weight"](x=w.data, layout=(16, 16)))
        return w

    def linear(self, x: torch.Tensor, w: LinearWeight) -> torch.Tensor:
        if w.scales is None:
            out: torch.Tensor = self._library["tgemm.mm"](
                inp=x, weights=w.data, bias=w.bias, otype=x.dtype
            )
            return out
        if x.shape[0] == 0:
            return x.new_empty((0, w.outputs))
        result = self._quantised(x.contiguous(), w)
        return result if w.bias is None else result + w.bias

    def _quantised(self, x: torch.Tensor, w: LinearWeight) -> torch.Tensor:
        assert w.scales is not None
        if w.data.dtype is fp4.FP4:
            return fp4.product(self._library, x, w)
        if w.format is WeightFormat.MXFP4:
            wide: torch.Tensor = self._library["gemm_a16wfp4"](
                x=x, w=w.data, w_scales=w.scales.scale, dtype=x.dtype
            )
            return wide
        if w.format is WeightFormat.FP8_BLOCKS:
            codes, scale = self.quantised_groups(x, transposed=is_shuffled(w))
        else:
            codes, scale = self.quantised_rows(x, w.data.dtype)
        return self.scaled(codes, scale, w, x.dtype)

    def scaled(
        self, codes: torch.Tensor, scale: torch.Tensor, w: LinearWeight, dtype: torch.dtype
    ) -> torch.Tensor:
        """Multiply quantised inputs [T, in] and their scales, without the bias."""
        assert w.scales is not None
        name = "gemm_a8w8_blockscale" if w.format is WeightFormat.FP8_BLOCKS else "gemm_a8w8"
        if is_shuffled(w):
            name += "_bpreshuffle"
        out: torch.Tensor = self._library[name](
            XQ=codes, WQ=w.data, x_scale=scale, w_scale=w.scales.scale, dtype=dtype
        )
        return out

    def quantised_rows(
        self, x: torch.Tensor, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Quantise x [T, in] → codes, and scales [T, 1] float32."""
        codes, scale = self._library["per_token_quant_hip"](x=x, quant_dtype=dtype)
        return codes, scale

    def quantised_groups(
        self, x: torch.Tensor, *, transposed: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Quantise x [T, in] → codes, and scales [T, in / 128] float32, in columns if
        transposed."""
        codes, scale = self._library["per_group_quant_hip"](
            x=x, quant_dtype=self._card.fp8, group_size=BLOCK[1], transpose_scale=transposed
        )
        return codes, scale


def for_card(w: LinearWeight, card: Card) -> LinearWeight:
    """Convert e4m3 to the card's own."""
    if w.scales is None or w.data.dtype is not torch.float8_e4m3fn or card.fp8 is w.data.dtype:
        return w
    data, scale = to_fnuz(w.data, w.scales.scale)
    return replace(w, data=data, scales=replace(w.scales, scale=scale))


def has_whole_blocks(w: LinearWeight) -> bool:
    """Return whether a matrix of FP8_BLOCKS, or each of a stack, consists of AITER's blocks."""
    assert w.scales is not None
    whole = w.outputs % BLOCK[0] == 0 and w.inputs % BLOCK[1] == 0
    return whole and w.scales.block == BLOCK


def is_shuffled(w: LinearWeight) -> bool:
    """Return whether a prepared matrix is in tiles; matrices of int8 are multiplied untiled."""
    if w.format not in (WeightFormat.FP8, WeightFormat.FP8_BLOCKS):
        return False
    return w.outputs % TILE_ROWS == 0 and w.inputs % TILE_COLUMNS == 0
