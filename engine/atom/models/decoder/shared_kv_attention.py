"""SharedKvAttention: queries that attend to the keys and values of an earlier layer (Gemma 4)."""

from __future__ import annotations

import torch
from torch import nn

from atom.model_ops.attention import Attention
from atom.model_ops.layernorm import Normed
from atom.model_ops.linear import Build, Linear
from atom.model_ops.rotary_embedding import RotaryEmbedding, head_order
from atom.model_ops.values import AttentionShape
from atom.models.decoder.layer_norm import build_norm
from atom.models.decoder.self_attention import SelfAttention
from atom.models.decoder.spec import LayerSpec


class SharedKvAttention(nn.Module):
    """Attend to the cached keys and values of another layer, which `share` sets."""

    def __init__(self, spec: LayerSpec, rotary: RotaryEmbedding, build: Build) -> None:
        super().__init__()
        assert isinstance(spec.attention, AttentionShape)
        matrices, order = spec.own_matrices, head_order(spec.rope)
        q = matrices["q_proj"]
        self.q_proj = Linear((q,), build, orders={q.name: order})
        self.o_proj = Linear((matrices["o_proj"],), build)
        self.q_norm = build_norm(spec.attention.head_dim, spec.norm, build, order)
        norms = (self.q_norm, self.q_norm)  # of keys it is the other layer's
        self.attn = Attention(spec.attention, rotary, norms=norms, ops=build.ops)

    def share(self, target: nn.Module) -> None:
        """Attend to keys and values of this attention, which runs before in every step."""
        assert isinstance(target, SelfAttention)
        self.attn.share(target.attn)

    def forward(self, h: Normed | torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the heads' results, [T, Hq·D]; the layer applies `o_proj`."""
        attended: torch.Tensor = self.attn(self.q_proj(h), positions)
        return attended
