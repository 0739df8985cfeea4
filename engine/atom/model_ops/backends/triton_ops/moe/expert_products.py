# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Products of rows with matrices of a stack, each with the one that it names: experts are taken
apart into these where adapters add to both of their products. A launch of `grouped_gemm.py`'s
second product, of pairs that are tokens with a single choice and no weight.
"""

from __future__ import annotations

import torch

from atom.model_ops.backends.triton_ops.moe.grouped_gemm import multiply_rows
from atom.model_ops.values import LinearWeight


def expert_products(x: torch.Tensor, w: LinearWeight, ids: torch.Tensor) -> torch.Tensor:
    """See `Ops.expert_products`."""
    return multiply_rows(x, w, ids)
