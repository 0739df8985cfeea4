"""A norm and the product after it: one kernel norms and quantises for a matrix of fp8 with a scale
per output.

Any other matrix is normed and multiplied in turn; the activation follows a gated product.
"""

from __future__ import annotations

import torch

from atom.model_ops.activations import Gating
from atom.model_ops.backends.aiter_ops.dense import Activations, Norms
from atom.model_ops.backends.aiter_ops.library import Library
from atom.model_ops.backends.aiter_ops.linear import Products
from atom.model_ops.values import LinearWeight, NormWeight, Pending, Stream, WeightFormat


class NormedProducts:
    def __init__(self, library: Library, norms: Norms, products: Products) -> None:
        self._library = library
        self._norms = norms
        self._products = products
        self._activations = Activations(library)

    def norm_linear(
        self, stream: Stream, norm: NormWeight, w: LinearWeight
    ) -> tuple[torch.Tensor, Stream]:
        if w.format is not WeightFormat.FP8 or stream.residual.shape[0] == 0:
            normed, stream = self._norms.norm(stream, norm)
            return self._products.linear(normed, w), stream
        codes, scale, stream = self._quantised(stream, norm, w.data.dtype)
        result = self._products.scaled(codes, scale, w, stream.residual.dtype)
        return result if w.bias is None else result + w.bias, stream

    def norm_gated_linear(
        self, stream: Stream, norm: NormWeight, w: LinearWeight, activation: Gating
    ) -> tuple[torch.Tensor, Stream]:
        gate_up, stream = self.norm_linear(stream, norm, w)
        return self._activations.act_and_mul(gate_up, activation), stream

    def _quantised(
        self, stream: Stream, norm: NormWeight, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor, Stream]:
        """Norm and quantise: return the tokens' codes and scales [T, 1], and the settled stream."""
        residual = stream.residual.contiguous()
        scale = torch.empty((len(residual), 1), dtype=torch.float32, device=residual.device)
        codes = torch.empty(residual.shape, dtype=dtype, device=residual.device)
        common = {"out": codes, "yscale": scale, "weight": norm.weight, "epsilon": norm.eps}
        if stream.pending is None:
            self._library["rmsnorm2d_fwd_with_dynamicquant"](input=residual, **common)
            return codes, scale, Stream(residual)
        assert stream.pending_is is Pending.WHOLE
        settled = torch.empty_like(residual)
        self._library["rmsnorm2d_fwd_with_add_dynamicquant"](
            input=stream.pending.contiguous(),
            residual_in=residual,
            residual_out=settled,
            **common,
        )
        return codes, scale, Stream(settled)
