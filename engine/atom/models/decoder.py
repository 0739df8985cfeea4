"""The decoder that all models are: pre-norm attention and a gated MLP, or experts.

x → x + Attention(RMSNorm(x)) → x + MLP(RMSNorm(x)), all norms RMS, rotary positions, grouped-query
heads or those of a latent (mla.py). Built from a ModelSpec, layer by layer; a family
(llama.py, gemma.py) says what differs. It knows neither backends nor processes; layers do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import torch
from torch import nn

from atom.model_ops.attention import Attention, CachedLayer
from atom.model_ops.embed_head import ParallelLMHead, VocabParallelEmbedding
from atom.model_ops.layernorm import Normed, RMSNorm
from atom.model_ops.linear import Build, Linear
from atom.model_ops.linear_attention import DeltaShape
from atom.model_ops.moe.router import Router
from atom.model_ops.moe.stacked_linear import StackedLinear
from atom.model_ops.placement import Placement
from atom.model_ops.rotary_embedding import RopeConfig, RotaryEmbedding, head_order
from atom.model_ops.values import AttentionShape, LatentShape, Stream
from atom.model_ops.whole_heads_norm import WholeHeadsNorm, norm_queries_and_keys
from atom.models.blocks.delta_net import GatedDeltaNet
from atom.models.blocks.hidden_states import HiddenStates
from atom.models.blocks.mla import MLASelfAttention
from atom.models.blocks.mlp import MoE, build_mlp
from atom.models.spec import LayerSpec, ModelSpec, NormPlacement, NormSpec
from atom.utils.forward_context import get_forward_context


class SelfAttention(nn.Module):
    def __init__(self, spec: LayerSpec, rotary: RotaryEmbedding, build: Build) -> None:
        super().__init__()
        assert isinstance(spec.attention, AttentionShape)
        q, k, v, o = (spec.matrices[f"self_attn.{name}_proj"] for name in "qkvo")
        order = head_order(spec.rope)
        self._gate_heads = spec.attention.num_heads if spec.facts.attention.output_gate else 0
        q_order = _behind_queries(order) if self._gate_heads else order
        self.qkv_proj = Linear((q, k, v), build, orders={q.name: q_order, k.name: order})
        self.o_proj = Linear((o,), build)
        norms, size = None, spec.attention.head_dim
        self.q_norm: nn.Module
        self.k_norm: nn.Module
        self._whole_norms: tuple[WholeHeadsNorm, WholeHeadsNorm] | None = None
        if spec.facts.attention.qk_norm:
            norms = (_norm(size, spec.norm, build, order), _norm(size, spec.norm, build, order))
            self.q_norm, self.k_norm = norms
        elif spec.facts.attention.qk_norm_whole:
            whole = [WholeHeadsNorm(matrix, spec.norm.eps, build, order) for matrix in (q, k)]
            self.q_norm, self.k_norm = whole
            self._whole_norms = (whole[0], whole[1])
        elif spec.head_norm is not None:
            self.head_norm = RMSNorm(size, spec.head_norm.eps, ops=build.ops, is_unit=True)
            norms = (self.head_norm, self.head_norm)
        shape, self.sinks = spec.attention, None
        self._all_heads = spec.facts.attention.num_heads
        self._heads = build.ranks.of(self._all_heads)
        self._build = build
        if shape.has_sinks:
            sinks = torch.empty(shape.num_heads, dtype=torch.float32)
            self.sinks = nn.Parameter(sinks, requires_grad=False)
            shape = replace(shape, sinks=sinks)
        self.attn = Attention(shape, rotary, norms=norms, ops=build.ops)

    def placements(self, name: str) -> Iterator[Placement]:
        """Yield where the sinks come from in a checkpoint, if there are any."""
        if self.sinks is not None:
            region = (self._heads,)
            yield Placement(f"{name}.sinks", (self._all_heads,), region, self.sinks.data)

    def forward(self, h: Normed | torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return what every head found, [T, Hq·D]; `o_proj` is left to the layer."""
        qkv, gate = self.qkv_proj(h), None
        if self._gate_heads:
            qkv, gate = self._without_gates(qkv)
        if self._whole_norms is not None:
            norm_queries_and_keys(qkv, self._whole_norms, self._build)
        attended: torch.Tensor = self.attn(qkv, positions)
        return attended if gate is None else attended * gate.sigmoid()

    def _without_gates(self, projected: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Take gates [T, Hq·D] out of what the projections gave, in which each head has its own
        behind its query."""
        size = self._gate_heads * self.attn.shape.head_dim
        gated, kv = projected.tensor_split([2 * size], dim=1)
        queries, gates = gated.unflatten(1, (self._gate_heads, 2, -1)).unbind(2)
        return torch.cat((queries.flatten(1), kv), dim=1), gates.flatten(1)


def _behind_queries(order: torch.Tensor | None) -> torch.Tensor | None:
    """The order of a head's query and of its gate, whose elements stay."""
    return None if order is None else torch.cat((order, torch.arange(len(order)) + len(order)))


class DecoderLayer(nn.Module):
    """A decoder layer: attention, then MLP or experts. is_last: from its attention on it goes on
    with the tokens that are looked at alone."""

    is_last = False

    def __init__(
        self, spec: LayerSpec, rotary: RotaryEmbedding, build: Build, hidden_size: int
    ) -> None:
        super().__init__()
        self.input_layernorm = _norm(hidden_size, spec.norm, build)
        self._is_linear = isinstance(spec.attention, DeltaShape)
        if self._is_linear:  # named as in a checkpoint
            self.linear_attn = GatedDeltaNet(spec, build)
        else:
            is_latent = isinstance(spec.attention, LatentShape)
            self.self_attn = (MLASelfAttention if is_latent else SelfAttention)(spec, rotary, build)
        self.post_attention_layernorm = _norm(hidden_size, spec.norm, build)
        self.mlp = build_mlp(spec, build)
        self._group = build.group

    @property
    def attention(self) -> SelfAttention | MLASelfAttention | GatedDeltaNet:
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
        h = self.input_layernorm(stream)
        attended = self.attention(h, positions)
        if aux is not None:
            aux.copy_(h.stream.residual)
        stream, attended = self.logits_indices(h.stream, attended)
        return stream, self._group.reduce(self.attention.o_proj(attended))

    def logits_indices(self, stream: Stream, attended: torch.Tensor) -> tuple[Stream, torch.Tensor]:
        """Keep, in the last layer, the tokens whose hidden states are wanted."""
        tokens = get_forward_context().logits_indices if self.is_last else None
        return (stream, attended) if tokens is None else (stream.of(tokens), attended[tokens])


class SandwichLayer(DecoderLayer):
    """Hold what attention and MLP give is normed once more before it is added (Gemma 2 and 3)."""

    def __init__(
        self, spec: LayerSpec, rotary: RotaryEmbedding, build: Build, hidden_size: int
    ) -> None:
        super().__init__(spec, rotary, build, hidden_size)
        self.pre_feedforward_layernorm = _norm(hidden_size, spec.norm, build)
        self.post_feedforward_layernorm = _norm(hidden_size, spec.norm, build)

    def forward(
        self, stream: Stream, positions: torch.Tensor, aux: torch.Tensor | None = None
    ) -> Stream:
        stream, projected = self.attend(stream, positions, aux)
        h = self.pre_feedforward_layernorm(stream.plus(self.post_attention_layernorm.of(projected)))
        projected = self._group.reduce(self.mlp(h))
        return h.stream.plus(self.post_feedforward_layernorm.of(projected))


class PostNormLayer(DecoderLayer):
    """Norm what attention and MLP give, and not what they are given (OLMo 3, EXAONE 4)."""

    def __init__(
        self, spec: LayerSpec, rotary: RotaryEmbedding, build: Build, hidden_size: int
    ) -> None:
        super().__init__(spec, rotary, build, hidden_size)
        del self.input_layernorm
        self.post_feedforward_layernorm = _norm(hidden_size, spec.norm, build)

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


def _layer_class(spec: LayerSpec) -> type[DecoderLayer]:
    return ScaledLayer if spec.residual_scale != 1.0 else _LAYERS[spec.norms]


class Decoder(nn.Module):
    """Embedding, layers and the last norm: `model.` in checkpoints."""

    def __init__(self, spec: ModelSpec, build: Build) -> None:
        super().__init__()
        self.embed_tokens = VocabParallelEmbedding(
            spec.vocab_size, spec.hidden_size, build, scale=spec.embedding_scale
        )
        kinds = dict.fromkeys(layer.rope for layer in spec.layers)
        self._rope_kinds = tuple(kinds)
        self.ropes = nn.ModuleList(RotaryEmbedding(rope, spec.max_position) for rope in kinds)
        self.layers = nn.ModuleList(
            _layer_class(layer)(layer, self.rotary_of(layer.rope), build, spec.hidden_size)
            for layer in spec.layers
        )
        cast(DecoderLayer, self.layers[-1]).is_last = True
        self.norm = _norm(spec.hidden_size, spec.norm, build)
        self._logits_scale = spec.logits_scale
        self._aux_layers = {layer: number for number, layer in enumerate(spec.aux_layers)}

    def rotary_of(self, rope: RopeConfig) -> RotaryEmbedding:
        """The table of a kind of rope that some layer has."""
        return cast(RotaryEmbedding, self.ropes[self._rope_kinds.index(rope)])

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> HiddenStates:
        """Compute input_ids [T] at positions [T] → hidden states, the last of the tokens that the
        forward context says are looked at."""
        stream, aux = Stream(self.embed_tokens(input_ids)), None
        if self._aux_layers:
            size = stream.residual.shape
            aux = stream.residual.new_empty(size[0], len(self._aux_layers), size[1])
        for index, layer in enumerate(self.layers):
            number = self._aux_layers.get(index)
            seen = None if aux is None or number is None else aux[:, number]
            stream = layer(stream, positions, seen)
        last = self.norm(stream).tensor()
        if self._logits_scale != 1.0:
            last = last * self._logits_scale
        return HiddenStates(last, None if aux is None else aux.flatten(1))


class CausalLM(nn.Module):
    """A decoder, `model`, with its output head, `lm_head`: a step runs one, then the other on the
    rows that sample."""

    def __init__(self, spec: ModelSpec, build: Build) -> None:
        super().__init__()
        self.spec = spec
        self._exchange = build.exchange
        self.model = Decoder(spec, build)
        self.lm_head = ParallelLMHead(
            spec.vocab_size, spec.hidden_size, build, softcap=spec.logits_softcap
        )
        if spec.tie_word_embeddings:
            self.lm_head.tie(self.model.embed_tokens)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:  # [R, H] → [R, V]
        return self.lm_head(hidden)

    def set_dp_padding(self, capacity: int | None) -> None:
        """Set how many tokens each of the ranks that share experts sends every other in a step that
        follows (PaddedDispatch.set_dp_padding)."""
        if self._exchange is not None:
            self._exchange.set_dp_padding(capacity)

    @property
    def shares_tokens(self) -> bool:
        """Return whether ranks with tokens of their own compute each other's experts."""
        return self._exchange is not None

    def run_dummy_batch(self) -> None:
        """Compute the layers' experts for other ranks' tokens, in a step without any of ours."""
        for layer in self.model.layers:
            mlp = cast(DecoderLayer, layer).mlp
            if isinstance(mlp, MoE):
                mlp.run_dummy_batch()

    def unused_tensors(self) -> tuple[str, ...]:
        """Return how names of tensors begin that a checkpoint may hold and this model does not
        compute: the layers that predict further tokens, and experts of other ranks."""
        first = len(self.spec.layers)
        last = first + len(self.spec.mtp_layers)
        others = (
            begin
            for name, module in self.named_modules()
            if isinstance(module, StackedLinear)
            for begin in module.elsewhere(name)
        )
        drafting = ("mtp.", *(f"model.layers.{index}." for index in range(first, last)))
        return (*drafting, *others)


def finish_weights(model: nn.Module) -> None:
    """Let the backend arrange a model's loaded weights as it wants them."""
    for module in model.modules():
        if isinstance(module, Linear | StackedLinear | Router | ParallelLMHead | RMSNorm):
            module.finish()


def held_bytes(model: nn.Module) -> int:
    """Bytes of a model's parameters and of its tables by position, each counted once."""
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))


def attention_layers(model: nn.Module) -> list[CachedLayer]:
    """A model's attention layers, of every kind, in the order of its layers."""
    return [module for module in model.modules() if isinstance(module, CachedLayer)]


def _norm(size: int, norm: NormSpec, build: Build, order: torch.Tensor | None = None) -> RMSNorm:
    return RMSNorm(size, norm.eps, ops=build.ops, unit_offset=norm.unit_offset, order=order)
