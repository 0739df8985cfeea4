"""A plain Mistral Small 3 with Pixtral's encoder: the smallest readable form, for training.

It knows nothing of tokens' meaning, of files or of the engine, and is written separately from
`atom.models` on purpose: two implementations that agree are evidence. Parameter names are those of
a Hugging Face checkpoint, so `state_dict()` is what is saved. Architecture: Pixtral 12B,
https://arxiv.org/abs/2410.07073 (RMSNorm, rotated rows and columns, gated MLPs), with the patch
merger of Mistral Small 3.1. All pictures of a batch have one size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Rotation = tuple[Tensor, Tensor]  # cosines and sines, [tokens, head_dim]


@dataclass(frozen=True, slots=True)
class EyesShape:
    """The hyperparameters that the config.json states. patch: side in pixels; merge: patches on the
    side of a token; longest: edge of a picture in pixels."""

    vocab_size: int
    image_token: int
    hidden_size: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    intermediate_size: int = 320
    vision_hidden_size: int = 96
    vision_layers: int = 3
    vision_heads: int = 3
    vision_intermediate_size: int = 192
    patch: int = 8
    merge: int = 2
    longest: int = 64


HEAD_DIM = 32
THETA = 10_000.0
EPS = 1e-5
CONTEXT_TOKENS = 1024


def normed(size: int) -> nn.RMSNorm:
    return nn.RMSNorm(size, eps=EPS)


def turn(angles: Tensor) -> Rotation:
    """Cosines and sines of angles [tokens, head_dim / 2]."""
    both = torch.cat((angles, angles), dim=-1)
    return both.cos(), both.sin()


def frequencies(device: torch.device) -> Tensor:
    return THETA ** (-torch.arange(0, HEAD_DIM, 2, device=device).float() / HEAD_DIM)


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    cos, sin = rotation
    first, second = x.chunk(2, dim=-1)
    return x * cos.to(x.dtype) + torch.cat((-second, first), dim=-1) * sin.to(x.dtype)


class Attention(nn.Module):
    """Attention of the decoder (causal) or of the encoder (all patches see each other)."""

    def __init__(self, size: int, heads: int, kv_heads: int, causal: bool) -> None:
        super().__init__()
        self.q_proj = nn.Linear(size, heads * HEAD_DIM, bias=False)
        self.k_proj = nn.Linear(size, kv_heads * HEAD_DIM, bias=False)
        self.v_proj = nn.Linear(size, kv_heads * HEAD_DIM, bias=False)
        self.o_proj = nn.Linear(heads * HEAD_DIM, size, bias=False)
        self._groups, self._causal = heads // kv_heads, causal

    def forward(self, x: Tensor, rotation: Rotation) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = (
            each(x).view(batch, tokens, -1, HEAD_DIM).transpose(1, 2)
            for each in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotate(q, rotation), rotate(k, rotation)
        k, v = (each.repeat_interleave(self._groups, dim=1) for each in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self._causal)
        out: Tensor = self.o_proj(y.transpose(1, 2).reshape(batch, tokens, -1))
        return out


class GatedMLP(nn.Module):
    def __init__(self, size: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(size, inner, bias=False)
        self.up_proj = nn.Linear(size, inner, bias=False)
        self.down_proj = nn.Linear(inner, size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class VisionLayer(nn.Module):
    def __init__(self, shape: EyesShape) -> None:
        super().__init__()
        size, heads = shape.vision_hidden_size, shape.vision_heads
        self.attention_norm = normed(size)
        self.attention = Attention(size, heads, heads, causal=False)
        self.ffn_norm = normed(size)
        self.feed_forward = GatedMLP(size, shape.vision_intermediate_size)

    def forward(self, x: Tensor, rotation: Rotation) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotation)
        out: Tensor = x + self.feed_forward(self.ffn_norm(x))
        return out


class VisionTower(nn.Module):
    """Pixels [batch, 3, height, width] to patches [batch, rows · columns, size], row by row."""

    def __init__(self, shape: EyesShape) -> None:
        super().__init__()
        size = shape.vision_hidden_size
        self.patch_conv = nn.Conv2d(3, size, shape.patch, stride=shape.patch, bias=False)
        self.ln_pre = normed(size)
        self.transformer = nn.Module()
        self.transformer.layers = nn.ModuleList(
            VisionLayer(shape) for _ in range(shape.vision_layers)
        )

    def forward(self, pixels: Tensor) -> Tensor:
        found = self.patch_conv(pixels)  # [batch, size, rows, columns]
        rows, columns = found.shape[2:]
        each = frequencies(pixels.device)
        down = torch.arange(rows, device=pixels.device).float()[:, None] * each[0::2]
        across = torch.arange(columns, device=pixels.device).float()[:, None] * each[1::2]
        rotation = turn(
            torch.cat((down.repeat_interleave(columns, dim=0), across.repeat(rows, 1)), dim=-1)
        )
        x: Tensor = self.ln_pre(found.flatten(2).transpose(1, 2))
        for layer in self.transformer.layers:  # type: ignore[union-attr]
            x = layer(x, rotation)
        return x


class Projector(nn.Module):
    """Patches [batch, rows · columns, size] to tokens [batch, rows · columns / 4, hidden]."""

    def __init__(self, shape: EyesShape) -> None:
        super().__init__()
        size = shape.vision_hidden_size
        self.norm = normed(size)
        self.patch_merger = nn.Module()
        self.patch_merger.merging_layer = nn.Linear(size * shape.merge**2, size, bias=False)
        self.linear_1 = nn.Linear(size, shape.hidden_size, bias=False)
        self.linear_2 = nn.Linear(shape.hidden_size, shape.hidden_size, bias=False)
        self._merge = shape.merge

    def forward(self, x: Tensor, rows: int, columns: int) -> Tensor:
        batch, _, size = x.shape
        merge = self._merge
        cut = self.norm(x).view(batch, rows // merge, merge, columns // merge, merge, size)
        squares = cut.permute(0, 1, 3, 5, 2, 4).reshape(batch, -1, size * merge**2)
        merged = self.patch_merger.merging_layer(squares)  # type: ignore[operator]
        out: Tensor = self.linear_2(F.gelu(self.linear_1(merged)))
        return out


class DecoderLayer(nn.Module):
    def __init__(self, shape: EyesShape) -> None:
        super().__init__()
        size = shape.hidden_size
        self.input_layernorm = normed(size)
        self.self_attn = Attention(size, shape.heads, shape.kv_heads, causal=True)
        self.post_attention_layernorm = normed(size)
        self.mlp = GatedMLP(size, shape.intermediate_size)

    def forward(self, x: Tensor, rotation: Rotation) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rotation)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class LanguageModel(nn.Module):
    def __init__(self, shape: EyesShape) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.model.layers = nn.ModuleList(DecoderLayer(shape) for _ in range(shape.layers))
        self.model.norm = normed(shape.hidden_size)
        self.lm_head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)


class Eyes(nn.Module):
    """Tokens [batch, tokens] and pictures [pictures, 3, height, width] to logits [batch, tokens,
    vocabulary]. The image tokens of a batch are those of its pictures, in their order."""

    def __init__(self, shape: EyesShape) -> None:
        super().__init__()
        self.shape = shape
        self.vision_tower = VisionTower(shape)
        self.multi_modal_projector = Projector(shape)
        self.language_model = LanguageModel(shape)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
        nn.init.normal_(self.language_model.model.embed_tokens.weight, std=0.5)  # type: ignore[union-attr,arg-type]

    def see(self, pixels: Tensor) -> Tensor:
        """Return the pictures' tokens [pictures, tokens, hidden]."""
        rows, columns = (edge // self.shape.patch for edge in pixels.shape[2:])
        found: Tensor = self.multi_modal_projector(self.vision_tower(pixels), rows, columns)
        return found

    def forward(self, ids: Tensor, pixels: Tensor | None) -> Tensor:
        decoder = self.language_model.model
        x = decoder.embed_tokens(ids)  # type: ignore[operator]
        if pixels is not None and len(pixels):
            seen = self.see(pixels).flatten(0, 1)
            where = (ids == self.shape.image_token)[..., None].expand_as(x)
            x = x.masked_scatter(where, seen.to(x.dtype))
        places = torch.arange(ids.shape[1], device=ids.device).float()
        rotation = turn(places[:, None] * frequencies(ids.device))
        for layer in decoder.layers:  # type: ignore[union-attr]
            x = layer(x, rotation)
        out: Tensor = self.language_model.lm_head(decoder.norm(x))  # type: ignore[operator]
        return out
