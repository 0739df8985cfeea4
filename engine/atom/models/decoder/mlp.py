"""The part of a layer after attention: a gated MLP, or a router with experts.

Both take the norm of a stream and return the stream with their result added, so a layer calls
either in the same way.
"""

from __future__ import annotations

import torch
from torch import nn

from atom.model_ops.activations import Gating
from atom.model_ops.backends.composed import shared_part
from atom.model_ops.layernorm import Normed
from atom.model_ops.linear import Build, GatedLinear, Linear
from atom.model_ops.moe.experts import ExpertParallelExperts, Experts
from atom.model_ops.moe.router import Router, TokenRouter
from atom.model_ops.routing import Routed
from atom.model_ops.values import MoEWeight, SharedWeight, Stream
from atom.models.decoder.spec import ExpertsSpec, LayerSpec
from atom.sizing.projection import Projection


class MLP(nn.Module):
    """Computes down(activation(gate(x)) · up(x)), or down(activation(up(x))); matrices: gate, up
    and down, or the last two."""

    def __init__(self, matrices: tuple[Projection, ...], activation: Gating, build: Build) -> None:
        super().__init__()
        *inner, down = matrices
        self.gate_up_proj = GatedLinear(inner, activation, build)
        self.down_proj = Linear((down,), build)
        self._activation = activation

    def shared(self, gate: Linear | None) -> SharedWeight:
        """Return the operations' view of a shared expert, weighed by a gate if there is one."""
        own = None if gate is None else gate.w
        return SharedWeight(self.gate_up_proj.w, self.down_proj.w, self._activation, own)

    def forward(self, x: torch.Tensor | Normed) -> torch.Tensor:  # [T, H] → [T, H]
        """Compute the MLP; with several ranks, this one's share of the sum."""
        projected: torch.Tensor = self.down_proj(self.gate_up_proj(x))
        return projected

    def add(self, h: Normed) -> Stream:
        gated = self.gate_up_proj(h)
        return self.down_proj.add(h.stream, gated)


class MoE(nn.Module):
    """The sum of a few experts' MLPs, chosen and weighed by a router, and of the shared expert, if
    there is one, whole or weighed by a gate."""

    def __init__(self, spec: LayerSpec, build: Build) -> None:
        super().__init__()
        facts, rules = spec.facts.mlp.experts, spec.experts
        assert facts is not None
        assert rules is not None
        matrices = spec.mlp[1:]
        each = 3 if spec.facts.mlp.gated else 2
        self.gate = self._router(rules, spec.mlp[0], build)
        make = Experts if build.exchange is None else ExpertParallelExperts
        self.experts = make(
            matrices[:each], spec.activation, build,
            stacking=rules.stacking, weighs_inputs=rules.routing.weighs_inputs,
        )  # fmt: skip
        self._ops = build.ops
        self._routing = rules.routing
        self._has_all = build.experts is None
        shared = tuple(matrices[each : 2 * each])
        self.shared_experts = MLP(shared, spec.activation, build) if shared else None
        self.shared_gate = Linear(matrices[2 * each :], build) if facts.shared_gate else None

    def _router(self, rules: ExpertsSpec, matrix: Projection, build: Build) -> Router:
        return Router(matrix, rules.routing, build, correction=rules.correction)

    @property
    def w(self) -> MoEWeight:
        """Return the operations' view of the weights."""
        return MoEWeight(self.gate.w, self._routing, self.experts.w, self._shared_weight)

    @property
    def _shared_weight(self) -> SharedWeight | None:
        if self.shared_experts is None:
            return None
        return self.shared_experts.shared(self.shared_gate)

    def add(self, h: Normed) -> Stream:
        if self._has_all:
            return h.experts(self.w)
        x = h.tensor()
        routed = self.gate(x)
        shared = shared_part(self._ops, x, self._shared_weight)
        return self.experts.add(h.stream, x, routed, shared)

    def forward(self, h: Normed) -> torch.Tensor:
        """Compute the experts; with several ranks that divide them, this one's share of the sum."""
        x = h.tensor()
        return self._computed(x, self.gate(x))

    def _computed(self, x: torch.Tensor, routed: Routed) -> torch.Tensor:
        """Compute chosen experts, and the shared ones that every token goes through."""
        found: torch.Tensor = self.experts(x, routed)
        shared = shared_part(self._ops, x, self._shared_weight)
        return found if shared is None else found + shared

    def run_dummy_batch(self) -> None:
        """Compute other ranks' tokens with this rank's experts, without tokens of this rank."""
        assert isinstance(self.experts, ExpertParallelExperts)
        self.experts.run_dummy_batch(self._routing.top_k)


class ExpertsByToken(MoE):
    """Experts that a table selects by token; a router only weighs them (DeepSeek V4)."""

    gate: TokenRouter

    def _router(self, rules: ExpertsSpec, matrix: Projection, build: Build) -> TokenRouter:
        return TokenRouter(matrix, rules.routing, build, rules.vocab_size)

    def forward(self, h: Normed, token_ids: torch.Tensor | None = None) -> torch.Tensor:
        """Compute the experts of tokens token_ids [T]; with several ranks that divide them, this
        one's share of the sum."""
        assert token_ids is not None
        x = h.tensor()
        return self._computed(x, self.gate.of_tokens(x, token_ids))


def build_mlp(spec: LayerSpec, build: Build) -> MLP | MoE:
    """Build the layer's MLP or experts. The layer must have an MLP. If it has an MLP beside
    experts, build the MLP."""
    if spec.facts.mlp.is_beside:
        matrices = [each for name, each in spec.others.items() if name.startswith("mlp.")]
        return MLP(tuple(matrices), spec.activation, build)
    if spec.experts is not None:
        return (ExpertsByToken if spec.experts.vocab_size else MoE)(spec, build)
    return MLP(spec.mlp, spec.activation, build)
