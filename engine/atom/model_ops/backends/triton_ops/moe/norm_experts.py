"""A norm and the experts after it, for few tokens: norm and router in one launch, and, if tokens
hardly share experts, two more launches for the rest.

With one token, a layer has three launches from its second norm on (norm and logits; choice, w13; w2
and the sum), a shared expert included. With up to sixteen tokens there are four and the shared
expert's: tokens share experts' matrices there, which the tensor core multiplies.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from atom.model_ops.backends.composed import ComposedOps, shared_part
from atom.model_ops.backends.interface import Ops
from atom.model_ops.backends.triton_ops.gemm.linear import gated_linear, linear
from atom.model_ops.backends.triton_ops.moe import gemv
from atom.model_ops.backends.triton_ops.moe.grouped_gemm import add_experts
from atom.model_ops.backends.triton_ops.moe.norm_router import MOST_INPUTS, norm_router
from atom.model_ops.backends.triton_ops.moe.routing import choose, route
from atom.model_ops.backends.triton_ops.norms import norm as settle_and_norm
from atom.model_ops.values import MoEWeight, NormWeight, Stream

# Up to this many tokens a program norms its own instead of reading another's result.
_FEW_TOKENS = 16
_OWN = cast(
    Ops,
    SimpleNamespace(
        norm=settle_and_norm,
        route=route,
        gated_linear=gated_linear,
        linear=linear,
        add_experts=add_experts,
    ),
)
_COMPOSED = ComposedOps(_OWN)


def norm_experts(stream: Stream, norm: NormWeight, w: MoEWeight) -> Stream:
    tokens, hidden = stream.residual.shape
    if not 0 < tokens <= _FEW_TOKENS or hidden > MOST_INPUTS:
        return _COMPOSED.norm_experts(stream, norm, w)
    if gemv.takes(w, tokens):
        x, logits, stream = norm_router(stream, norm, w.router.matrix, gemv.planes_of(w.experts))
        routed = None
        if not gemv.chooses(w.routing, w.experts.count):
            routed = choose(logits, w.router, w.routing)
        return stream.plus(gemv.moe_gemv(x, logits, w, routed))
    x, logits, stream = norm_router(stream, norm, w.router.matrix)
    routed = choose(logits, w.router, w.routing)
    return add_experts(stream, x, w.experts, routed, shared_part(_OWN, x, w.shared))
