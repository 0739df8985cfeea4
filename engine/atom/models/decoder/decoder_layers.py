"""The layers of a decoder: attention, then MLP or experts, with norms before, around or after.

The default order is x → x + Attention(RMSNorm(x)) → x + MLP(RMSNorm(x)); each other order has a
class. layer_class.py selects the class.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import nn

from atom.model_ops.compressed_attention import CompressedShape
from atom.model_ops.linear import Build, Linear
from atom.model_ops.rotary_embedding import RotaryEmbedding
from atom.model_ops.values import LatentShape, Stream
from atom.models.decoder.layer_norm import build_norm
from atom.models.decoder.mla import MLASelfAttention
from atom.models.decoder.mlp import build_mlp
from atom.models.decoder.self_attention import SelfAttention
from atom.models.decoder.shared_kv_attention import SharedKvAttention
from atom.models.decoder.spec import LayerSpec
from atom.models.decoder.state_block import StateBlock, state_block
from atom.models.decoder.windowed_entries import WindowedEntriesAttention
from atom.sizing.attention.kinds import SharedKvAttention as SharedKvFacts
from atom.sizing.states import StateShape
from atom.utils.forward_context import get_forward_context, narrow_lora

HeadsBlock = SelfAttention | SharedKvAttention | MLASelfAttention | WindowedEntriesAttention
AttentionBlock = HeadsBlock | StateBlock


class DecoderLayer(nn.Module):
    """A decoder layer: attention, then MLP or experts. is_last: after attention, it processes only
    the tokens that need logits."""

    is_last = False

    def __init__(
        self, spec: LayerSpec, rotary: RotaryEmbedding, build: Build, hidden_size: int
    ) -> None:
        super().__init__()
        self.input_layernorm = build_norm(hidden_size, spec.norm, build)
        self._is_linear = isinstance(spec.attention, StateShape)
        if self._is_linear:
            self.linear_attn = state_block(spec, build)
        else:
            self.self_attn = _attention_class(spec)(spec, rotary, build)
        if not spec.facts.mlp.is_absent:
            self.post_attention_layernorm = build_norm(hidden_size, spec.norm, build)
            self.mlp = build_mlp(spec, build)
        self._group = build.group

    @property
    def attention(self) -> AttentionBlock:
        """Return the layer's attention, of either kind."""
        return self.linear_attn if self._is_linear else self.self_attn

    @property
    def _output(self) -> Linear:
        """Return the projection of the heads' results, if there is a single one."""
        return cast(Linear, self.attention.o_proj)

    def forward(
        self, stream: Stream, positions: torch.Tensor, aux: torch.Tensor | None = None
    ) -> Stream:
        """Run the layer; aux [T, H] is filled with the layer's input, an auxiliary hidden state."""
        h = self.input_layernorm(stream)
        attended = self.attention(h, positions)
        if aux is not None:
            aux.copy_(h.stream.residual)
        stream, attended = self.logits_indices(h.stream, attended)
        stream = self._output.add(stream, attended)
        return self.mlp.add(self.post_attention_layernorm(stream))

    def attend(
        self, stream: Stream, positions: torch.Tensor, aux: torch.Tensor | None
    ) -> tuple[Stream, torch.Tensor]:
        """Return the settled stream and what attention adds to it [T, H], summed over the ranks,
        for layers that change it first."""
        stream, attended = self._attended(stream, positions, aux)
        return stream, self._group.reduce(self.attention.o_proj(attended))

    def _attended(
        self, stream: Stream, positions: torch.Tensor, aux: torch.Tensor | None
    ) -> tuple[Stream, torch.Tensor]:
        """Return the stream, and the heads' results before the output's projection: the beginning
        of `forward`, for layers that continue in another way."""
        h = self.input_layernorm(stream)
        attended = self.attention(h, positions)
        if aux is not None:
            aux.copy_(h.stream.residual)
        return self.logits_indices(h.stream, attended)

    def logits_indices(self, stream: Stream, attended: torch.Tensor) -> tuple[Stream, torch.Tensor]:
        """Keep, in the last layer, the tokens whose hidden states are wanted."""
        tokens = self._wanted_tokens()
        return (stream, attended) if tokens is None else (stream.of(tokens), attended[tokens])

    def _wanted_tokens(self) -> torch.Tensor | None:
        """Return, in the last layer, the tokens that need logits, and restrict adapters to them;
        None for all tokens."""
        tokens = get_forward_context().logits_indices if self.is_last else None
        if tokens is not None:
            narrow_lora(tokens)
        return tokens


