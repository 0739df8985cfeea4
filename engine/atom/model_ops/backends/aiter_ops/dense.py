"""Norms and activations by AITER's HIP kernels, and products of plain matrices by its tuned GEMMs.

Statistics of a norm are float32, and the product with its weight is rounded once; Hugging Face
rounds in between, which is a last bit of the result.
"""

from __future__ import annotations

import torch

from atom.model_ops.activations import Gating
from atom.model_ops.backends.aiter_ops.library import Library
from atom.model_ops.values import NormWeight, Pending, Stream


class Norms:
    def __init__(self, library: Library) -> None:
        self._library = library

    def rms_norm(self, x: torch.Tensor, norm: NormWeight) -> torch.Tensor:
        rows = x.contiguous().view(-1, x.shape[-1])
        out: torch.Tensor = self._library["rmsnorm2d_fwd"](
            input=rows, weight=norm.weight, epsilon=norm.eps
        )
        return out.view(x.shape)

    def norm(self, stream: Stream, norm: NormWeight) -> tuple[torch.Tensor, Stream]:
        if stream.pending is None:
            return self.rms_norm(stream.residual, norm), stream
        # Sums in parts are left by fused operations, and this backend leaves none.
        assert stream.pending_is is Pending.WHOLE
        out, residual = torch.empty_like(stream.residual), torch.empty_like(stream.residual)
        self._library["rmsnorm2d_fwd_with_add"](
            out=out,
            input=stream.pending.contiguous(),
            residual_in=stream.residual.contiguous(),
            residual_out=residual,
            weight=norm.weight,
            epsilon=norm.eps,
        )
        return out, Stream(residual)


class Activations:
    def __init__(self, library: Library) -> None:
        self._library = library

    def act_and_mul(self, x: torch.Tensor, activation: Gating) -> torch.Tensor:
        out = x.new_empty((x.shape[0], x.shape[1] // 2))
        self._library["silu_and_mul"](out=out, input=x.contiguous())
        return out
