"""The layers of a decoder: attention, then MLP or experts, with norms before, around or behind.

x → x + Attention(RMSNorm(x)) → x + MLP(RMSNorm(x)) where nothing else is said; a class for each
other order, chosen by `layer_class`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from atom.model_ops.linear import Build
from atom.model_ops.placement import Placement
from atom.model_ops.rotary_embedding import RotaryEmbedding
from atom.model_ops.values import LatentShape, Stream
from atom.models.decoder.layer_norm import build_norm
from atom.models.decoder.mla import MLASelfAttention
from atom.models.decoder.mlp import build_mlp
from atom.models.decoder.self_attention import SelfAttention
from atom.models.decoder.spec import LayerSpec, NormPlacement
from atom.models.decoder.state_block import StateBlock, state_block
from atom.sizing.states import StateShape
from atom.utils.forward_context import get_forward_context, narrow_lora


class DecoderLayer(nn.Module):
    """A decoder layer: attention, then MLP or experts. is_last: from its attention on it goes on
    with the tokens that are looked at alone."""

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
            is_latent = isinstance(spec.attention, LatentShape)
            self.self_attn = (MLASelfAttention if is_latent else SelfAttention)(spec, rotary, build)
        if not spec.facts.mlp.is_absent:
            self.post_attention_layernorm = build_norm(hidden_size, spec.norm, build)
            self.mlp = build_mlp(spec, build)
        self._group = build.group

    @property
    def attention(self) -> SelfAttention | MLASelfAttention | StateBlock:
        """The layer's attention, of whichever kind."""
        return self.linear_attn if self._is_linear else self.self_attn

    def forward(
        self, stream: Stream, positions: torch.Tensor, aux: torch.Tensor | None = None
    ) -> Stream:
        """Run the layer; aux [T, H] is filled with what the layer was given, an auxiliary hidden
        state."""
        h = self.input_layernorm(stream)
        attended = self.attention(h, positions)
        if aux is not None:
            aux.copy_(h.stream.residual)
        stream, attended = self.logits_indices(h.stream, attended)
        stream = self.attention.o_proj.add(stream, attended)
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
        """Return the stream, and what every head found in it, before the output's projection: as
        `forward` begins, for layers that go on otherwise."""
        h = self.input_layernorm(stream)
        attended = self.attention(h, positions)
        if aux is not None:
            aux.copy_(h.stream.residual)
        return self.logits_indices(h.stream, attended)

    def logits_indices(self, stream: Stream, attended: torch.Tensor) -> tuple[Stream, torch.Tensor]:
        """Keep, in the last layer, the tokens whose hidden states are wanted."""
        tokens = get_forward_context().logits_indices if self.is_last else None
        if tokens is None:
            return stream, attended
        narrow_lora(tokens)
        return stream.of(tokens), attended[tokens]


class MixerLayer(DecoderLayer):
    """End behind the attention (Nemotron-H, where a mixer follows another)."""

    def forward(
        self, stream: Stream, positions: torch.Tensor, aux: torch.Tensor | None = None
    ) -> Stream:
        stream, attended = self._attended(stream, positions, aux)
        return self.attention.o_proj.add(stream, attended)


class SandwichLayer(DecoderLayer):
    """Hold what attention and MLP give is normed once more before it is added (Gemma 2 and 3)."""

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
        projected = self._group.reduce(self.mlp(h))
        return h.stream.plus(self.post_feedforward_layernorm.of(projected))


class FactorLayer(SandwichLayer):
    """Multiply what the layer gives by a number of its own (Gemma 4)."""

    def __init__(
        self, spec: LayerSpec, rotary: RotaryEmbedding, build: Build, hidden_size: int
    ) -> None:
        super().__init__(spec, rotary, build, hidden_size)
        self.layer_scalar = nn.Parameter(torch.empty(1), requires_grad=False)

    def placements(self, name: str) -> Iterator[Placement]:
        """Yield where the factor comes from in a checkpoint."""
        yield Placement.whole(f"{name}.layer_scalar", self.layer_scalar.data)

    def forward(
        self, stream: Stream, positions: torch.Tensor, aux: torch.Tensor | None = None
    ) -> Stream:
        given = super().forward(stream, positions, aux).settled()
        return Stream(given.residual * self.layer_scalar)


class PostNormLayer(DecoderLayer):
    """Norm what attention and MLP give, and not what they are given (OLMo 3, EXAONE 4)."""

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
    """Scale what attention and MLP give before it is added (Granite)."""

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


_LAYERS = {
    NormPlacement.BEFORE: DecoderLayer,
    NormPlacement.AROUND: SandwichLayer,
    NormPlacement.BEHIND: PostNormLayer,
}


def layer_class(spec: LayerSpec) -> type[DecoderLayer]:
    if spec.facts.mlp.is_absent:
        return MixerLayer
    if spec.facts.output_factor:
        assert spec.norms is NormPlacement.AROUND, "no layer without has such a factor"
        return FactorLayer
    return ScaledLayer if spec.residual_scale != 1.0 else _LAYERS[spec.norms]
