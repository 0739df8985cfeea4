"""The decoder that all models are: pre-norm attention and a gated MLP, or experts.

x → x + Attention(RMSNorm(x)) → x + MLP(RMSNorm(x)), all norms RMS, rotary positions, grouped-query
heads or those of a latent. Built from a ModelSpec, layer by layer (decoder_layers.py); a
family (llama.py, gemma.py) says what differs. It knows neither backends nor processes; layers do.
"""

from __future__ import annotations

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
from atom.models.decoder.decoder_layers import DecoderLayer, layer_class
from atom.models.decoder.hidden_states import HiddenStates
from atom.models.decoder.layer_norm import build_norm
from atom.models.decoder.mlp import MoE
from atom.models.decoder.spec import ModelSpec


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
        cast(DecoderLayer, self.layers[-1]).is_last = True
        self.norm = build_norm(spec.hidden_size, spec.norm, build)
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
            mlp = getattr(layer, "mlp", None)  # some layers end behind their attention
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
        drafting = (
            "mtp.",
            "model.mtp.",
            *(f"model.layers.{index}." for index in range(first, last)),
        )
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