def _attention_class(spec: LayerSpec) -> type[HeadsBlock]:
    if isinstance(spec.attention, LatentShape):
        return MLASelfAttention
    if isinstance(spec.attention, CompressedShape):
        return WindowedEntriesAttention
    is_sharing = isinstance(spec.facts.attention, SharedKvFacts)
    return SharedKvAttention if is_sharing else SelfAttention


class MixerLayer(DecoderLayer):
    """A layer that ends after its attention (Nemotron-H, if one mixer follows another)."""

    def forward(
        self, stream: Stream, positions: torch.Tensor, aux: torch.Tensor | None = None
    ) -> Stream:
        stream, attended = self._attended(stream, positions, aux)
        return self._output.add(stream, attended)


class SandwichLayer(DecoderLayer):
    """A layer that also norms the results of attention and MLP before adding them (Gemma 2 and
    3)."""

    def __init__(
        self, spec: LayerSpec, rotary: RotaryEmbedding, build: Build, hidden_size: int
    ) -> None:
        super().__init__(spec, rotary, build, hidden_size)
        self.pre_feedforward_layernorm = build_norm(hidden_size, spec.norm, build)
        self.post_feedforward_layernorm = build_norm(hidden_size, spec.norm, build)

    def forward(
        self, stream: Stream, positions: torch.Tensor, aux: torch.Tensor | None = None
    ) -> Stream:
        stream, projected = self.attend(stream, positions, aux)
        h = self.pre_feedforward_layernorm(stream.plus(self.post_attention_layernorm.of(projected)))
        projected = self.with_experts(self._group.reduce(self.mlp(h)), h.stream)
        return h.stream.plus(self.post_feedforward_layernorm.of(projected))

    def with_experts(self, projected: torch.Tensor, stream: Stream) -> torch.Tensor:
        """Return the MLP's result [T, H]; layers that also have experts add the experts' result for
        the stream."""
        return projected


class PostNormLayer(DecoderLayer):
    """A layer that norms the results of attention and MLP, and not their inputs (OLMo 3, EXAONE
    4)."""

    def __init__(
        self, spec: LayerSpec, rotary: RotaryEmbedding, build: Build, hidden_size: int
    ) -> None:
        super().__init__(spec, rotary, build, hidden_size)
        del self.input_layernorm
        self.post_feedforward_layernorm = build_norm(hidden_size, spec.norm, build)

    def forward(
        self, stream: Stream, positions: torch.Tensor, aux: torch.Tensor | None = None
    ) -> Stream:
        stream = stream.settled()
        if aux is not None:
            aux.copy_(stream.residual)
        attended = self.attention(stream.residual, positions)
        stream, attended = self.logits_indices(stream, attended)
        projected = self._group.reduce(self.attention.o_proj(attended))
        stream = stream.plus(self.post_attention_layernorm.of(projected)).settled()
        projected = self._group.reduce(self.mlp(stream.residual))
        return stream.plus(self.post_feedforward_layernorm.of(projected))


class ScaledLayer(DecoderLayer):
    """A layer that scales the results of attention and MLP before adding them (Granite)."""

    def __init__(
        self, spec: LayerSpec, rotary: RotaryEmbedding, build: Build, hidden_size: int
    ) -> None:
        super().__init__(spec, rotary, build, hidden_size)
        self._scale = spec.residual_scale

    def forward(
        self, stream: Stream, positions: torch.Tensor, aux: torch.Tensor | None = None
    ) -> Stream:
        stream, projected = self.attend(stream, positions, aux)
        h = self.post_attention_layernorm(stream.plus(projected * self._scale))
        projected = self._group.reduce(self.mlp(h))
        return h.stream.plus(projected * self._scale)
