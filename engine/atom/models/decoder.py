"""The Llama-like decoder that most dense models are: pre-norm attention and a gated MLP.

x → x + Attention(RMSNorm(x)) → x + MLP(RMSNorm(x)), all norms RMS, rotary positions, grouped-query
heads. A family (llama.py, qwen3.py) says what differs: norms on q and k, biases. It knows neither
backends nor processes; layers do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from atom.model_ops.attention import Attention
from atom.model_ops.backends.interface import AttentionShape, Ops
from atom.model_ops.embed_head import ParallelLMHead, VocabParallelEmbedding
from atom.model_ops.layernorm import RMSNorm
from atom.model_ops.linear import GatedLinear, LinearBase, QKVParallelLinear, RowParallelLinear
from atom.model_ops.rotary_embedding import RopeConfig, cos_sin_table
from atom.utils.forward_context import get_forward_context


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """Everything that distinguishes one decoder of this kind from another."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    max_position: int
    attention: AttentionShape
    rope: RopeConfig
    rms_norm_eps: float
    qk_norm: bool
    attention_bias: bool  # on q, k, v
    output_bias: bool  # on the projection after attention
    mlp_bias: bool
    tie_word_embeddings: bool


class SelfAttention(nn.Module):
    def __init__(self, spec: DecoderSpec, ops: Ops, *, is_last: bool) -> None:
        super().__init__()
        self._is_last = is_last
        shape = spec.attention
        self.qkv_proj = QKVParallelLinear(
            spec.hidden_size, shape, bias=spec.attention_bias, last=is_last, ops=ops
        )
        self.o_proj = RowParallelLinear(
            shape.num_heads * shape.head_dim, spec.hidden_size, bias=spec.output_bias, ops=ops
        )
        if spec.qk_norm:
            self.q_norm = RMSNorm(shape.head_dim, spec.rms_norm_eps, ops=ops)
            self.k_norm = RMSNorm(shape.head_dim, spec.rms_norm_eps, ops=ops)
        self.attn = Attention(
            shape,
            q_norm=self.q_norm if spec.qk_norm else None,
            k_norm=self.k_norm if spec.qk_norm else None,
            ops=ops,
        )

    def forward(
        self,
        norm: RMSNorm,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        positions: torch.Tensor,
        cos_sin: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        last = get_forward_context().last_tokens if self._is_last else None
        if last is None:
            qkv, residual = self.qkv_proj.after_norm(norm, x, residual)
            return self.o_proj.into(residual, self.attn(qkv, positions, cos_sin))
        normed, residual = norm(x, residual)
        keys_values = self.qkv_proj.keys_values(normed)
        qkv = self.qkv_proj(normed[last.tokens])
        attended = self.attn(qkv, positions, cos_sin, last, keys_values)
        return self.o_proj.into(residual[last.tokens], attended)


class MLP(nn.Module):
    def __init__(self, spec: DecoderSpec, ops: Ops) -> None:
        super().__init__()
        self.gate_up_proj = GatedLinear(
            spec.hidden_size, spec.intermediate_size, bias=spec.mlp_bias, ops=ops
        )
        self.down_proj = RowParallelLinear(
            spec.intermediate_size, spec.hidden_size, bias=spec.mlp_bias, ops=ops
        )

    def forward(
        self, norm: RMSNorm, x: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        gated, residual = self.gate_up_proj.after_norm(norm, x, residual)
        return self.down_proj.into(residual, gated)


class DecoderLayer(nn.Module):
    """What attention and MLP return is still to be added to the residual, which the next norm does,
    unless there is none. is_last: it goes on with no more tokens than the step looks at
    (LastTokens)."""

    def __init__(self, spec: DecoderSpec, ops: Ops, *, is_last: bool) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(spec.hidden_size, spec.rms_norm_eps, ops=ops)
        self.self_attn = SelfAttention(spec, ops, is_last=is_last)
        self.post_attention_layernorm = RMSNorm(spec.hidden_size, spec.rms_norm_eps, ops=ops)
        self.mlp = MLP(spec, ops)

    def forward(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        positions: torch.Tensor,
        cos_sin: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        x, residual = self.self_attn(self.input_layernorm, x, residual, positions, cos_sin)
        return self.mlp(self.post_attention_layernorm, x, residual)


class Decoder(nn.Module):
    """Embedding, layers and the last norm: `model.` in checkpoints."""

    def __init__(self, spec: DecoderSpec, ops: Ops) -> None:
        super().__init__()
        self.embed_tokens = VocabParallelEmbedding(spec.vocab_size, spec.hidden_size, ops=ops)
        self.layers = nn.ModuleList(
            DecoderLayer(spec, ops, is_last=index == spec.num_layers - 1)
            for index in range(spec.num_layers)
        )
        self.norm = RMSNorm(spec.hidden_size, spec.rms_norm_eps, ops=ops)
        self.cos_sin: torch.Tensor
        with torch.device("cpu"):  # a parameter-free table: computed even where layers are meta
            table = cos_sin_table(spec.rope, spec.max_position)
        self.register_buffer("cos_sin", table, persistent=False)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x, residual = self.embed_tokens(input_ids), None
        for layer in self.layers:
            x, residual = layer(x, residual, positions, self.cos_sin)
        x, _ = self.norm(x, residual)
        return x


class CausalLM(nn.Module):
    """A decoder with its output head. forward: (input_ids [T], positions [T]) → hidden [T, H], or
    [R', H] of the tokens that the forward context names."""

    # Checkpoint name of a projection → the merged parameter that holds it.
    packed_modules_mapping: ClassVar[dict[str, str]] = {
        "q_proj": "qkv_proj",
        "k_proj": "qkv_proj",
        "v_proj": "qkv_proj",
        "gate_proj": "gate_up_proj",
        "up_proj": "gate_up_proj",
    }

    def __init__(self, spec: DecoderSpec, ops: Ops) -> None:
        super().__init__()
        self.spec = spec
        self.model = Decoder(spec, ops)
        self.lm_head = ParallelLMHead(spec.vocab_size, spec.hidden_size, ops=ops)
        if spec.tie_word_embeddings:
            self.lm_head.tie(self.model.embed_tokens)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids, positions)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:  # [R, H] → [R, V]
        return self.lm_head(hidden)

    def prepare_weights(self) -> None:
        """Once, when the weights are loaded: let the backend arrange them as it wants them."""
        for module in self.modules():
            if isinstance(module, LinearBase | ParallelLMHead):
                module.prepare()

    def attention_layers(self) -> list[Attention]:
        return [module for module in self.modules() if isinstance(module, Attention)]
