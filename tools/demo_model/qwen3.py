"""A plain Qwen3 decoder: the smallest readable form of the architecture, for training and checks.

It knows nothing of tokens' meaning, of files or of the engine, and is written separately from
`atom.models` on purpose: two implementations that agree are evidence, one compared with itself is
not. Parameter names are those of a Hugging Face checkpoint, so `state_dict()` is what is saved.
Called by the training loop and by greedy decoding. Architecture: Qwen3 technical report,
https://arxiv.org/abs/2505.09388 (RMSNorm before each block and on each head's q and k, RoPE,
grouped-query attention, SwiGLU, tied embeddings).
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Cache = list[
    tuple[Tensor, Tensor]
]  # per layer: keys and values, [batch, kv_heads, tokens, head_dim]


@dataclass(frozen=True, slots=True)
class Shape:
    """The hyperparameters that a Qwen3 config.json states."""

    vocab_size: int
    hidden_size: int = 192
    num_hidden_layers: int = 6
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    intermediate_size: int = 512
    max_position_embeddings: int = 2048
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


def rotary_angles(shape: Shape, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines of RoPE at `positions` [tokens]: two of [tokens, head_dim]."""
    exponents = torch.arange(0, shape.head_dim, 2, device=positions.device).float() / shape.head_dim
    angles = positions.float()[:, None] * shape.rope_theta**-exponents  # [tokens, head_dim / 2]
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return x * cos.to(x.dtype) + turned * sin.to(x.dtype)


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        q_size = shape.num_attention_heads * shape.head_dim
        kv_size = shape.num_key_value_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, q_size, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, kv_size, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, kv_size, bias=False)
        self.o_proj = nn.Linear(q_size, shape.hidden_size, bias=False)
        self.q_norm = RMSNorm(shape.head_dim, shape.rms_norm_eps)
        self.k_norm = RMSNorm(shape.head_dim, shape.rms_norm_eps)

    def forward(
        self, x: Tensor, rope: tuple[Tensor, Tensor], past: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        batch, tokens, _ = x.shape
        split = (batch, tokens, -1, self.shape.head_dim)
        q = rotate(self.q_norm(self.q_proj(x).view(split)).transpose(1, 2), *rope)
        k = rotate(self.k_norm(self.k_proj(x).view(split)).transpose(1, 2), *rope)
        v = self.v_proj(x).view(split).transpose(1, 2)
        if past is not None:
            k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        groups = self.shape.num_attention_heads // self.shape.num_key_value_heads
        # a prompt comes whole and later tokens one by one, so the mask is square or not needed
        y = F.scaled_dot_product_attention(
            q,
            k.repeat_interleave(groups, dim=1),
            v.repeat_interleave(groups, dim=1),
            is_causal=past is None,
        )
        return self.o_proj(y.transpose(1, 2).reshape(batch, tokens, -1)), (k, v)


class MLP(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class DecoderLayer(nn.Module):
    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.mlp = MLP(shape)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Tensor, rope: tuple[Tensor, Tensor], past: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        attended, present = self.self_attn(self.input_layernorm(x), rope, past)
        x = x + self.dropout(attended)
        return x + self.dropout(self.mlp(self.post_attention_layernorm(x))), present


class Decoder(nn.Module):
    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(
            DecoderLayer(shape, dropout) for _ in range(shape.num_hidden_layers)
        )
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.dropout = nn.Dropout(dropout)


class Qwen3(nn.Module):
    """Token ids [batch, tokens] to logits [batch, tokens, vocab], output head tied to the input.

    `dropout` is not part of the architecture: it acts in training mode only.
    """

    def __init__(self, shape: Shape, dropout: float = 0.0) -> None:
        super().__init__()
        self.shape = shape
        self.model = Decoder(shape, dropout)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids: Tensor, past: Cache | None = None) -> tuple[Tensor, Cache]:
        start = past[0][0].shape[2] if past else 0
        positions = torch.arange(start, start + ids.shape[1], device=ids.device)
        rope = rotary_angles(self.shape, positions)
        x = self.model.dropout(self.model.embed_tokens(ids))  # [batch, tokens, hidden]
        present: Cache = []
        for index, layer in enumerate(self.model.layers):
            x, pair = layer(x, rope, past[index] if past else None)
            present.append(pair)
        return F.linear(self.model.norm(x), self.model.embed_tokens.weight), present
