"""The decoder that all models share: pre-norm attention, then a gated MLP or experts.

x → x + Attention(RMSNorm(x)) → x + MLP(RMSNorm(x)), all norms RMS, rotary positions, grouped-query
or latent heads. The decoder is built from a ModelSpec, layer by layer (decoder_layers.py). A
family's file (llama.py, gemma.py) states its differences. The decoder knows neither backends nor
processes; layers do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import torch
from torch import nn

from atom.model_ops.attention import CachedLayer
from atom.model_ops.embed_head import ParallelLMHead, VocabParallelEmbedding
from atom.model_ops.layernorm import RMSNorm
from atom.model_ops.linear import Build, Linear
from atom.model_ops.moe.router import Router
from atom.model_ops.moe.stacked_linear import StackedLinear
from atom.model_ops.rotary_embedding import RopeConfig, RotaryEmbedding
from atom.model_ops.values import Stream
from atom.models.decoder.decoder_layers import DecoderLayer
from atom.models.decoder.encoder.encoder import Encoder
from atom.models.decoder.fallback.fallback_decoder import FallbackDecoder, GivenLogits
from atom.models.decoder.hidden_states import HiddenStates
from atom.models.decoder.hyper_connections import HyperHead
from atom.models.decoder.layer_class import layer_class
from atom.models.decoder.layer_norm import build_norm
from atom.models.decoder.mlp import MoE
from atom.models.decoder.per_layer_inputs import PerLayerInputs
from atom.models.decoder.shared_kv_attention import SharedKvAttention
from atom.models.decoder.spec import ModelSpec
from atom.models.vision.registry import build_encoder
from atom.sizing.attention.kinds import SharedKvAttention as SharedKvFacts
from atom.utils.forward_context import ImageTokens, get_forward_context


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
            layer_class(layer)(layer, self.rotary_of(layer.rope), build, spec.hidden_size)
            for layer in spec.layers
        )
        self._share_keys(spec)
        cast(DecoderLayer, self.layers[-1]).is_last = True
        self.per_layer_inputs = None
        if spec.per_layer_inputs is not None:
            self.per_layer_inputs = PerLayerInputs(
                spec.per_layer_inputs, spec.hidden_size, spec.norm, build
            )
        self.hc_head, streams = None, spec.layers[0].streams
        if streams is not None:
            self.hc_head = HyperHead(streams, spec.hidden_size)
        self._streams = 1 if streams is None else streams.count
        self.norm = build_norm(spec.hidden_size, spec.norm, build)
        self._logits_scale = spec.logits_scale
        self._aux_layers = {layer: number for number, layer in enumerate(spec.aux_layers)}
        vision = spec.vision
        self._image_layers = 0 if vision is None else vision.facts.decoder_layers

    def _share_keys(self, spec: ModelSpec) -> None:
        """Let layers without their own keys attend to another layer's."""
        attentions = [cast(DecoderLayer, layer).attention for layer in self.layers]
        for layer, attention in zip(spec.layers, attentions, strict=True):
            if isinstance(attention, SharedKvAttention):
                facts = layer.facts.attention
                assert isinstance(facts, SharedKvFacts)
                attention.share(attentions[facts.target])

    def rotary_of(self, rope: RopeConfig) -> RotaryEmbedding:
        """Return the table of a kind of rope that some layer has."""
        return cast(RotaryEmbedding, self.ropes[self._rope_kinds.index(rope)])

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> HiddenStates:
        """Compute input_ids [T] at positions [T] → hidden states; the last ones only of the tokens
        that the forward context selects for logits."""
        images = get_forward_context().images
        embedded = self.embed_tokens(input_ids)
        if images is not None:
            embedded[images.tokens] = images.outputs[:, : embedded.shape[1]]
        stream, aux = Stream(embedded), None
        inputs = None
        if self.per_layer_inputs is not None:
            ids = input_ids
            if images is not None:
                ids = ids.index_fill(0, images.tokens, self.per_layer_inputs.image_id)
            inputs = self.per_layer_inputs(ids, stream.residual)
        if self._aux_layers:
            size = stream.residual.shape
            aux = stream.residual.new_empty(size[0], len(self._aux_layers), size[1])
        own: tuple[torch.Tensor, ...] = ()
        if self.hc_head is not None:
            streams = stream.residual.unsqueeze(1).expand(-1, self._streams, -1)
            stream, own = Stream(streams.contiguous()), (input_ids,)
        for index, layer in enumerate(self.layers):
            number = self._aux_layers.get(index)
            seen = None if aux is None or number is None else aux[:, number]
            own = own if inputs is None else (inputs[:, index],)
            stream = layer(stream, positions, seen, *own)
            if images is not None and index < self._image_layers:
                stream = _with_outputs(stream, images, index + 1)
        if self.hc_head is not None:
            stream = Stream(self.hc_head(stream.residual))
        normed = self.norm(stream)
        last, number = normed.tensor(), self._aux_layers.get(len(self.layers))
        if aux is not None and number is not None:
            aux[:, number] = normed.stream.residual
        if self._logits_scale != 1.0:
            last = last * self._logits_scale
        return HiddenStates(last, None if aux is None else aux.flatten(1), input_ids)


