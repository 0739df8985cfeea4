"""DraftModel: a layer that predicts the token behind the next one, of a model's hidden states.

At position i it sees what the model made of token i, and token i + 1, and predicts token i + 2; of
its own output in the model's place it predicts on. Its layer keeps a cache of its own, in the same
blocks as the model's. Embedding and, of MTP layers, the head are the model's.

MtpDraft: the layer behind a DeepSeek-V3's or a GLM-4.5's own (arXiv 2412.19437, section 2.2).
Eagle3Draft: a checkpoint of its own that sees three of the model's layers and draws from a smaller
vocabulary (arXiv 2503.01840, LlamaForCausalLMEagle3). Built by registry.py; drafted with by
speculation/model_drafter.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import nn

from atom.model_ops.backends.interface import SamplingTensors
from atom.model_ops.embed_head import ParallelLMHead, VocabParallelEmbedding
from atom.model_ops.layernorm import Normed, RMSNorm
from atom.model_ops.linear import Build, Linear
from atom.model_ops.placement import Placement
from atom.model_ops.rotary_embedding import RotaryEmbedding
from atom.model_ops.values import Stream
from atom.models.decoder import CausalLM, DecoderLayer, SelfAttention
from atom.models.hidden_states import HiddenStates
from atom.models.mlp import build_mlp
from atom.models.spec import LayerSpec, ModelSpec, NormSpec
from atom.sizing.weights import Projection, Split
from atom.utils.forward_context import get_forward_context


class DraftModel(nn.Module, ABC):
    """forward: (token ids [T], positions [T], hidden [T, H]) → hidden [n, H] of the tokens that are
    looked at; of these `draw` makes drafts, and with these it goes on in the model's place."""

    def __init__(self, embedding: VocabParallelEmbedding) -> None:
        super().__init__()
        # Kept out of the module tree: its parameters are the model's.
        self._embedding = (embedding,)

    @abstractmethod
    def join(self, states: HiddenStates) -> torch.Tensor:
        """What it sees of the model's hidden states, [T, H]."""

    @abstractmethod
    def draw(self, hidden: torch.Tensor, sampling: SamplingTensors) -> torch.Tensor:
        """Drafts [R] int64 of its own hidden states [R, H], in the model's vocabulary."""

    @abstractmethod
    def placed_modules(self, checkpoint_names: frozenset[str]) -> Iterator[tuple[str, nn.Module]]:
        """Its modules by their names in a checkpoint that holds tensors of these names."""

    @abstractmethod
    def unused_tensors(self) -> tuple[str, ...]:
        """How names begin of what a checkpoint holds beside, and it does not compute."""

    @property
    def dtype(self) -> torch.dtype:
        """Of its hidden states."""
        return self._embedding[0].weight.dtype

    def _embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        embedded: torch.Tensor = self._embedding[0](token_ids)
        return embedded


class MtpDraft(DraftModel):
    """index: of the layer in the checkpoint, the first behind the model's."""

    def __init__(self, spec: ModelSpec, model: CausalLM, build: Build) -> None:
        super().__init__(model.model.embed_tokens)
        (layer,) = spec.drafts
        size, self._index, self._head = spec.hidden_size, len(spec.layers), (model.lm_head,)
        self.enorm = _norm(size, layer.norm, build)
        self.hnorm = _norm(size, layer.norm, build)
        self.eh_proj = Linear((_joining("eh_proj", size, 2 * size),), build)
        self.layer = DecoderLayer(layer, model.model.rotary_of(layer.rope), build, size)
        self.layer.is_last = True
        self.shared_head = _SharedHead(_norm(size, layer.norm, build))

    def join(self, states: HiddenStates) -> torch.Tensor:
        return states.last

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, hidden: torch.Tensor
    ) -> torch.Tensor:
        parts = (self.enorm.of(self._embed(token_ids)), self.hnorm.of(hidden))
        joined: torch.Tensor = self.eh_proj(torch.cat(parts, dim=1))
        return _settled(self.shared_head.norm(self.layer(Stream(joined), positions)))

    def draw(self, hidden: torch.Tensor, sampling: SamplingTensors) -> torch.Tensor:
        return self._head[0].draw(self.shared_head.norm.of(hidden), sampling)

    def placed_modules(self, checkpoint_names: frozenset[str]) -> Iterator[tuple[str, nn.Module]]:
        for name, module in self.named_modules():
            yield f"{self._prefix}{name.removeprefix('layer.')}", module

    def unused_tensors(self) -> tuple[str, ...]:
        return (f"{self._prefix}embed_tokens.", f"{self._prefix}shared_head.head.")

    @property
    def _prefix(self) -> str:
        return f"model.layers.{self._index}."


class _SharedHead(nn.Module):
    """The norm before the model's head."""

    def __init__(self, norm: RMSNorm) -> None:
        super().__init__()
        self.norm = norm


