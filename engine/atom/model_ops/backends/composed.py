"""The fused operations, composed of single ones: for backends that do not fuse them.

They call the resolved operations, so an override of a single operation applies here as well.
interface.py has the contract of each.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F

from atom.model_ops.activations import Gating
from atom.model_ops.backends.expert_choice import sigmoid
from atom.model_ops.backends.interface import Ops
from atom.model_ops.linear_attention import ConvWeight, DeltaNetWeight, DeltaSlots, DeltaTokens
from atom.model_ops.routing import Routed
from atom.model_ops.values import (
    AttentionShape,
    ExpertsWeight,
    LayerCache,
    LinearWeight,
    MoEWeight,
    NormWeight,
    Rotary,
    SharedWeight,
    Stream,
)
from atom.utils.forward_context import AttentionMetaData, LoraTokens


class ComposedOps:
    """The fused operations over `ops`; see `Ops` for each."""

    def __init__(self, ops: Ops) -> None:
        self._ops = ops

    def linear_parts(self, x: torch.Tensor, w: LinearWeight) -> torch.Tensor:
        return self._ops.linear(x, w)

    def gated_linear(self, x: torch.Tensor, w: LinearWeight, activation: Gating) -> torch.Tensor:
        return self._ops.act_and_mul(self._ops.linear(x, w), activation)

    def add(self, stream: Stream, x: torch.Tensor, w: LinearWeight) -> Stream:
        return stream.plus(self._ops.linear(x, w))

    def add_experts(
        self,
        stream: Stream,
        x: torch.Tensor,
        w: ExpertsWeight,
        routed: Routed,
        shared: torch.Tensor | None,
    ) -> Stream:
        result = self._ops.experts(x, w, routed)
        return stream.plus(result if shared is None else result + shared)

    def norm_experts(self, stream: Stream, norm: NormWeight, w: MoEWeight) -> Stream:
        x, stream = self._ops.norm(stream, norm)
        routed = self._ops.route(x, w.router, w.routing)
        shared = shared_part(self._ops, x, w.shared)
        return self._ops.add_experts(stream, x, w.experts, routed, shared)

    def norm_linear(
        self, stream: Stream, norm: NormWeight, w: LinearWeight
    ) -> tuple[torch.Tensor, Stream]:
        normed, stream = self._ops.norm(stream, norm)
        return self._ops.linear(normed, w), stream

    def norm_gated_linear(
        self, stream: Stream, norm: NormWeight, w: LinearWeight, activation: Gating
    ) -> tuple[torch.Tensor, Stream]:
        normed, stream = self._ops.norm(stream, norm)
        return self.gated_linear(normed, w, activation), stream

    def linear_lora(self, x: torch.Tensor, w: LinearWeight, tokens: LoraTokens) -> torch.Tensor:
        assert w.lora is not None, "a matrix with low-rank parts"
        return self._ops.add_lora(partial(self._ops.linear, x, w), x, w.lora, tokens)

    def norm_linear_lora(
        self,
        stream: Stream,
        norm: NormWeight,
        w: LinearWeight,
        tokens: LoraTokens,
        activation: Gating | None,
    ) -> tuple[torch.Tensor, Stream]:
        normed, stream = self._ops.norm(stream, norm)
        y = self.linear_lora(normed, w, tokens)
        return (y if activation is None else self._ops.act_and_mul(y, activation)), stream

    def attention(
        self,
        qkv: torch.Tensor,
        shape: AttentionShape,
        rotary: Rotary,
        cache: LayerCache,
        step: AttentionMetaData,
    ) -> torch.Tensor:
        q = self._ops.qk_norm_rope_store(qkv, shape, rotary, cache, step.slot_mapping)
        return self._ops.paged_attention(q, shape, cache, step)

    def gated_delta_net(
        self,
        tokens: DeltaTokens,
        z: torch.Tensor,
        weight: DeltaNetWeight,
        kept: DeltaSlots,
        step: AttentionMetaData,
    ) -> torch.Tensor:
        mixed = self._ops.short_convolution(tokens.qkv, ConvWeight(weight.conv), kept.tails, step)
        tokens = replace(tokens, qkv=mixed)
        found = self._ops.gated_delta_rule(tokens, kept.shape, weight.rule, kept.states, step)
        return self._ops.rms_norm(found, weight.norm).flatten(1) * F.silu(z)


def shared_part(ops: Ops, x: torch.Tensor, w: SharedWeight | None) -> torch.Tensor | None:
    """Compute a shared expert of x [T, H]; None if there is none."""
    if w is None:
        return None
    shared = ops.linear(ops.gated_linear(x, w.gate_up, w.activation), w.down)
    return shared if w.gate is None else shared * sigmoid(ops.linear(x, w.gate))