def _with_outputs(stream: Stream, images: ImageTokens, part: int) -> Stream:
    """Add part `part` of images' outputs to the stream of their tokens, of which a sum may still be
    pending."""
    size = stream.residual.shape[1]
    residual = stream.residual.clone()
    residual[images.tokens] += images.outputs[:, part * size : (part + 1) * size]
    return replace(stream, residual=residual)


class CausalLM(nn.Module):
    """A decoder, `model`, with its output head, `lm_head`: a step runs one, then the other on the
    rows that sample. A text encoder takes the decoder's place, whose head is unused, or a class
    of transformers, which computes logits itself. vision: the encoder of images, None for a model
    of text."""

    def __init__(self, spec: ModelSpec, build: Build) -> None:
        super().__init__()
        self.spec = spec
        self._exchange = build.exchange
        self.model: Decoder | Encoder | FallbackDecoder
        self.lm_head: ParallelLMHead | GivenLogits
        if spec.fallback is not None:
            self.model = FallbackDecoder(spec.fallback, build)
            self.lm_head = GivenLogits(build.ops)
            self.vision = None
            return
        self.model = Decoder(spec, build) if spec.encoder is None else Encoder(spec, build)
        self.lm_head = ParallelLMHead(
            spec.vocab_size, spec.hidden_size, build, softcap=spec.logits_softcap
        )
        self.vision = None if spec.vision is None else build_encoder(spec.vision, build.ops)
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
        """Return whether ranks with their own tokens compute each other's experts."""
        return self._exchange is not None

    def run_dummy_batch(self) -> None:
        """Compute the layers' experts for other ranks' tokens, in a step without any of ours."""
        for layer in self.model.layers:
            for module in layer.children():  # in parallel with an MLP, in its place, or none
                if isinstance(module, MoE):
                    module.run_dummy_batch()

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
        drafting = (
            "mtp.",
            "model.mtp.",
            *(f"model.layers.{index}." for index in range(first, last)),
        )
        unseen = () if self.vision is None else self.vision.unused
        if self.spec.encoder is not None:
            unseen = self.spec.encoder.unused
        return (*drafting, *others, *self._unused_keys(), *unseen)

    def _unused_keys(self) -> Iterator[str]:
        """Yield the name prefixes of unused matrices: published checkpoints have key and value
        matrices also for layers that attend to another layer's keys."""
        for index, layer in enumerate(self.spec.layers):
            if isinstance(layer.facts.attention, SharedKvFacts):
                for name in ("k_proj", "v_proj", "k_norm", "v_norm"):
                    yield f"model.layers.{index}.self_attn.{name}."


def finish_weights(model: nn.Module) -> None:
    """Let the backend arrange a model's loaded weights as it wants them."""
    for module in model.modules():
        if isinstance(module, Linear | StackedLinear | Router | ParallelLMHead | RMSNorm):
            module.finish()


def held_bytes(model: nn.Module) -> int:
    """Return the bytes of a model's parameters and of its tables by position, each counted once."""
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))


def attention_layers(model: nn.Module) -> list[CachedLayer]:
    """Return a model's attention layers, of every kind, in the order of its layers."""
    return [module for module in model.modules() if isinstance(module, CachedLayer)]