class Eagle3Draft(DraftModel):
    """spec: of the draft model, with its vocabulary; target: of the model that it drafts for, whose
    tapped layers it sees."""

    def __init__(
        self, spec: ModelSpec, target: ModelSpec, embedding: VocabParallelEmbedding, build: Build
    ) -> None:
        super().__init__(embedding)
        (layer,) = spec.layers
        size, taps = spec.hidden_size, len(target.taps)
        self.fc = Linear((_joining("fc", size, taps * target.hidden_size),), build)
        self.rope = RotaryEmbedding(layer.rope, spec.max_position)
        self.midlayer = _Eagle3Layer(layer, self.rope, build, size)
        self.norm = _norm(size, layer.norm, build)
        self.lm_head = ParallelLMHead(spec.vocab_size, size, build)
        self.vocabulary = None
        if spec.vocab_size != target.vocab_size:
            self.vocabulary = _DraftVocabulary(spec.vocab_size, target.vocab_size)
        self._ops = build.ops

    def join(self, states: HiddenStates) -> torch.Tensor:
        assert states.tapped is not None, "the model's layers are tapped for this draft model"
        joined: torch.Tensor = self.fc(states.tapped)
        return joined

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, hidden: torch.Tensor
    ) -> torch.Tensor:
        return _settled(self.norm(self.midlayer(self._embed(token_ids), hidden, positions)))

    def draw(self, hidden: torch.Tensor, sampling: SamplingTensors) -> torch.Tensor:
        normed = self.norm.of(hidden)
        if self.vocabulary is None:
            return self.lm_head.draw(normed, sampling)
        # A token's noise is that of its place in the model's vocabulary.
        logits = self.vocabulary.spread(self.lm_head(normed))
        return self._ops.sample(logits, sampling)

    def placed_modules(self, checkpoint_names: frozenset[str]) -> Iterator[tuple[str, nn.Module]]:
        prefix = _layer_prefix(checkpoint_names)
        for name, module in self.named_modules():
            in_layer = name.removeprefix("midlayer.")
            if name.startswith("vocabulary"):
                yield "d2t", module
            else:
                yield name if in_layer == name else f"{prefix}{in_layer}", module

    def unused_tensors(self) -> tuple[str, ...]:
        # What the draft vocabulary is of the model's is said twice; the embedding is the model's.
        return ("t2d", "embed_tokens.", "model.embed_tokens.")


class _Eagle3Layer(nn.Module):
    """A Llama layer that sees the token's embedding beside the hidden state."""

    def __init__(self, spec: LayerSpec, rotary: RotaryEmbedding, build: Build, size: int) -> None:
        super().__init__()
        self.input_layernorm = _norm(size, spec.norm, build)
        self.hidden_norm = _norm(size, spec.norm, build)
        self.self_attn = SelfAttention(spec, rotary, build)
        self.post_attention_layernorm = _norm(size, spec.norm, build)
        self.mlp = build_mlp(spec, build)

    def forward(
        self, embedded: torch.Tensor, hidden: torch.Tensor, positions: torch.Tensor
    ) -> Stream:
        parts = (self.input_layernorm.of(embedded), self.hidden_norm.of(hidden))
        attended = self.self_attn(torch.cat(parts, dim=1), positions)
        tokens, stream = get_forward_context().looked_at, Stream(hidden)
        if tokens is not None:
            stream, attended = stream.of(tokens), attended[tokens]
        stream = self.self_attn.o_proj.add(stream, attended)
        return self.mlp.add(self.post_attention_layernorm(stream))


class _DraftVocabulary(nn.Module):
    """Which of the model's tokens each of the draft vocabulary is: itself, and so many further."""

    further: torch.Tensor

    def __init__(self, size: int, target_size: int) -> None:
        super().__init__()
        self._target_size = target_size
        self.register_buffer("further", torch.zeros(size, dtype=torch.int64))

    def placements(self, name: str) -> Iterator[Placement]:
        """Where the table comes from in a checkpoint."""
        size = len(self.further)
        yield Placement(name, (size,), ((0, size),), self.further, dtypes=(torch.int64,))

    def spread(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits [R, D] of the draft vocabulary, at their places in the model's [R, V]."""
        tokens = torch.arange(len(self.further), device=logits.device) + self.further
        all_tokens = logits.new_full((len(logits), self._target_size), -torch.inf)
        return all_tokens.index_copy_(1, tokens, logits)


def _settled(normed: Normed) -> torch.Tensor:
    """The stream that was normed."""
    normed.tensor()
    return normed.stream.residual


def _joining(name: str, rows: int, columns: int) -> Projection:
    return Projection(name=name, rows=rows, columns=columns, split=Split.NOTHING, quantizable=False)


def _layer_prefix(names: frozenset[str]) -> str:
    """The layer's name, which two generations of checkpoints have."""
    return "layers.0." if any(name.startswith("layers.0.") for name in names) else "midlayer."


def _norm(size: int, norm: NormSpec, build: Build) -> RMSNorm:
    return RMSNorm(size, norm.eps, ops=build.ops, unit_offset=norm.unit_offset)
