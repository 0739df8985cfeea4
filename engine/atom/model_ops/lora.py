"""Operations of a model that serves adapters: a matrix with low-rank parts multiplies by both.

The low-rank part is added to the product, so a base matrix may be of any format, and a fused
operation is taken apart only in a step in which some token has an adapter: a step without runs what
a server without adapters runs. A rank of several adds its part of it to its share of a sum.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import cast

import torch

from atom.model_ops.activations import Gating
from atom.model_ops.backends.composed import ComposedOps
from atom.model_ops.backends.interface import Ops
from atom.model_ops.routing import Routed
from atom.model_ops.values import ExpertsWeight, LinearWeight, MoEWeight, NormWeight, Stream
from atom.utils.forward_context import LoraTokens, get_forward_context

_PAIRS = 16384  # of a token and an expert that are computed at once
_CHANGED = (
    "linear",
    "linear_parts",
    "gated_linear",
    "add",
    "norm_linear",
    "norm_gated_linear",
    "norm_experts",
    "experts",
    "add_experts",
)


def with_lora(ops: Ops) -> Ops:
    """Wrap a backend's operations for matrices that may have low-rank parts."""
    lora = _LoraOps(ops)
    changed = {name: getattr(lora, name) for name in _CHANGED}
    wrapped = cast(Ops, SimpleNamespace(**{**vars(ops), **changed}))
    lora.composed = ComposedOps(wrapped)
    return wrapped


class _LoraOps:
    """See `Ops` for each operation. composed: of the wrapped ones."""

    def __init__(self, ops: Ops) -> None:
        self._ops = ops
        self.composed: ComposedOps

    def linear(self, x: torch.Tensor, w: LinearWeight) -> torch.Tensor:
        tokens = _tokens(w)
        if tokens is None:
            return self._ops.linear(x, w)
        return self._ops.linear_lora(x, w, tokens)

    def linear_parts(self, x: torch.Tensor, w: LinearWeight) -> torch.Tensor:
        return self._for(w).linear_parts(x, w)

    def gated_linear(self, x: torch.Tensor, w: LinearWeight, activation: Gating) -> torch.Tensor:
        return self._for(w).gated_linear(x, w, activation)

    def add(self, stream: Stream, x: torch.Tensor, w: LinearWeight) -> Stream:
        return self._for(w).add(stream, x, w)

    def norm_linear(
        self, stream: Stream, norm: NormWeight, w: LinearWeight
    ) -> tuple[torch.Tensor, Stream]:
        tokens = _tokens(w)
        if tokens is None:
            return self._ops.norm_linear(stream, norm, w)
        return self._ops.norm_linear_lora(stream, norm, w, tokens, None)

    def norm_gated_linear(
        self, stream: Stream, norm: NormWeight, w: LinearWeight, activation: Gating
    ) -> tuple[torch.Tensor, Stream]:
        tokens = _tokens(w)
        if tokens is None:
            return self._ops.norm_gated_linear(stream, norm, w, activation)
        return self._ops.norm_linear_lora(stream, norm, w, tokens, activation)

    def norm_experts(self, stream: Stream, norm: NormWeight, w: MoEWeight) -> Stream:
        ops = self._for(w.experts.gate_up)
        if w.shared is not None and ops is self._ops:
            ops = self._for(w.shared.gate_up)
        return ops.norm_experts(stream, norm, w)

    def add_experts(
        self,
        stream: Stream,
        x: torch.Tensor,
        w: ExpertsWeight,
        routed: Routed,
        shared: torch.Tensor | None,
    ) -> Stream:
        return self._for(w.gate_up).add_experts(stream, x, w, routed, shared)

    def experts(self, x: torch.Tensor, w: ExpertsWeight, routed: Routed) -> torch.Tensor:
        tokens = _tokens(w.gate_up)
        if tokens is None:
            return self._ops.experts(x, w, routed)
        chosen = routed.ids.shape[1]
        made = [
            self._pairs(x[own], w, Routed(routed.ids[own], routed.weights[own]), tokens.slots[own])
            for first in range(0, len(x), _PAIRS // chosen)
            for own in (slice(first, first + _PAIRS // chosen),)
        ]
        return made[0] if len(made) == 1 else torch.cat(made)

    def _pairs(
        self, x: torch.Tensor, w: ExpertsWeight, routed: Routed, slots: torch.Tensor
    ) -> torch.Tensor:
        """Compute both products of every pair of a token and one of its experts, [T, H]."""
        chosen, ids = routed.ids.shape[1], routed.ids.flatten()
        weights = routed.weights.flatten()[:, None]
        held = (ids >= 0) & (ids < w.count)
        own = (slots[:, None] * w.count).expand(-1, chosen).flatten() + ids
        has_adapter = held & (slots >= 0).repeat_interleave(chosen)
        pairs = LoraTokens(own.where(has_adapter, -1).int())
        given = x.repeat_interleave(chosen, 0)
        if w.weighs_inputs:
            given = (given * weights).to(x.dtype)
        inner = self._product(given, w.gate_up, ids, pairs)
        gated = self._ops.act_and_mul(inner, w.activation)
        made = self._product(gated, w.down, ids, pairs).float()
        if not w.weighs_inputs:
            made = made * weights
        made = made.where(held[:, None], 0.0)
        return made.unflatten(0, (-1, chosen)).sum(1).to(x.dtype)

    def _product(
        self, x: torch.Tensor, w: LinearWeight, ids: torch.Tensor, pairs: LoraTokens
    ) -> torch.Tensor:
        assert w.lora is not None, "both of a layer's stacks have low-rank parts, or none"
        product = partial(self._ops.expert_products, x, w, ids)
        return self._ops.add_lora(product, x, w.lora.of_stack(), pairs)

    def _for(self, w: LinearWeight) -> Ops | ComposedOps:
        """Choose the backend's fused operation, or its parts where tokens have adapters."""
        return self._ops if _tokens(w) is None else self.composed


def _tokens(w: LinearWeight) -> LoraTokens | None:
    """Return the adapters of the step's tokens; None if no token has one or the matrix has no
    low-rank parts."""
    return None if w.lora is None else get_forward_context().lora
