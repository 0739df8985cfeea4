"""Linear products: the vendor's library, or a skinny kernel where it was measured to be faster."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from atom.model_ops.backends.triton_ops.skinny_linear import skinny_linear
from atom.model_ops.backends.triton_ops.tuning import TOKEN_BUCKETS, linear_config


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    if 0 < x.shape[0] <= TOKEN_BUCKETS[-1]:
        config = linear_config(x.device, x.dtype, weight.shape[0], weight.shape[1], x.shape[0])
        if config is not None:
            return skinny_linear(x, weight, bias, config)
    return F.linear(x, weight, bias)


def embedding(ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.embedding(ids, weight)
