"""How experts' matrices lie, once they are loaded."""

from __future__ import annotations

from atom.model_ops.backends.triton_ops.experts.twin_codes import multiplies_codes
from atom.model_ops.backends.triton_ops.products.linear import prepare_linear
from atom.model_ops.quantised.fp4_tiles import fits_tiles, in_tiles
from atom.model_ops.values import LinearWeight


def prepare_experts(w: LinearWeight) -> LinearWeight:
    w = prepare_linear(w)
    return in_tiles(w) if multiplies_codes(w) and fits_tiles(w) else w
