"""EAGLE-3: a draft checkpoint that sees auxiliary hidden states of three layers of the model.

arXiv 2503.01840, LlamaForCausalLMEagle3. Its vocabulary is smaller; the embedding is the model's.
Built by build_draft.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from atom.model_ops.backends.interface import SamplingTensors
from atom.model_ops.embed_head import ParallelLMHead, VocabParallelEmbedding
from atom.model_ops.linear import Build, Linear
from atom.model_ops.placement import Placement
from atom.model_ops.rotary_embedding import RotaryEmbedding
from atom.model_ops.values import Stream
from atom.models.decoder.hidden_states import HiddenStates
from atom.models.decoder.layer_norm import build_norm
from atom.models.decoder.mlp import build_mlp
from atom.models.decoder.self_attention import SelfAttention
from atom.models.decoder.spec import LayerSpec, ModelSpec
from atom.models.draft_models.draft_model import DraftModel, joining, settled
from atom.utils.forward_context import get_forward_context


class Eagle3Draft(DraftModel):
    """The draft model of EAGLE-3. spec: of the draft model, with its vocabulary; target: of the
    model that it drafts for, whose auxiliary hidden states it sees."""

    def __init__(
        self, spec: ModelSpec, target: ModelSpec, embedding: VocabParallelEmbedding, build: Build
    ) -> None:
        super().__init__(embedding)
        (layer,) = spec.layers
        size, count = spec.hidden_size, len(target.aux_layers)
        self.fc = Linear((joining("fc", size, count * target.hidden_size),), build)
        self.rope = RotaryEmbedding(layer.rope, spec.max_position)
        self.midlayer = _Eagle3Layer(layer, self.rope, build, size)
        self.norm = build_norm(size, layer.norm, build)
        self.lm_head = ParallelLMHead(spec.vocab_size, size, build)
        self.vocabulary = None
        if spec.vocab_size != target.vocab_size:
            self.vocabulary = _DraftVocabulary(spec.vocab_size, target.vocab_size)
        self._ops = build.ops

    def join(self, states: HiddenStates) -> torch.Tensor:
        assert states.aux is not None, "the model gives auxiliary hidden states"
        joined: torch.Tensor = self.fc(states.aux)
        return joined

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, hidden: torch.Tensor
    ) -> torch.Tensor:
        return settled(self.norm(self.midlayer(self._embed(token_ids), hidden, positions)))

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
        # The checkpoint has the draft vocabulary's map twice; the embedding is the model's.
        return ("t2d", "embed_tokens.", "model.embed_tokens.")


class _Eagle3Layer(nn.Module):
    """A Llama layer that sees the token's embedding and the hidden state."""

    def __init__(self, spec: LayerSpec, rotary: RotaryEmbedding, build: Build, size: int) -> None:
        super().__init__()
        self.input_layernorm = build_norm(size, spec.norm, build)
        self.hidden_norm = build_norm(size, spec.norm, build)
        self.self_attn = SelfAttention(spec, rotary, build)
        self.post_attention_layernorm = build_norm(size, spec.norm, build)
        self.mlp = build_mlp(spec, build)

    def forward(
        self, embedded: torch.Tensor, hidden: torch.Tensor, positions: torch.Tensor
    ) -> Stream:
        parts = (self.input_layernorm.of(embedded), self.hidden_norm.of(hidden))
        attended = self.self_attn(torch.cat(parts, dim=1), positions)
        tokens, stream = get_forward_context().logits_indices, Stream(hidden)
        if tokens is not None:
            stream, attended = stream.of(tokens), attended[tokens]
        stream = self.self_attn.o_proj.add(stream, attended)
        return self.mlp.add(self.post_attention_layernorm(stream))


class _DraftVocabulary(nn.Module):
    """Map the draft vocabulary to the model's tokens: token i becomes i + further[i]."""

    further: torch.Tensor

    def __init__(self, size: int, target_size: int) -> None:
        super().__init__()
        self._target_size = target_size
        self.register_buffer("further", torch.zeros(size, dtype=torch.int64))

    def placements(self, name: str) -> Iterator[Placement]:
        """Yield the checkpoint's source of the table."""
        size = len(self.further)
        yield Placement(name, (size,), ((0, size),), self.further, dtypes=(torch.int64,))

    def spread(self, logits: torch.Tensor) -> torch.Tensor:
        """Place logits [R, D] of the draft vocabulary in the model's [R, V]."""
        tokens = torch.arange(len(self.further), device=logits.device) + self.further
        all_tokens = logits.new_full((len(logits), self._target_size), -torch.inf)
        return all_tokens.index_copy_(1, tokens, logits)


def _layer_prefix(names: frozenset[str]) -> str:
    """Return the layer's name, which differs between two generations of checkpoints."""
    return "layers.0." if any(name.startswith("layers.0.") for name in names) else "midlayer."
