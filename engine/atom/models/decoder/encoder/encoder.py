"""Encoder: embeddings, layers that attend in both directions, and each prompt's pooled vector.

A step has whole prompts only: the scheduler cuts none. A layer's keys and values go through the
cache's pages, so the kernels are those of decoders, and `last_seen` of the step makes each token
see the whole prompt. Built by CausalLM in place of a Decoder.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import nn

from atom.model_ops.embed_head import VocabParallelEmbedding
from atom.model_ops.linear import Build
from atom.model_ops.rotary_embedding import RotaryEmbedding
from atom.models.decoder.encoder.label_head import LabelHead
from atom.models.decoder.encoder.parts import EncoderMlp, EncoderNorm, WholeMatrix
from atom.models.decoder.encoder.pooled_rows import pooled_rows
from atom.models.decoder.hidden_states import HiddenStates
from atom.models.decoder.self_attention import SelfAttention
from atom.models.decoder.spec import EncoderSpec, LayerSpec, ModelSpec
from atom.utils.forward_context import get_forward_context


class EncoderLayer(nn.Module):
    """Attention and an MLP, each added to its input."""

    def __init__(
        self, layer: LayerSpec, spec: EncoderSpec, rotary: RotaryEmbedding, build: Build
    ) -> None:
        super().__init__()
        self.self_attn = SelfAttention(layer, rotary, build)
        self.mlp = EncoderMlp(layer, spec, build)
        self._group = build.group

    def attend(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:  # [T, H]
        """Return the output of attention for its input, summed over the ranks."""
        return self._group.reduce(self.self_attn.o_proj(self.self_attn(x, positions)))


class NormedSumsLayer(EncoderLayer):
    """A layer with a norm after each sum (BERT)."""

    def __init__(
        self, layer: LayerSpec, spec: EncoderSpec, rotary: RotaryEmbedding, build: Build, size: int
    ) -> None:
        super().__init__(layer, spec, rotary, build)
        self.attention_norm = EncoderNorm(size, spec)
        self.output_norm = EncoderNorm(size, spec)

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = self.attention_norm(x + self.attend(x, positions))
        return cast(torch.Tensor, self.output_norm(x + self.mlp(x)))


class NormedInputsLayer(EncoderLayer):
    """A layer with a norm before attention, unless it is the first one, and before the MLP
    (ModernBERT)."""

    def __init__(
        self, layer: LayerSpec, spec: EncoderSpec, rotary: RotaryEmbedding, build: Build, size: int
    ) -> None:
        super().__init__(layer, spec, rotary, build)
        vectors = 2 if spec.norm_bias else 1
        is_first = layer.facts.norms == vectors
        self.attention_norm = None if is_first else EncoderNorm(size, spec)
        self.mlp_norm = EncoderNorm(size, spec)

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        # No name holds the normed input, which would take memory during the MLP, too.
        x = x + self.attend(x if self.attention_norm is None else self.attention_norm(x), positions)
        return cast(torch.Tensor, x + self.mlp(self.mlp_norm(x)))


class Encoder(nn.Module):
    """A text encoder: `model.` in the engine's names."""

    def __init__(self, spec: ModelSpec, build: Build) -> None:
        super().__init__()
        encoder, size = spec.encoder, spec.hidden_size
        assert encoder is not None
        facts = encoder.facts
        self.embed_tokens = VocabParallelEmbedding(spec.vocab_size, size, build)
        self.embed_positions = WholeMatrix(facts.positions, size) if facts.positions else None
        self.embed_types = WholeMatrix(facts.token_types, size) if facts.token_types else None
        self.embed_norm = EncoderNorm(size, encoder)
        kinds = dict.fromkeys(layer.rope for layer in spec.layers)
        self.ropes = nn.ModuleList(RotaryEmbedding(rope, spec.max_position) for rope in kinds)
        ropes = dict(zip(kinds, self.ropes, strict=True))
        make = NormedSumsLayer if encoder.norms_sums else NormedInputsLayer
        self.layers = nn.ModuleList(
            make(layer, encoder, cast(RotaryEmbedding, ropes[layer.rope]), build, size)
            for layer in spec.layers
        )
        self.final_norm = None if encoder.norms_sums else EncoderNorm(size, encoder)
        self._vocab_size, self._first_position = spec.vocab_size, facts.first_position
        self._pooled, self.unused = encoder.pooled, encoder.unused
        self.label_head = None
        if encoder.head is not None:
            self.label_head = LabelHead(encoder.head, encoder, size)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> HiddenStates:
        """Compute input_ids [T] at positions [T] → a vector of each wanted prompt, or its
        labels."""
        x = self.hidden(input_ids, positions)
        context = get_forward_context()
        starts = context.attention[0].query_starts
        vectors = pooled_rows(x, starts, context.logits_indices, self._pooled)
        return HiddenStates(vectors if self.label_head is None else self.label_head(vectors))

    def hidden(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Compute the hidden states [T, H] of all tokens. Ids from the vocabulary's size on are of
        a prompt's second segment."""
        x = self.embed_tokens(input_ids % self._vocab_size)
        if self.embed_types is not None:
            segments = (input_ids // self._vocab_size).clamp_(max=len(self.embed_types.weight) - 1)
            x = x + self.embed_types.weight[segments]
        if self.embed_positions is not None:
            x = x + self.embed_positions.weight[positions + self._first_position]
        x = self.embed_norm(x)
        for layer in self.layers:
            x = layer(x, positions)
        return x if self.final_norm is None else cast(torch.Tensor, self.final_norm(x))
