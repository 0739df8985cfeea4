"""Gemma4Layer: a layer with norms around attention and MLP, and Gemma 4's extensions: experts
beside the MLP, an input per layer, and a learned scalar that multiplies the output."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn

from atom.model_ops.layernorm import RMSNorm
from atom.model_ops.linear import Build, Linear
from atom.model_ops.placement import Placement
from atom.model_ops.rotary_embedding import RotaryEmbedding
from atom.model_ops.values import Stream
from atom.models.decoder.decoder_layers import SandwichLayer
from atom.models.decoder.layer_norm import build_norm
from atom.models.decoder.mlp import MoE
from atom.models.decoder.spec import LayerSpec
from atom.utils.forward_context import get_forward_context


class Gemma4Layer(SandwichLayer):
    """A layer that multiplies its output by a learned scalar."""

    def __init__(
        self, spec: LayerSpec, rotary: RotaryEmbedding, build: Build, hidden_size: int
    ) -> None:
        super().__init__(spec, rotary, build, hidden_size)
        self.layer_scalar = nn.Parameter(torch.empty(1), requires_grad=False)
        self._ops, self._activation = build.ops, spec.activation
        self._has_experts = spec.facts.mlp.is_beside
        self._has_input = bool(spec.facts.per_layer_input)
        if self._has_experts:
            self._add_experts(spec, build, hidden_size)
        if self._has_input:
            gate, projection = (
                spec.others[f"per_layer_{name}"] for name in ("input_gate", "projection")
            )
            self.per_layer_input_gate = Linear((gate,), build)
            self.per_layer_projection = Linear((projection,), build)
            self.post_per_layer_input_norm = build_norm(hidden_size, spec.norm, build)

    def _add_experts(self, spec: LayerSpec, build: Build, hidden_size: int) -> None:
        self.moe = MoE(spec, build)
        self.router_norm = RMSNorm(hidden_size, spec.norm.eps, ops=build.ops, is_unit=True)
        self.router_scale = nn.Parameter(torch.empty(hidden_size), requires_grad=False)
        count = spec.mlp[0].rows
        self.per_expert_scale = nn.Parameter(torch.empty(count), requires_grad=False)
        self.pre_feedforward_layernorm_2 = build_norm(hidden_size, spec.norm, build)
        self.post_feedforward_layernorm_1 = build_norm(hidden_size, spec.norm, build)
        self.post_feedforward_layernorm_2 = build_norm(hidden_size, spec.norm, build)

    def placements(self, name: str) -> Iterator[Placement]:
        """Yield the checkpoint's sources of the factors."""
        yield Placement.whole(f"{name}.layer_scalar", self.layer_scalar.data)
        if self._has_experts:
            yield Placement.whole(f"{name}.router.scale", self.router_scale.data)
            scales = self.per_expert_scale.data
            yield Placement.whole(f"{name}.router.per_expert_scale", scales)

    def forward(
        self,
        stream: Stream,
        positions: torch.Tensor,
        aux: torch.Tensor | None = None,
        own: torch.Tensor | None = None,
    ) -> Stream:
        """Run the layer; own [T, D]: its own input, if it has one."""
        given = super().forward(stream, positions, aux).settled().residual
        if self._has_input:
            assert own is not None
            given = given + self._of_input(given, own)
        return Stream(given * self.layer_scalar)

    def with_experts(self, projected: torch.Tensor, stream: Stream) -> torch.Tensor:
        if not self._has_experts:
            return projected
        x = stream.residual
        seen = self.router_norm.of(x) * self.router_scale * x.shape[1] ** -0.5
        routed = self.moe.gate(seen)
        weights = routed.weights * self.per_expert_scale[routed.ids.long()].float()
        normed = self.pre_feedforward_layernorm_2.of(x)
        given = self._group.reduce(self.moe.experts(normed, replace(routed, weights=weights)))
        beside = self.post_feedforward_layernorm_1.of(projected)
        return beside + self.post_feedforward_layernorm_2.of(given)

    def _of_input(self, given: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        """Compute the contribution of the layer's own input, gated by the hidden state."""
        tokens = get_forward_context().logits_indices if self.is_last else None
        own = own if tokens is None else own[tokens]
        gate = self.per_layer_input_gate(given)
        gated = self._ops.act_and_mul(torch.cat((gate, own), dim=1), self._activation)
        return self.post_per_layer_input_norm.of(self.per_layer_projection(gated))
