"""Llama 4's encoder (Meta, 2025): tiles with a class patch, rotated rows and columns, LayerNorms.
An adapter joins squares of patches (pixel shuffle).

pixels [tiles, channels, side, side], of whole patches; one output per square of patches, row by
row, tile after tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import nn

from atom.model_ops.backends.interface import Ops
from atom.models.vision.encoder import ImageEncoder, VisionSpec
from atom.models.vision.parts import (
    Dense,
    JoinedDense,
    LayerNorm,
    PlainMlp,
    Rotation,
    Runs,
    empty,
    frequencies_of,
    patches_of,
    places_of,
    repeated,
    rotated_attention,
    rotation,
)
from atom.sizing.vision.facts import Grid
from atom.sizing.vision.llama4 import Llama4VisionFacts

_EPS = 1e-5


class _Attention(nn.Module):
    def __init__(self, facts: Llama4VisionFacts, ops: Ops) -> None:
        super().__init__()
        size, self._heads, self._ops = facts.hidden_size, facts.num_heads, ops
        # Checkpoints rotate neighbouring elements: stored apart, as the operation rotates them.
        element = torch.arange(facts.head_dim, device="cpu")
        order = torch.cat((element[0::2], element[1::2]))
        self.qkv_proj = JoinedDense(
            size,
            dict.fromkeys(("q_proj", "k_proj", "v_proj"), size),
            orders={"q_proj": order, "k_proj": order},
        )
        self.o_proj = Dense(size, size)

    def forward(self, x: torch.Tensor, by: Rotation, runs: Runs) -> torch.Tensor:
        results = rotated_attention(self.qkv_proj(x), self._heads, by, runs, self._ops)
        return cast(torch.Tensor, self.o_proj(results))


class _Layer(nn.Module):
    def __init__(self, facts: Llama4VisionFacts, ops: Ops) -> None:
        super().__init__()
        self.input_layernorm = LayerNorm(facts.hidden_size, _EPS)
        self.self_attn = _Attention(facts, ops)
        self.post_attention_layernorm = LayerNorm(facts.hidden_size, _EPS)
        self.mlp = PlainMlp(facts.hidden_size, facts.intermediate_size, "gelu")

    def forward(self, x: torch.Tensor, by: Rotation, runs: Runs) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), by, runs)
        return cast(torch.Tensor, x + self.mlp(self.post_attention_layernorm(x)))


class _Layers(nn.Module):
    def __init__(self, facts: Llama4VisionFacts, ops: Ops) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Layer(facts, ops) for _ in range(facts.num_layers))


class _PatchEmbedding(nn.Module):
    def __init__(self, facts: Llama4VisionFacts) -> None:
        super().__init__()
        self.linear = Dense(facts.hidden_size, facts.patches.numbers, bias=False)


class _AdapterMlp(nn.Module):
    def __init__(self, facts: Llama4VisionFacts) -> None:
        super().__init__()
        self.fc1 = Dense(facts.adapter_size, facts.intermediate_size, bias=False)
        self.fc2 = Dense(facts.adapter_size, facts.adapter_size, bias=False)


class _Adapter(nn.Module):
    def __init__(self, facts: Llama4VisionFacts) -> None:
        super().__init__()
        self.mlp = _AdapterMlp(facts)
        self._merge = facts.patches.merge

    def forward(
        self, x: torch.Tensor
    ) -> torch.Tensor:  # [tiles, side, side, C] → [T, adapter size]
        shuffled = _shuffled(_shuffled(x, self._merge), self._merge)
        inner = F.gelu(self.mlp.fc1(shuffled.flatten(0, 2)))
        return F.gelu(self.mlp.fc2(inner))


def _shuffled(x: torch.Tensor, merge: int) -> torch.Tensor:
    """Join `merge` neighbours of a row [n, height, width, C] → [n, width / merge, height, C ·
    merge]; rows and columns change places."""
    return x.unflatten(2, (-1, merge)).flatten(3).transpose(1, 2).contiguous()


class _Vision(nn.Module):
    def __init__(self, facts: Llama4VisionFacts, ops: Ops) -> None:
        super().__init__()
        size = facts.hidden_size
        self.patch_embedding = _PatchEmbedding(facts)
        self.class_embedding = empty(size)
        self.positional_embedding_vlm = empty(facts.side**2 + 1, size)
        self.layernorm_pre, self.layernorm_post = LayerNorm(size, _EPS), LayerNorm(size, _EPS)
        self.model = _Layers(facts, ops)
        self.vision_adapter = _Adapter(facts)


class _Projector(nn.Module):
    def __init__(self, facts: Llama4VisionFacts) -> None:
        super().__init__()
        self.linear_1 = Dense(facts.output_size, facts.adapter_size, bias=False)


class Llama4VisionEncoder(ImageEncoder):
    unused = ("vision_model.rotary_embedding.",)

    def __init__(self, spec: VisionSpec, ops: Ops) -> None:
        super().__init__(spec, ops)
        assert isinstance(spec.facts, Llama4VisionFacts)
        self._facts = spec.facts
        self.vision_model = _Vision(spec.facts, ops)
        self.multi_modal_projector = _Projector(spec.facts)

    def encode(self, pixels: Sequence[torch.Tensor], grids: Sequence[Grid]) -> torch.Tensor:
        vision, side = self.vision_model, self._facts.side
        tiles, patches = sum(map(self._facts.tiles, grids)), side**2 + 1
        cut = [patches_of(each.to(self.outputs.dtype), self._facts.patches.size) for each in pixels]
        x = vision.patch_embedding.linear(torch.cat(cut))
        x = torch.cat((x, vision.class_embedding.expand(tiles, 1, -1)), dim=1)
        x = vision.layernorm_pre(x + vision.positional_embedding_vlm).flatten(0, 1)
        by = repeated([(self._rotation(x.device), tiles)])
        for layer in vision.model.layers:
            x = layer(x, by, [(tiles, patches)])
        x = vision.layernorm_post(x).unflatten(0, (tiles, patches))[:, :-1]
        adapted = vision.vision_adapter(x.unflatten(1, (side, side)))
        return cast(torch.Tensor, self.multi_modal_projector.linear_1(adapted))

    def _rotation(self, device: torch.device) -> Rotation:
        """Compute the rotation of a tile's patches, counted from 1, by columns and then by rows;
        the class patch does not rotate."""
        facts = self._facts
        frequencies = frequencies_of(facts.theta, facts.head_dim // 2, device)
        rows, columns = (
            F.pad(each + 1, (0, 1)) for each in places_of((1, facts.side, facts.side), device)
        )
        return rotation(columns, rows, (frequencies, frequencies))
